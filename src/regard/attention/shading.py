"""Shades: weights as bytes, for pictures of 256 colours."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Shading(NamedTuple):
    """How a weight becomes one of 256 shades, rounded: 0 for none, 255 for a weight of 1; NaN is 0.

        linear   255 · w
        log      255 · (1 − log w / log floor)

    >>> Shading().of(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    >>> Shading(floor=1e-3).of(torch.tensor([0.0, 1e-4, 1e-3, 0.1, 1.0])).tolist()
    [0, 0, 0, 170, 255]
    """

    floor: float | None = None
    """Where the log scale begins, above 0 and below 1; None for the linear one."""

    @property
    def log(self) -> bool:
        return self.floor is not None

    @property
    def line(self) -> tuple[float, float]:
        """Slope and shift: a shade is x · slope + shift, cut to a whole number, where x is w or log w."""
        return (255.0, 0.5) if self.floor is None else (-255 / math.log(self.floor), 255.5)

    def of(self, weights: Tensor) -> Tensor:
        """The shades of weights of any shape, uint8."""
        slope, shift = self.line
        shades = weights.log().mul_(slope).add_(shift) if self.log else weights * slope + shift
        return torch.fmax(shades.clamp_(max=255.5), shades.new_zeros(())).to(torch.uint8)  # fmax: of NaN and 0, 0
