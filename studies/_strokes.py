"""Generated images of handwritten letters from a random alphabet. Each letter consists of a few strokes."""

from __future__ import annotations

import torch
from torch import Tensor

STROKES = 3
DOTS = 10
"""Points per stroke."""
WIDTH = (0.035, 0.06)
"""Smallest and largest pen width, as a fraction of the image side."""


def alphabet(letters: int, draw: torch.Generator) -> Tensor:
    """Draw start, control and end point of each stroke: (letters, strokes, 3, 2), as fractions of the image side."""
    return 0.15 + 0.7 * torch.rand(letters, STROKES, 3, 2, generator=draw)


def draw_letters(letters: Tensor, side: int, draw: torch.Generator, *, chunk: int = 1000) -> Tensor:
    """Draw images (N, 1, side, side) of letters (N, strokes, 3, 2). Paper is 0, ink about 1.

    Every image differs: points are jittered, the letter is rotated, scaled and shifted, pen width and ink vary, and
    noise is added.

    >>> draw = torch.Generator().manual_seed(0)
    >>> tuple(draw_letters(alphabet(5, draw), 12, draw).shape)
    (5, 1, 12, 12)
    """
    return torch.cat([_draw_chunk(some, side, draw) for some in letters.split(chunk)])


def _draw_chunk(letters: Tensor, side: int, draw: torch.Generator) -> Tensor:
    many = len(letters)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(many, *shape, generator=draw)

    points = letters - 0.5 + 0.04 * torch.randn(letters.shape, generator=draw)
    angle = between(-0.3, 0.3)
    rotation = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), -1).view(many, 2, 2)
    points = torch.einsum("nspx,nxy->nspy", points, rotation) * between(0.75, 1.1, 1, 1, 1) + 0.5
    points = points + between(-0.12, 0.12, 1, 1, 2)
    t = torch.linspace(0, 1, DOTS)
    curve = torch.stack(((1 - t) ** 2, 2 * t * (1 - t), t**2))  # (3, dots): a quadratic Bézier curve
    dots = torch.einsum("pd,nspx->nsdx", curve, points).flatten(1, 2)  # (N, strokes · dots, 2)
    at = (torch.arange(side) + 0.5) / side
    pixels = torch.cartesian_prod(at, at)  # (side², 2)
    near = torch.cdist(pixels.expand(many, -1, -1), dots).amin(-1)  # (N, side²)
    ink = between(0.6, 1.0, 1) * torch.exp(-((near / between(*WIDTH, 1)) ** 2) / 2)
    return (ink + 0.15 * torch.randn(ink.shape, generator=draw)).view(many, 1, side, side)
