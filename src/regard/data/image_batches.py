"""Images with classes → batches. Bytes until the model wants numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .epoch_batches import EpochBatches, TensorBatch, generator


@dataclass(frozen=True)
class Shape:
    """What images are brought to; 0 stands for what the first image has."""

    height: int = 0
    width: int = 0
    channels: int = 0

    def filled(self, first: Shape) -> Shape:
        """With that of the first image in place of each 0.

        >>> Shape(32, 32).filled(Shape(480, 640, 3))
        Shape(height=32, width=32, channels=3)
        """
        height, width, channels = self.height or first.height, self.width or first.width, self.channels
        return Shape(height, width, channels or first.channels)


class Images:
    """Images with classes, all of one size, as bytes.

    Args:
        pixels: (N, H, W) or (N, H, W, C), uint8.
        labels: (N,), whole numbers from 0.
        classes: the name of each label; default "0", "1", ….

    >>> images = Images(np.zeros((3, 28, 28), np.uint8), [1, 0, 1], ["cat", "dog"])
    >>> images, tuple(images.take([2, 0]).shape), images.labels.tolist()
    (Images(3 of 28×28, grey, 2 classes), (2, 1, 28, 28), [1, 0, 1])
    """

    def __init__(self, pixels: Any, labels: Any, classes: Sequence[str] | None = None) -> None:
        pixels, marks = np.asarray(pixels), np.asarray(labels)
        if pixels.ndim == 3:
            pixels = pixels[..., None]
        if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[3] not in (1, 3):
            raise ValueError(
                f"images: pixels ({pixels.dtype} {pixels.shape}) must be bytes, (number, height, width) or with 1 or 3 "
                "channels at the end. Floats from 0 to 1 become bytes by (255 * x).round().astype('uint8')."
            )
        # a copy: what was read from a file may not be written to, and torch warns of such
        self._pixels: Tensor | None = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())  # (N, C, H, W)
        self._begin(marks, classes, Shape(pixels.shape[1], pixels.shape[2], pixels.shape[3]))

    def _begin(self, labels: np.ndarray, classes: Sequence[str] | None, shape: Shape) -> None:
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or not len(labels):
            raise ValueError(f"images: labels ({labels.dtype} {labels.shape}) must be whole numbers, one per image.")
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

    def take(self, places: Any) -> Tensor:
        """The images at some places: (B, C, H, W), uint8."""
        assert self._pixels is not None
        return self._pixels[torch.as_tensor(np.asarray(places, np.int64))]

    def some(self, places: Any) -> Images:
        """Those at some places, as images of their own with the same classes."""
        pixels = self.take(places).numpy().transpose(0, 2, 3, 1)
        return Images(pixels, self.labels[torch.as_tensor(np.asarray(places, np.int64))].numpy(), self.classes)


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """Images side by side."""

    images: Tensor
    """(B, C, H, W) uint8."""
    labels: Tensor
    """(B,) int64."""
    indices: Tensor
    """(B,) int64: places in the data."""

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
    """

    def __init__(self, images: Images, size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        for name, value, least in (("size", size, 1), ("seed", seed, 0)):
            if value < least:
                raise ValueError(f"image batches: {name} ({value}) must be at least {least}.")
        self.images, self.size, self.seed, self.shuffle = images, size, seed, shuffle

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.images) // self.size)

    def order(self, epoch: int) -> np.ndarray:
        """The places of an epoch, one batch after the other."""
        places = np.arange(len(self.images))
        if self.shuffle:
            generator(self.seed, epoch).shuffle(places)
        return places

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The places of each batch."""
        order = self.order(epoch)
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]

    def count(self, epoch: int) -> int:
        return len(self)

    def batch(self, indices: np.ndarray) -> ImageBatch:
        """The images at some places as a batch."""
        places = torch.from_numpy(indices.astype(np.int64))
        return ImageBatch(self.images.take(indices), self.images.labels[places], places)


@dataclass(frozen=True)
class Normal:
    """Bytes → numbers of mean 0 and deviation 1, channel by channel: (x / 255 − mean) / deviation.

    >>> Normal((0.5,), (0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, images: Images, most: int = 10_000) -> Normal:
        """That of the first images, every so many of which are looked at."""
        pixels = images.take(np.arange(0, len(images), max(1, len(images) // most))).double() / 255  # (n, C, H, W)
        deviation = pixels.std((0, 2, 3), correction=0).clamp(min=1e-3)  # one colour throughout: no division by 0
        return cls(tuple(pixels.mean((0, 2, 3)).tolist()), tuple(deviation.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        mean, deviation = (
            torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.deviation)
        )  # (C, 1, 1)
        return images.to(torch.float32).sub_(255 * mean).div_(255 * deviation)


def split(images: Images, share: float, seed: int = 0) -> tuple[Images, Images]:
    """Some to learn from and a share held out, by lot."""
    places = generator(seed, 1).permutation(len(images))
    held = round(share * len(images))
    if not 0 < held < len(images):
        raise ValueError(
            f"images: share ({share}) of {len(images)} must leave some to learn from and some to hold out."
        )
    return images.some(np.sort(places[held:])), images.some(np.sort(places[:held]))
