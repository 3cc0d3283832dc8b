"""Classification of images as a task: a batch of images → loss; held-out ones → accuracy and F1; a file → its class."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.files import replacing
from ..core.json_files import parse_json
from ..data import augment
from ..data.image_batches import ImageBatch, ImageBatches, Images, Normal, Shape, split
from ..data.image_files import decode, read_images
from ..models.beam_search import evaluating
from ..models.vit import ViT
from ..training.recipes.limits import outside
from ..training.recipes.preparation import prepare_once
from .metrics import confusion, f1_of

SAMPLES = 8
FILE = "images.json"
"""In the folder of a run: classes, shape and scale of the images."""


@dataclass(frozen=True)
class Pictures:
    """The images to learn from, and how they are changed at random."""

    images: Path
    """A folder of idx files, a folder of classes (or with train and test in it), or an .npz of arrays."""
    held_out: float = 0.05
    """Share of the images to learn from that is held out, by lot: it tells which weights are best."""
    size: int = 0
    """Height and width that images are brought to; 0: those of the first image."""
    colour: Literal["auto", "grey", "colour"] = "auto"
    """What images are brought to; auto: what the first image is."""
    batch: int = 128
    """Images of a batch."""
    flip: float = 0.5
    """Share of images whose left and right are exchanged. Set it to 0 where that changes the class: letters, digits."""
    crop: int = 2
    """Pixels by which images are moved at most, each way."""
    erase: float = 0.25
    """Share of images in which a rectangle is wiped out."""
    mixup: float = 0.0
    """How much two images are mixed: α of Beta(α, α); 0 for not at all."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = []
        if not self.images.exists():
            found.append(f"data: images ({self.images}) must be a folder or an .npz file; got none there.")
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                found.append(f"data: {name} ({getattr(self, name)}) must lie in [0, 1].")
        for name, low, high in (("size", 0, 2**14), ("crop", 0, 2**14), ("mixup", 0, 2**10), ("batch", 1, 2**20)):
            found += outside(name, getattr(self, name), low, high)
        if not 0 < self.held_out < 1:
            found.append(f"data: held_out ({self.held_out}) must lie in (0, 1). Try 0.05.")
        return found

    @property
    def augmentation(self) -> augment.Augmentation:
        """How images are changed at random."""
        return augment.Augmentation(self.flip, self.crop, self.erase, self.mixup)

    @property
    def shape(self) -> Shape:
        """What images are brought to; 0 where the first image tells."""
        return Shape(self.size, self.size, {"auto": 0, "grey": 1, "colour": 3}[self.colour])


