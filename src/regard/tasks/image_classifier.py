"""An image classifier: a model with its class names and image normalization."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.files import write_text
from ..core.json_files import parse_json
from ..data.image_batches import Normal, Shape
from ..data.image_files import ImageInput, decode
from ..models.beam_search import evaluating
from ..models.vit import ViT

FILE = "images.json"
"""File in the folder of a run with the classes, shape and normalization of the images."""


@dataclass(frozen=True)
class Label:
    """The predicted class of an image.

    >>> str(Label("cat", 0.75, torch.tensor([0.75, 0.25])))
    'cat\\t0.7500'
    """

    name: str
    probability: float
    probabilities: Tensor
    """(classes,)"""

    def __str__(self) -> str:
        return f"{self.name}\t{self.probability:.4f}"


class ImageClassifier:
    """An image model with its class names and the shape and normalization of its images.

    `load_image_classifier` loads a trained one; this one has random weights:

    >>> import numpy as np
    >>> from regard.models import ViTConfig
    >>> model = ViT(ViTConfig(classes=2, image=(8, 8), width=12, heads=3, hidden=24, layers=2))
    >>> classifier = ImageClassifier(model, ["cat", "dog"], Shape(8, 8, 1), Normal((0.5,), (0.25,)))
    >>> grey = np.full((8, 8), 128, np.uint8)
    >>> [label.name in ("cat", "dog") for label in classifier.classify([grey, grey])]
    [True, True]
    >>> tuple(classifier.logits(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)).shape)
    (3, 2)
    >>> tuple(classifier.look(grey).shape)                              # attention to 2 × 2 patches
    (2, 2)
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> classifier.save(folder)
    >>> read_about(folder)[0]
    ['cat', 'dog']
    """

    def __init__(self, model: nn.Module, classes: Sequence[str], shape: Shape, normal: Normal) -> None:
        self.model, self.classes, self.shape, self.normal = model, list(classes), shape, normal

    def classify(self, images: Sequence[ImageInput], batch: int = 256) -> list[Label]:
        """Predict the class of each image: a file, a Pillow image, or a uint8 array (H, W) or (H, W, 3).

        Raises:
            ValueError: if a file is not an image; the message names it.
        """
        if isinstance(images, str | os.PathLike):
            raise ValueError(
                f"images: images ({images}) must be a list, even for a single file. Try classify([{images!r}])."
            )
        labels = []
        for start in range(0, len(images), batch):
            pixels = torch.stack([decode(image, self.shape) for image in images[start : start + batch]])
            probabilities = self.logits(pixels).softmax(-1)  # (B, classes)
            labels += [self._label(row) for row in probabilities]
        return labels

    def _label(self, probabilities: Tensor) -> Label:
        best = int(probabilities.argmax())
        return Label(self.classes[best], float(probabilities[best]), probabilities)

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """Return logits (B, classes) on the CPU for uint8 pixels (B, C, H, W). The model runs in evaluation mode."""
        with evaluating(self.model):
            logits: Tensor = self.model(self.normal(pixels.to(next(self.model.parameters()).device)))
        return logits.cpu()

    @torch.no_grad()
    def look(self, image: ImageInput) -> Tensor | None:
        """Return the mean attention of the last block's heads from the class token to the patches, (rows, columns).

        With mean pooling, return the mean attention of all patches. Return None for a model without attention.
        """
        model = self.model
        if not isinstance(model, ViT):
            return None
        pixels = decode(image, self.shape)[None].to(next(model.parameters()).device)
        with evaluating(model):  # restores the training mode afterwards
            _, maps = model(self.normal(pixels), return_maps=True)
        last = maps[-1]
        weights = last[0, :, :1, 1:].mean((0, 1)) if model.first is not None else last[0].mean((0, 1))  # (N,)
        return weights.reshape(model.config.grid).cpu()

    def save(self, folder: Path) -> None:
        """Write everything but the weights."""
        write_about(folder, self.classes, self.shape, self.normal)


def write_about(folder: Path, classes: Sequence[str], shape: Shape, normal: Normal) -> None:
    """Write the classes, shape and normalization of the images of a run."""
    about = {"classes": list(classes), "shape": asdict(shape), "normal": asdict(normal)}
    write_text(folder / FILE, json.dumps(about, ensure_ascii=False, indent=2) + "\n")


def read_about(folder: Path) -> tuple[list[str], Shape, Normal]:
    """Read the classes, shape and normalization of the images of a run."""
    path = folder / FILE
    try:
        metadata = parse_json(path.read_bytes())
        normal = Normal(*(tuple(metadata["normal"][name]) for name in ("mean", "deviation")))
        return list(metadata["classes"]), Shape(**metadata["shape"]), normal
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"images: {path} must hold the classes, shape and normalization of a run; got {error!r}."
        ) from error
