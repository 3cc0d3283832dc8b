"""Images changed at random for training, a batch at a time: flipped, shifted, with a hole, two mixed into one.

Every function takes images (B, C, H, W), bytes or floats, and the generator of its random numbers: the same state of
the generator gives the same images. What is drawn is drawn for all of the batch at once, and applied by indices.
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
    """How the images of a batch are changed at random; without arguments, as in training by default."""

    flip: float = 0.5
    """Share of images whose left and right are exchanged."""
    crop: int = 2
    """Pixels by which images are moved at most, each way."""
    erase: float = 0.25
    """Share of images in which a rectangle is erased."""
    mixup: float = 0.0
    """How much two images are mixed: α of Beta(α, α); 0 for not at all."""


def flip(images: Tensor, share: float = 0.5, generator: Generator = None) -> Tensor:
    """Left and right exchanged, for a share of the images.

    >>> flip(torch.tensor([[[[1, 2, 3]]]]), share=1.0).tolist()
    [[[[3, 2, 1]]]]
    """
    _check("flip", images, share)
    turned = torch.rand(len(images), generator=generator) < share  # (B,)
    return torch.where(turned.to(images.device)[:, None, None, None], images.flip(-1), images)


def crop(images: Tensor, padding: int, generator: Generator = None) -> Tensor:
    """Moved by up to `padding` places each way, zeros coming in: a window of the padded image, of the same size.

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
    wide = torch.nn.functional.pad(images, (padding,) * 4)  # (B, C, H + 2p, W + 2p)
    moves = torch.randint(0, 2 * padding + 1, (2, batch, 1), generator=generator)
    down, right = (
        (move + torch.arange(size)).to(images.device) for move, size in zip(moves, (height, width), strict=True)
    )
    each = torch.arange(batch, device=images.device)[:, None, None]
    # indices side by side with a slice between them put the channels last
    return wide[each, :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)  # (B, C, H, W)


def erase(
    images: Tensor,
    share: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    generator: Generator = None,
    fill: float = 0.0,
) -> Tensor:
    """A rectangle of a share of the images overwritten with `fill` (Zhong et al. 2020, algorithm 1).

    area: lowest and highest part of the image that the rectangle covers; its sides are as 0.3 to 3.3.

    >>> found = erase(torch.ones(1, 1, 10, 10), 1.0, (0.25, 0.25), torch.Generator().manual_seed(0))
    >>> bool(15 <= (found == 0).sum() <= 35)
    True
    """
    _check("erase", images, share)
    low, high = area
    if not 0 <= low <= high <= 1:
        raise ValueError(f"erase: area ({low}, {high}) must be two rising parts of the image, from 0 to 1.")
    batch, _, height, width = images.shape
    chosen, size, ratio, top, left = torch.rand(5, batch, generator=generator)
    size = (low + (high - low) * size) * height * width
    ratio = torch.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * ratio)  # height / width
    tall = (size * ratio).sqrt().round().clamp(1, height)
    broad = (size / ratio).sqrt().round().clamp(1, width)
    tall = torch.where(chosen < share, tall, torch.zeros(()))
    top, left = (top * (height - tall + 1)).floor(), (left * (width - broad + 1)).floor()
    inside = _between(height, top, tall)[:, None, :, None] & _between(width, left, broad)[:, None, None, :]
    return images.masked_fill(inside.to(images.device), fill)


class Mixed(NamedTuple):
    """Images of two, and how much of each."""

    images: Tensor
    """(B, C, H, W)"""
    labels: Tensor
    """(B,): of the one."""
    others: Tensor
    """(B,): of the other."""
    share: Tensor
    """(B,): of the one in the mixture."""


def mixup(images: Tensor, labels: Tensor, alpha: float = 0.2, generator: Generator = None) -> Mixed:
    """Each image mixed with another of the batch, and what is to be said likewise (Zhang et al. 2018, equation 1).

        x = λ·xᵢ + (1 − λ)·xⱼ,   loss = λ·loss(yᵢ) + (1 − λ)·loss(yⱼ),   λ ~ Beta(α, α)

    Images are floats. alpha=0 leaves them as they are.

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
    # of two Gamma variates the share of the first is Beta; torch draws Dirichlet variates with a generator
    share = torch._sample_dirichlet(torch.full((batch, 2), alpha), generator=generator)[:, 0]  # (B,)
    other = torch.randperm(batch, generator=generator).to(images.device)
    part = share.to(images)[:, None, None, None]
    return Mixed(torch.lerp(images[other], images, part), labels, labels[other], share.to(images))


def _between(size: int, start: Tensor, length: Tensor) -> Tensor:
    """Which of `size` places are in start … start + length: (B,) → (B, size)."""
    place = torch.arange(size)
    return (place >= start[:, None]) & (place < (start + length)[:, None])


def _check(where: str, images: Tensor, share: float = 0.0) -> None:
    if images.ndim != 4:
        raise ValueError(f"{where}: images ({shape(images)}) must be (batch, channels, height, width).")
    if not 0 <= share <= 1:
        raise ValueError(f"{where}: share ({share}) must lie in [0, 1].")