@dataclass(frozen=True)
class Loss:
    """What a batch gives the loop."""

    total: Tensor
    count: int
    extras: Mapping[str, float]


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
        was, device = self.model.training, next(self.model.parameters()).device
        self.model.eval()
        found: Tensor = self.model(self.normal(pixels.to(device)))
        self.model.train(was)
        return found.cpu()

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
    with replacing(folder / FILE) as temporary:
        temporary.write_text(json.dumps(about, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_about(folder: Path) -> tuple[list[str], Shape, Normal]:
    """Classes, shape and scale of the images of a run."""
    path = folder / FILE
    try:
        told = parse_json(path.read_bytes())
        normal = Normal(*(tuple(told["normal"][name]) for name in ("mean", "deviation")))
        return list(told["classes"]), Shape(**told["shape"]), normal
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"images: {path} must tell classes, shape and scale of a run; got {error!r}.") from error


class ClassifyImages:
    """What the training loop trains: `training.fit(ClassifyImages(…), …)`.

    Args:
        classifier: the model, and how images are brought to it.
        train: images to learn from.
        valid: held-out images.
        batch: images of a batch.
        augmentation: how images are changed at random.
        smoothing: share of the probability that all classes have in the loss.
        seed: of the order.
    """

    goal = ("accuracy", "max")

    def __init__(
        self,
        classifier: ImageClassifier,
        train: Images,
        valid: Images,
        batch: int,
        augmentation: augment.Augmentation,
        *,
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.classifier, self.model = classifier, classifier.model
        self.augmentation, self.smoothing = augmentation, smoothing
        self.train = ImageBatches(train, batch, seed=seed)
        self.valid = ImageBatches(valid, 2 * batch, shuffle=False)

    def batches(self, epoch: int, *, start: int, rank: int, world: int) -> Iterator[ImageBatch]:
        return self.train.epoch(epoch, start=start, rank=rank, world=world)

    def batches_in(self, epoch: int) -> int:
        return len(self.train)

    def loss(self, model: nn.Module, batch: ImageBatch) -> Loss:
        """Cross-entropy summed over the images, changed at random; of a mixture, over both classes by their shares."""
        batch = batch.to(next(model.parameters()).device)
        if not len(batch):  # the share of a process in a batch of fewer images than processes
            return Loss(torch.stack([p.sum() for p in model.parameters()]).sum() * 0.0, 0, {})
        changes = self.augmentation
        pixels = augment.crop(augment.flip(batch.images, changes.flip), changes.crop)
        images = augment.erase(self.classifier.normal(pixels), changes.erase)  # 0 is the mean: grey
        mixed = augment.mixup(images, batch.labels, changes.mixup)
        logits = model(mixed.images)  # (B, classes)
        total = self._total(logits, mixed.labels, mixed.share)
        if changes.mixup:
            total = total + self._total(logits, mixed.others, 1 - mixed.share)
        return Loss(total, len(batch), {})

    def _total(self, logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        each = F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=self.smoothing)  # (B,)
        return (each * share).sum()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss per image without smoothing, accuracy, and F1 as the mean over classes."""
        logits, labels = predicted(self.classifier, self.valid)
        matrix = confusion(logits.argmax(-1), labels, len(self.classifier.classes))
        return {"loss": float(F.cross_entropy(logits, labels)), **figures(matrix)}

    def samples(self, model: nn.Module) -> list[tuple[str, str, str]]:
        images = self.valid.images
        shares = self.classifier.logits(images.take(np.arange(min(SAMPLES, len(images))))).softmax(-1)
        ours = [self.classifier._label(row) for row in shares]
        wanted = [images.classes[label] for label in images.labels[:SAMPLES].tolist()]
        return [(f"held-out image {n}", str(one), name) for n, (one, name) in enumerate(zip(ours, wanted, strict=True))]

    def save(self, folder: Path) -> None:
        """Classes, shape and scale; the weights are the loop's."""
        self.classifier.save(folder)


def predicted(classifier: ImageClassifier, batches: ImageBatches) -> tuple[Tensor, Tensor]:
    """Logits (N, classes) and labels (N,) of all images."""
    found = [(classifier.logits(batch.images), batch.labels) for batch in batches.epoch(0)]
    logits, labels = zip(*found, strict=True)
    return torch.cat(logits), torch.cat(labels)


def figures(matrix: Tensor) -> dict[str, float]:
    """Accuracy and macro F1 from a confusion matrix."""
    return {"accuracy": float(matrix.diagonal().sum() / matrix.sum()), "f1": f1_of(matrix).macro}


class Prepared(NamedTuple):
    """Images to learn from, held-out ones, those of the test where there are any, and how they are scaled."""

    train: Images
    valid: Images
    test: Images | None
    normal: Normal
    digests: Mapping[str, str]
    """Of images.json and of the inputs."""


def prepare(data: Pictures, folder: Path, seed: int = 0) -> Prepared:
    """Read the images; write their classes, shape and scale to the folder of the run, or check those that are there."""
    read: list[tuple[Images, Images, Images | None, Normal]] = []

    def make() -> None:
        read.append(_read(data, seed))
        train, _, _, normal = read[0]
        write_about(folder, train.classes, train.shape, normal)

    settings, inputs = {**asdict(data), "seed": seed}, (data.images,)
    digests = prepare_once(folder, settings=settings, inputs=inputs, outputs=(FILE,), make=make)
    return Prepared(*(read[0] if read else _read(data, seed)), digests)


def _read(data: Pictures, seed: int) -> tuple[Images, Images, Images | None, Normal]:
    everything = read_images(data.images, shape=data.shape)
    if everything is None:
        raise ValueError(f"images: {data.images} must hold images to learn from (train); got others alone.")
    train, valid = split(everything, data.held_out, seed)
    test = read_images(data.images, "test", shape=everything.shape, classes=everything.classes)
    return train, valid, test, Normal.of(train)
