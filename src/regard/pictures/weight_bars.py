"""A bar chart of the strongest weights of one token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import fonts
from .figure import Picture
from .layout import px, width_of
from .panels import INK, LINE

BAR = "#7b4b94"
ROW = 0.17
"""Height of a row in inches."""


def draw(names: Sequence[str], weights: np.ndarray, title: str) -> Picture:
    """Draw weights (n,) as horizontal bars, the first at the top, with names on the left and numbers on the right."""
    (*names, title), families = fonts.fit([*names, title])
    gutter = max(width_of(name, 8, families) for name in names) + px(0.2)
    height, top = max(1, len(names)) * px(ROW), px(0.38)
    figure = Picture.of_pixels(round(gutter + px(3.4)), round(height + top + px(0.1)))
    axes = figure.add_axes_at(gutter, px(0.1), px(3.2), height)
    axes.barh(range(len(names)), weights, height=0.66, color=BAR)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, max(float(weights.max()), 1e-12) * 1.25)
    axes.set_xticks([])
    axes.set_yticks(range(len(names)), list(names), size=8, color=INK, family=families, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.6)
    for row, weight in enumerate(weights):
        axes.annotate(
            f"{weight:.3f}", (weight, row), (3, 0), textcoords="offset points", va="center", size=8, color=INK
        )
    axes.set_title(title, size=9, color=INK, pad=5, family=families, parse_math=False)
    return figure
