"""Images with classes → batches. Pixels stay bytes until the model normalizes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .epoch_batches import EpochBatches, TensorBatch, generator

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Shape:
    """Target size of images. 0 stands for the size of the first image.

    >>> Shape(32, 32)
    Shape(height=32, width=32, channels=0)
    """

    height: int = 0
    width: int = 0
    channels: int = 0

    def filled(self, first: Shape) -> Shape:
        """Return the shape with each 0 replaced by the value of the first image.

        >>> Shape(32, 32).filled(Shape(480, 640, 3))
        Shape(height=32, width=32, channels=3)
        """
        height, width, channels = self.height or first.height, self.width or first.width, self.channels
        return Shape(height, width, channels or first.channels)


class Images:
    """Labelled images of the same size, stored as bytes.

    Args:
        pixels: (N, H, W) or (N, H, W, C), uint8.
        labels: (N,), integers from 0.
        classes: the name of each label; default "0", "1", ….

    >>> images = Images(np.zeros((3, 28, 28), np.uint8), [1, 0, 1], ["cat", "dog"])
    >>> images, tuple(images.take([2, 0]).shape), images.labels.tolist()
    (Images(3 of 28×28, grey, 2 classes), (2, 1, 28, 28), [1, 0, 1])

    >>> images.subset([0, 2]).labels.tolist()
    [1, 1]
    """

    def __init__(self, pixels: ArrayLike, labels: ArrayLike, classes: Sequence[str] | None = None) -> None:
        pixels, label_array = np.asarray(pixels), np.asarray(labels)
        if pixels.ndim == 3:
            pixels = pixels[..., None]
        if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[3] not in (1, 3):
            raise ValueError(
                f"images: pixels ({pixels.dtype} {pixels.shape}) must be bytes, (number, height, width) or with 1 or 3 "
                "channels at the end. Floats from 0 to 1 become bytes by (255 * x).round().astype('uint8')."
            )
        # copy: arrays read from files may be read-only, and torch warns about those
        self._pixels: Tensor | None = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())  # (N, C, H, W)
        self._initialize(label_array, classes, Shape(pixels.shape[1], pixels.shape[2], pixels.shape[3]))

    def _initialize(self, labels: np.ndarray, classes: Sequence[str] | None, shape: Shape) -> None:
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not len(labels):
            raise ValueError(f"images: labels ({labels.dtype} {labels.shape}) must be integers, one per image.")
        if self._pixels is not None and len(labels) != len(self._pixels):
            raise ValueError(f"images: labels ({len(labels)}) must be one per image ({len(self._pixels)}).")
        low, high = int(labels.min()), int(labels.max())
        self.classes = list(classes) if classes is not None else [str(n) for n in range(high + 1)]
        if low < 0 or high >= len(self.classes):
            raise ValueError(f"images: labels ({low} … {high}) must lie in 0 … {len(self.classes) - 1}, the classes.")
        self.labels = torch.from_numpy(labels.astype(np.int64))  # (N,)
        self.shape = shape

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        colour = "grey" if self.shape.channels == 1 else "colour"
        size = f"{self.shape.height}×{self.shape.width}"
        return f"{type(self).__name__}({len(self):,} of {size}, {colour}, {len(self.classes)} classes)"

    def take(self, indices: ArrayLike) -> Tensor:
        """Return the images at `indices`: (B, C, H, W), uint8."""
        assert self._pixels is not None
        return self._pixels[torch.as_tensor(np.asarray(indices, np.int64))]

    def subset(self, indices: ArrayLike) -> Images:
        """Return the images at `indices` as a new `Images` with the same classes."""
        pixels = self.take(indices).numpy().transpose(0, 2, 3, 1)
        return Images(pixels, self.labels[torch.as_tensor(np.asarray(indices, np.int64))].numpy(), self.classes)


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """A batch of images.

    >>> ImageBatch(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([1, 0]), torch.tensor([7, 3])).labels
    tensor([1, 0])
    """

    images: Tensor
    """(B, C, H, W) uint8."""
    labels: Tensor
    """(B,) int64."""
    indices: Tensor
    """(B,) int64: indices in the data set."""

    def __len__(self) -> int:
        return len(self.indices)


class ImageBatches(EpochBatches[ImageBatch]):
    """Batches of images in an order that is a function of (seed, epoch).

    >>> images = Images(np.zeros((10, 4, 4), np.uint8), np.arange(10) % 2)
    >>> batches = ImageBatches(images, 4, seed=1)
    >>> [len(batch) for batch in batches.epoch(0)], len(batches)
    ([4, 4, 2], 3)
    >>> next(batches.epoch(0, start=2)).indices.tolist() == batches.order(0)[8:].tolist()
    True

    >>> [len(indices) for indices in batches.plan(0)], batches.count(0)
    ([4, 4, 2], 3)
    """

    def __init__(self, images: Images, size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        for name, value, minimum in (("size", size, 1), ("seed", seed, 0)):
            if value < minimum:
                raise ValueError(f"image batches: {name} ({value}) must be at least {minimum}.")
        self.images, self.size, self.seed, self.shuffle = images, size, seed, shuffle

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.images) // self.size)

    def order(self, epoch: int) -> np.ndarray:
        """Return the indices of an epoch, batch after batch."""
        indices = np.arange(len(self.images))
        if self.shuffle:
            generator(self.seed, epoch).shuffle(indices)
        return indices

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Return the indices of each batch."""
        order = self.order(epoch)
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self)

    def batch(self, indices: np.ndarray) -> ImageBatch:
        """Return the images at `indices` as a batch."""
        positions = torch.from_numpy(indices.astype(np.int64))
        return ImageBatch(self.images.take(indices), self.images.labels[positions], positions)


@dataclass(frozen=True)
class Normal:
    """Normalize bytes to mean 0 and standard deviation 1 per channel: (x / 255 − mean) / deviation.

    >>> Normal((0.5,), (0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, images: Images, most: int = 10_000) -> Normal:
        """Compute the statistics of about `most` evenly spaced images."""
        pixels = images.take(np.arange(0, len(images), max(1, len(images) // most))).double() / 255  # (n, C, H, W)
        deviation = pixels.std((0, 2, 3), correction=0).clamp(min=1e-3)  # no division by 0 for constant images
        return cls(tuple(pixels.mean((0, 2, 3)).tolist()), tuple(deviation.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        mean, deviation = (
            torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.deviation)
        )  # (C, 1, 1)
        return images.to(torch.float32).sub_(255 * mean).div_(255 * deviation)


def split(images: Images, share: float, seed: int = 0) -> tuple[Images, Images]:
    """Split images at random into a training part and a held-out share."""
    indices = generator(seed, 1).permutation(len(images))
    held = round(share * len(images))
    if not 0 < held < len(images):
        raise ValueError(f"images: share ({share}) of {len(images)} must leave some for training and some to hold out.")
    return images.subset(np.sort(indices[held:])), images.subset(np.sort(indices[:held]))
