"""A classifier of images and what it needs besides weights."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.files import write_text
from ..core.json_files import parse_json
from ..data.image_batches import Normal, Shape
from ..data.image_files import decode
from ..models.beam_search import evaluating
from ..models.vit import ViT

FILE = "images.json"
"""In the folder of a run: classes, shape and scale of the images."""


@dataclass(frozen=True)
class Label:
    """What an image was taken for."""

    name: str
    probability: float
    probabilities: Tensor
    """(classes,)"""

    def __str__(self) -> str:
        return f"{self.name}\t{self.probability:.4f}"


class ImageClassifier:
    """A model of images and what it needs besides weights: names of classes, shape and scale of images."""

    def __init__(self, model: nn.Module, classes: Sequence[str], shape: Shape, normal: Normal) -> None:
        self.model, self.classes, self.shape, self.normal = model, list(classes), shape, normal

    def classify(self, images: Sequence[Any], batch: int = 256) -> list[Label]:
        """The class of each image: files, images of Pillow, or arrays of bytes (H, W) or (H, W, 3).

        Raises:
            ValueError: for a file that is not an image, by its name.
        """
        if isinstance(images, str | os.PathLike):
            raise ValueError(f"images: images ({images}) must be a list, even of one file. Try classify([{images!r}]).")
        found = []
        for start in range(0, len(images), batch):
            pixels = torch.stack([decode(image, self.shape) for image in images[start : start + batch]])
            shares = self.logits(pixels).softmax(-1)  # (B, classes)
            found += [self._label(row) for row in shares]
        return found

    def _label(self, shares: Tensor) -> Label:
        best = int(shares.argmax())
        return Label(self.classes[best], float(shares[best]), shares)

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """pixels (B, C, H, W) of bytes → (B, classes), on the CPU; the model evaluates."""
        with evaluating(self.model):
            logits: Tensor = self.model(self.normal(pixels.to(next(self.model.parameters()).device)))
        return logits.cpu()

    @torch.no_grad()
    def look(self, image: Any) -> Tensor | None:
        """What the class token attends to: the mean over the heads of the last block, (rows, columns) of patches.

        With mean pooling, what all patches attend to. None for a model that does not attend.
        """
        model = self.model
        if not isinstance(model, ViT):
            return None
        pixels = decode(image, self.shape)[None].to(next(model.parameters()).device)
        with evaluating(model):  # a look leaves the mode of the model as it was
            _, maps = model(self.normal(pixels), return_maps=True)
        last = maps[-1]
        weights = last[0, :, :1, 1:].mean((0, 1)) if model.first is not None else last[0].mean((0, 1))  # (N,)
        return weights.reshape(model.config.grid).cpu()

    def save(self, folder: Path) -> None:
        """All but the weights."""
        write_about(folder, self.classes, self.shape, self.normal)


def write_about(folder: Path, classes: Sequence[str], shape: Shape, normal: Normal) -> None:
    """Write classes, shape and scale of the images of a run."""
    about = {"classes": list(classes), "shape": asdict(shape), "normal": asdict(normal)}
    write_text(folder / FILE, json.dumps(about, ensure_ascii=False, indent=2) + "\n")


def read_about(folder: Path) -> tuple[list[str], Shape, Normal]:
    """Classes, shape and scale of the images of a run."""
    path = folder / FILE
    try:
        told = parse_json(path.read_bytes())
        normal = Normal(*(tuple(told["normal"][name]) for name in ("mean", "deviation")))
        return list(told["classes"]), Shape(**told["shape"]), normal
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"images: {path} must tell classes, shape and scale of a run; got {error!r}.") from error
