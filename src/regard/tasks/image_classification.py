"""The image classification task: loss of a batch of images, accuracy and F1 on held-out images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..data import augment
from ..data.image_batches import ImageBatch, ImageBatches, Images
from .image_classifier import ImageClassifier
from .metrics import figures
from .task import Loss, Task

SAMPLES = 8


class ClassifyImages(Task[ImageBatch]):
    """Task of training an image classifier: `training.fit(ClassifyImages(…), …)`.

    Args:
        classifier: the model, with the shape and normalization of its images.
        train: training images.
        valid: held-out images.
        batch: batch size.
        augmentation: random augmentation of the training images.
        smoothing: label smoothing.
        seed: seed of the shuffled order.

    >>> from regard.data import Augmentation, Normal, Shape
    >>> from regard.models import ViT, ViTConfig
    >>> model = ViT(ViTConfig(classes=2, image=(8, 8), width=12, heads=3, hidden=24, layers=2))
    >>> classifier = ImageClassifier(model, ["cat", "dog"], Shape(8, 8, 1), Normal((0.5,), (0.25,)))
    >>> images = Images(np.zeros((6, 8, 8), np.uint8), np.arange(6) % 2, ["cat", "dog"])
    >>> task = ClassifyImages(classifier, images, images.subset([0, 1]), batch=4, augmentation=Augmentation())
    >>> task.batch_loss(next(task.train.epoch(0))).count, list(task.evaluate()), len(task.samples())
    (4, ['loss', 'accuracy', 'f1'], 2)
    """

    goal = ("accuracy", "max")
    unit = "images"

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

    def batch_loss(self, batch: ImageBatch) -> Loss:
        """Return the cross-entropy summed over augmented images. With mixup, both labels count by their share."""
        changes = self.augmentation
        pixels = augment.crop(augment.flip(batch.images, changes.flip), changes.crop)
        images = augment.erase(self.classifier.normal(pixels), changes.erase)  # 0 is the mean color
        mixed = augment.mixup(images, batch.labels, changes.mixup)
        logits = self.model(mixed.images)  # (B, classes)
        total = self._total(logits, mixed.labels, mixed.share)
        if changes.mixup:
            total = total + self._total(logits, mixed.others, 1 - mixed.share)
        return Loss(total, len(batch))

    def _total(self, logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        each = F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=self.smoothing)  # (B,)
        return (each * share).sum()

    def evaluate(self) -> dict[str, float]:
        """Return the loss per image without label smoothing, the accuracy, and the macro F1."""
        batches = self.evaluated("batches", self.valid.epoch(0), self.valid.count(0))
        return figures(*predicted(self.classifier, batches))

    def samples(self) -> list[tuple[str, str, str]]:
        """Return a few held-out images by number, the predicted class with its probability, and the true class."""
        images = self.valid.images
        probabilities = self.classifier.logits(images.take(np.arange(min(SAMPLES, len(images))))).softmax(-1)
        ours = [self.classifier._label(row) for row in probabilities]
        wanted = [images.classes[label] for label in images.labels[:SAMPLES].tolist()]
        return [(f"held-out image {n}", str(one), name) for n, (one, name) in enumerate(zip(ours, wanted, strict=True))]

    def save(self, folder: Path) -> None:
        """Write the classes, shape and normalization of the images. The training loop writes the weights."""
        self.classifier.save(folder)


def predicted(classifier: ImageClassifier, batches: Iterable[ImageBatch]) -> tuple[Tensor, Tensor]:
    """Return the logits (N, classes) and labels (N,) of all images."""
    results = [(classifier.logits(batch.images), batch.labels) for batch in batches]
    logits, labels = zip(*results, strict=True)
    return torch.cat(logits), torch.cat(labels)
