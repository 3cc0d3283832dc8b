"""Charts of head profiles: one panel of layers × heads for each statistic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from .figure import Picture
from .layer_names import split_common
from .layout import line, px, width_of
from .panels import FAINT, INK, LINE, PAPER

UNITS = {"entropy": "nats", "distance": "tokens", "first": "share", "previous": "share", "same": "share"}
BAR = "#7b4b94"


def draw(names: Sequence[str], measures: Sequence[str], values: np.ndarray, title: str = "") -> Picture:
    """Draw values (layers, heads, measures): bars for one layer, a heatmap for each measure for several layers."""
    layers, heads, _ = values.shape
    one = layers == 1
    down = heads if one else layers
    labels, outside = ([str(head) for head in range(heads)], names[0]) if one else split_common(names)
    gutter = max(width_of(label, 8, ["sans-serif"]) for label in labels) + px(0.14) + (line(9) if outside else 0)
    cell = px(0.17)
    panel = (max(px(0.5), down * cell), px(1.35) if one else max(px(1.3), heads * cell))
    gap, top, bottom = px(0.18 if one else 0.16), px(0.32) + (px(0.3) if title else 0), px(0.1 if one else 0.62)
    width = px(0.1) + gutter + len(measures) * (panel[1] + gap)
    height = top + panel[0] + bottom
    figure = Picture.of_pixels(width, height)
    for index, measure in enumerate(measures):
        left = px(0.1) + gutter + index * (panel[1] + gap)
        axes = figure.add_axes_at(left, bottom, panel[1], panel[0])
        axes.set_title(f"{measure}, {UNITS[measure]}" if measure in UNITS else measure, size=9, color=INK, pad=5)
        (_bars if one else _cells)(axes, values[..., index])
        step = _step(down, panel[0])
        axes.set_yticks(range(0, down, step), labels[::step] if index == 0 else [], size=8, color=INK)
        axes.tick_params(length=2, width=0.6, color=LINE, pad=2.5)
        for spine in axes.spines.values():
            spine.set(color=LINE, linewidth=0.6)
        if index == 0 and outside:
            axes.set_ylabel(outside, size=8, color=FAINT, parse_math=False)
        if not one:
            _bar(figure, axes, left, panel[1])
    if title:
        figure.suptitle(title, y=1 - px(0.08) / height, va="top", size=11, color=INK, parse_math=False)
    return figure


def _bars(axes: Axes, values: np.ndarray) -> None:
    heads, high = values.shape[1], max(float(np.nanmax(values)), 1e-12)
    axes.barh(range(heads), values[0], height=0.66, color=BAR)
    axes.set_ylim(heads - 0.5, -0.5)
    axes.set_xlim(0, high * 1.32)
    for head, value in enumerate(values[0]):
        axes.annotate(
            f"{value:.2f}" if high < 10 else f"{value:.0f}",
            (value, head),
            (3, 0),
            textcoords="offset points",
            size=7,
            va="center",
            color=FAINT,
        )
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _cells(axes: Axes, values: np.ndarray) -> None:
    high = float(np.nanmax(values))
    cmap = PAPER.with_extremes(bad="white")
    axes.imshow(values, cmap=cmap, vmin=0, vmax=high if high > 0 else 1, aspect="auto", interpolation="nearest")
    heads = values.shape[1]
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if heads / step <= 8)
    axes.set_xticks(range(0, heads, step), [str(head) for head in range(0, heads, step)], size=7, color=INK)


def _bar(figure: Picture, axes: Axes, left: int, width: int) -> None:
    """Draw a colour bar below the panel. Every measure has its own scale."""
    below = figure.add_axes_at(left, px(0.3), width, px(0.06))
    colour_bar = figure.colorbar(axes.images[0], cax=below, orientation="horizontal")
    colour_bar.outline.set(linewidth=0.4, color=LINE)
    _, high = axes.images[0].get_clim()
    colour_bar.set_ticks([0, high], labels=["0", f"{high:.2g}" if high < 100 else f"{high:.0f}"])
    below.tick_params(length=2, width=0.5, color=LINE, labelsize=7, labelcolor=FAINT, pad=2)
    below.get_xticklabels()[0].set_horizontalalignment("left")
    below.get_xticklabels()[1].set_horizontalalignment("right")


def _step(count: int, room: int) -> int:
    return max(1, -(-count * line(8) // room))
