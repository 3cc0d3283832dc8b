"""Classification of images as a task: a batch of images → loss; held-out ones → accuracy and F1; a file → its class."""

from __future__ import annotations

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


class ClassifyImages(Task):
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

    def batch_loss(self, batch: ImageBatch) -> Loss:
        """Cross-entropy summed over the images, changed at random; of a mixture, over both classes by their shares."""
        changes = self.augmentation
        pixels = augment.crop(augment.flip(batch.images, changes.flip), changes.crop)
        images = augment.erase(self.classifier.normal(pixels), changes.erase)  # 0 is the mean: grey
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
        """Loss per image without smoothing, accuracy, and F1 as the mean over classes."""
        return figures(*predicted(self.classifier, self.valid))

    def samples(self) -> list[tuple[str, str, str]]:
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
