"""Generated images: letters of a made-up alphabet, each a few strokes, written by an unsteady hand."""

from __future__ import annotations

import torch
from torch import Tensor

STROKES = 3
DOTS = 10
"""Of a stroke."""
WIDTH = (0.035, 0.06)
"""Of a pen, from the finest to the broadest, as a share of the picture."""


def alphabet(letters: int, draw: torch.Generator) -> Tensor:
    """Start, bend and end of each stroke of each letter: (letters, strokes, 3, 2), shares of the picture."""
    return 0.15 + 0.7 * torch.rand(letters, STROKES, 3, 2, generator=draw)


def written(letters: Tensor, side: int, draw: torch.Generator, *, chunk: int = 1000) -> Tensor:
    """Pictures (N, 1, side, side) of letters (N, strokes, 3, 2), no two alike; 0 is paper, about 1 is ink.

    Each point of a stroke trembles, the letter is turned, scaled and moved; pen and ink differ; paper is grainy.

    >>> draw = torch.Generator().manual_seed(0)
    >>> tuple(written(alphabet(5, draw), 12, draw).shape)
    (5, 1, 12, 12)
    """
    return torch.cat([_written(some, side, draw) for some in letters.split(chunk)])


def _written(letters: Tensor, side: int, draw: torch.Generator) -> Tensor:
    many = len(letters)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(many, *shape, generator=draw)

    points = letters - 0.5 + 0.04 * torch.randn(letters.shape, generator=draw)
    angle = between(-0.3, 0.3)
    turn = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), -1).view(many, 2, 2)
    points = torch.einsum("nspx,nxy->nspy", points, turn) * between(0.75, 1.1, 1, 1, 1) + 0.5
    points = points + between(-0.12, 0.12, 1, 1, 2)
    t = torch.linspace(0, 1, DOTS)
    bend = torch.stack(((1 - t) ** 2, 2 * t * (1 - t), t**2))  # (3, dots): a quadratic Bézier curve
    dots = torch.einsum("pd,nspx->nsdx", bend, points).flatten(1, 2)  # (N, strokes · dots, 2)
    at = (torch.arange(side) + 0.5) / side
    pixels = torch.cartesian_prod(at, at)  # (side², 2)
    near = torch.cdist(pixels.expand(many, -1, -1), dots).amin(-1)  # (N, side²)
    ink = between(0.6, 1.0, 1) * torch.exp(-((near / between(*WIDTH, 1)) ** 2) / 2)
    return (ink + 0.15 * torch.randn(ink.shape, generator=draw)).view(many, 1, side, side)
