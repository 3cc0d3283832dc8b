"""Bounds of the settings of data."""

from __future__ import annotations


def outside(name: str, value: float, low: int, high: int) -> list[str]:
    """A sentence if a setting lies outside its bounds.

    >>> outside("tokens", 0, 1, 4096), outside("tokens", 1500, 1, 4096)
    (['data: tokens (0) must be at least 1.'], [])
    """
    if value < low:
        return [f"data: {name} ({value}) must be at least {low}."]
    return [] if value <= high else [f"data: {name} ({value}) must be at most {high:,}."]
