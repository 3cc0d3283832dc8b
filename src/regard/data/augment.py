"""Random augmentation of image batches: flip, crop, erase and mixup.

Each function takes images (B, C, H, W) of bytes or floats, and a random generator. The same generator state gives the
same images. The random numbers of a whole batch are drawn at once and applied by indexing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.tensors import shape

Generator = torch.Generator | None


@dataclass(frozen=True)
class Augmentation:
    """Settings of the random augmentation. The defaults are those of training.

    >>> Augmentation(flip=0.0, mixup=0.2)
    Augmentation(flip=0.0, crop=2, erase=0.25, mixup=0.2)
    """

    flip: float = 0.5
    """Share of images that are flipped horizontally."""
    crop: int = 2
    """Largest shift in pixels, in each direction."""
    erase: float = 0.25
    """Share of images in which a rectangle is erased."""
    mixup: float = 0.0
    """α of Beta(α, α), from which the mixing ratio is drawn; 0 turns mixup off."""


def flip(images: Tensor, share: float = 0.5, generator: Generator = None) -> Tensor:
    """Flip a share of the images horizontally.

    >>> flip(torch.tensor([[[[1, 2, 3]]]]), share=1.0).tolist()
    [[[[3, 2, 1]]]]
    """
    _check("flip", images, share)
    flipped = torch.rand(len(images), generator=generator) < share  # (B,)
    return torch.where(flipped.to(images.device)[:, None, None, None], images.flip(-1), images)


def crop(images: Tensor, padding: int, generator: Generator = None) -> Tensor:
    """Shift each image by up to `padding` pixels in each direction. Zeros fill the border; the size stays.

    >>> moved = crop(torch.ones(64, 1, 4, 4), 1, torch.Generator().manual_seed(0))
    >>> sorted(set(moved.sum((1, 2, 3)).tolist()))
    [9.0, 12.0, 16.0]
    """
    _check("crop", images)
    if padding < 0:
        raise ValueError(f"crop: padding ({padding}) must be 0 or more.")
    if not padding or not len(images):
        return images
    batch, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)  # (B, C, H + 2p, W + 2p)
    shifts = torch.randint(0, 2 * padding + 1, (2, batch, 1), generator=generator)
    down, right = (
        (shift + torch.arange(size)).to(images.device) for shift, size in zip(shifts, (height, width), strict=True)
    )
    rows = torch.arange(batch, device=images.device)[:, None, None]
    # advanced indices separated by a slice put the channels last
    return padded[rows, :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)  # (B, C, H, W)


def erase(
    images: Tensor,
    share: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    generator: Generator = None,
    fill: float = 0.0,
) -> Tensor:
    """Overwrite a rectangle with `fill`, in a share of the images (Zhong et al. 2020, algorithm 1).

    area: smallest and largest fraction of the image that the rectangle covers. Its aspect ratio is from 0.3 to 3.3.

    >>> erased = erase(torch.ones(1, 1, 10, 10), 1.0, (0.25, 0.25), torch.Generator().manual_seed(0))
    >>> bool(15 <= (erased == 0).sum() <= 35)
    True
    """
    _check("erase", images, share)
    low, high = area
    if not 0 <= low <= high <= 1:
        raise ValueError(f"erase: area ({low}, {high}) must be two increasing fractions of the image, from 0 to 1.")
    batch, _, height, width = images.shape
    chosen, size, ratio, top, left = torch.rand(5, batch, generator=generator)
    size = (low + (high - low) * size) * height * width
    ratio = torch.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * ratio)  # height / width
    erased_height = (size * ratio).sqrt().round().clamp(1, height)
    erased_width = (size / ratio).sqrt().round().clamp(1, width)
    erased_height = torch.where(chosen < share, erased_height, torch.zeros(()))
    top, left = (top * (height - erased_height + 1)).floor(), (left * (width - erased_width + 1)).floor()
    inside = (
        _in_range(height, top, erased_height)[:, None, :, None] & _in_range(width, left, erased_width)[:, None, None, :]
    )
    return images.masked_fill(inside.to(images.device), fill)


class Mixed(NamedTuple):
    """Pairs of mixed images, with both labels and the mixing ratio."""

    images: Tensor
    """(B, C, H, W)"""
    labels: Tensor
    """(B,): labels of the first images."""
    others: Tensor
    """(B,): labels of the second images."""
    share: Tensor
    """(B,): weight λ of the first image."""


def mixup(images: Tensor, labels: Tensor, alpha: float = 0.2, generator: Generator = None) -> Mixed:
    """Mix each image with another one of the batch (Zhang et al. 2018, equation 1). The loss is mixed likewise.

        x = λ·xᵢ + (1 − λ)·xⱼ,   loss = λ·loss(yᵢ) + (1 − λ)·loss(yⱼ),   λ ~ Beta(α, α)

    Images must be floats. With alpha=0 they are returned unchanged.

    >>> mixed = mixup(torch.eye(4).view(4, 1, 2, 2), torch.arange(4), 1.0, torch.Generator().manual_seed(0))
    >>> torch.allclose(mixed.images.sum((1, 2, 3)), torch.ones(4)), tuple(mixed.share.shape)
    (True, (4,))
    """
    _check("mixup", images)
    if alpha < 0:
        raise ValueError(f"mixup: alpha ({alpha}) must be 0 or more.")
    if not images.is_floating_point():
        raise ValueError(f"mixup: images ({images.dtype}) must be floating point: a mean of bytes would be rounded.")
    batch = len(images)
    if not alpha or not batch:
        return Mixed(images, labels, labels, torch.ones(batch))
    # two normalized Gamma variates follow Beta(α, α); only the Dirichlet sampler of torch takes a generator
    share = torch._sample_dirichlet(torch.full((batch, 2), alpha), generator=generator)[:, 0]  # (B,)
    other = torch.randperm(batch, generator=generator).to(images.device)
    part = share.to(images)[:, None, None, None]
    return Mixed(torch.lerp(images[other], images, part), labels, labels[other], share.to(images))


def _in_range(size: int, start: Tensor, length: Tensor) -> Tensor:
    """Return which of `size` positions are in [start, start + length): (B,) → (B, size)."""
    position = torch.arange(size)
    return (position >= start[:, None]) & (position < (start + length)[:, None])


def _check(where: str, images: Tensor, share: float = 0.0) -> None:
    if images.ndim != 4:
        raise ValueError(f"{where}: images ({shape(images)}) must be (batch, channels, height, width).")
    if not 0 <= share <= 1:
        raise ValueError(f"{where}: share ({share}) must lie in [0, 1].")
