"""Helpers of the studies that compare two methods."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from studies._claim import spread


def leads(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether the first mean exceeds the second by more than the sum of their standard deviations.

    >>> leads([0.9, 0.92], [0.8, 0.82]), leads([0.9, 0.7], [0.8, 0.6]), leads([0.8], [0.9])
    (True, False, False)
    """
    (a, da), (b, db) = spread(first), spread(second)
    return a - b > da + db


def parameters(model: nn.Module) -> int:
    """Return the number of parameters of a model.

    >>> parameters(nn.Linear(3, 4))
    16
    """
    return sum(p.numel() for p in model.parameters())


def percent(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Convert fractions to percentages for a figure.

    >>> percent([[0.5, 1.0]])
    [[50.0, 100.0]]
    """
    return [[100 * value for value in row] for row in values]
