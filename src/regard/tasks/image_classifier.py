"""An image classifier: a model with its class names and image normalization."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap
from ..core.chunks import chunks
from ..core.files import write_text
from ..core.json_files import parse_json
from ..core.messages import few
from ..data.image_batches import Normal, Shape
from ..data.image_files import ImageInput, decode
from ..models.beam_search import evaluating
from ..models.huggingface_vit import save_scale, save_vit
from ..models.vit import ViT
from .block_maps import block_maps
from .model_summary import summary

if TYPE_CHECKING:
    from .evaluation import ClassificationScores

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
    >>> classifier
    ImageClassifier(ViT, 2,894 parameters, classes=(cat, dog), image=8×8×1)
    >>> grey = np.full((8, 8), 128, np.uint8)
    >>> [label.name in ("cat", "dog") for label in classifier.classify([grey, grey])]
    [True, True]
    >>> tuple(classifier.logits(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)).shape)
    (3, 2)
    >>> tuple(classifier.look(grey).shape)                              # attention to 2 × 2 patches
    (2, 2)
    >>> classifier(grey) in ("cat", "dog"), [m.shape for m in classifier.maps(grey)]      # 4 patches and [CLS]
    (True, [(3, 5, 5), (3, 5, 5)])
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "images.npz", images=np.zeros((2, 8, 8), np.uint8), labels=[0, 1])
    >>> classifier.evaluate(folder / "images.npz")["examples"], classifier.export(folder / "exported").name
    (2, 'exported')
    >>> classifier.save(folder)
    >>> read_about(folder)[0]
    ['cat', 'dog']
    """

    def __init__(self, model: nn.Module, classes: Sequence[str], shape: Shape, normal: Normal) -> None:
        self.model, self.classes, self.shape, self.normal = model, list(classes), shape, normal

    def __repr__(self) -> str:
        size = "×".join(map(str, (self.shape.height, self.shape.width, self.shape.channels)))
        return summary(self, self.model, classes=f"({few(self.classes)})", image=size)

    @overload
    def __call__(self, images: ImageInput) -> str: ...
    @overload
    def __call__(self, images: list[ImageInput]) -> list[str]: ...
    def __call__(self, images: ImageInput | list[ImageInput]) -> str | list[str]:
        """Return the class of an image, or of each image of a list. See `classify` for images and probabilities."""
        if isinstance(images, list):
            return [label.name for label in self.classify(images)]
        return self.classify([images])[0].name

    def maps(self, image: ImageInput) -> list[AttentionMap]:
        """Return the attention map (H, T, T) of each block; T are the patches, after a class token if there is one.

        The list is empty for a model without attention.
        """
        return block_maps(self._maps(image) or [])

    def evaluate(self, path: str | Path) -> ClassificationScores:
        """Classify the images of a folder or an .npz file: accuracy, F1 and the confusion matrix.

        path: as in `regard train classify --images`. Its test images are used, or all images if there are none.
        """
        from .evaluation import evaluate_image_classifier

        return evaluate_image_classifier(self, path)

    def export(self, folder: str | Path) -> Path:
        """Write a directory that `transformers` loads as a ViTForImageClassification. Return the folder.

        Raises:
            ValueError: if `transformers` has no such model; the message names the setting.
        """
        if not isinstance(self.model, ViT):
            raise ValueError(
                f"export: model ({type(self.model).__name__}) must be a Vision Transformer: transformers has no such "
                "network. Train with --kind vit to export it."
            )
        save_vit(self.model, folder, self.classes)
        save_scale(folder, self.normal.mean, self.normal.deviation, self.model.config.image)
        return Path(folder)

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
        for chunk in chunks(images, batch):
            pixels = torch.stack([decode(image, self.shape) for image in chunk])
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
        maps, model = self._maps(image), self.model
        if maps is None or not isinstance(model, ViT):
            return None
        last = maps[-1]
        weights = last[0, :, :1, 1:].mean((0, 1)) if model.first is not None else last[0].mean((0, 1))  # (N,)
        return weights.reshape(model.config.grid).cpu()

    @torch.no_grad()
    def _maps(self, image: ImageInput) -> list[AttentionMap] | None:
        """Return the map (1, H, T, T) of each block; None for a model without attention."""
        model = self.model
        if not isinstance(model, ViT):
            return None
        pixels = decode(image, self.shape)[None].to(next(model.parameters()).device)
        with evaluating(model):  # restores the training mode afterwards
            _, maps = model(self.normal(pixels), return_maps=True)
        return maps

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
