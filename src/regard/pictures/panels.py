"""Draw a sheet of panels as a matplotlib figure, with labels and one colour bar.

Figures are created without pyplot and its global state, so servers and threads can draw them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from .figure import Picture
from .layout import Layout, Sheet, compute_layout, line, px, width_of

INK, FAINT, LINE, HAIR, NOTHING = "#262626", "#6e6e6e", "#b8b8b8", "#ebebeb", "#e9e9ec"
MIN_LINED_CELL = 20  # minimum cell size in pixels for lines between cells
MAX_TEXTS = 1000  # maximum number of weights written by default: each takes a millisecond
DECADES = 6  # maximum range of a logarithmic scale
# Zero is white; above it, matplotlib's reversed magma, which darkens evenly.
PAPER = LinearSegmentedColormap.from_list(
    "paper", np.vstack([np.ones(4), matplotlib.colormaps["magma"]([0.86, 0.74, 0.62, 0.5, 0.38, 0.26, 0.13, 0.02])])
)


@dataclass(frozen=True)
class Style:
    """Style of the cells. If None, `limits` are zero and the largest weight, and weights are written if they fit."""

    cmap: str | Colormap
    scale: str = "linear"
    limits: tuple[float, float] | None = None
    annotate: bool | None = None
    reduce: str = "max"


def paint(sheet: Sheet, style: Style, size: tuple[float, float] | None = None) -> Figure:
    """Draw the sheet as a figure of `size` (width, height) in inches, or of a suitable size.

    >>> sheet = Sheet(lambda rows, columns: np.eye(rows)[None], (3, 3), (None, None), ("query", "key"), ["head 0"], 1)
    >>> [axes.get_title() for axes in paint(sheet, Style("Reds")).axes]  # the second is the colour bar
    ['head 0', '']
    """
    layout = compute_layout(sheet, size)
    sheet = sheet.legible()
    cells = sheet.cells(*layout.cells)  # (panels, rows, columns)
    if style.scale == "log":
        cells = np.ma.masked_less_equal(cells, 0)
    norm = norm_of(cells, style)
    cmap = matplotlib.colormaps.get_cmap(style.cmap).with_extremes(bad=NOTHING)
    height, width = layout.figure
    figure = Picture.of_pixels(width, height)
    first: Axes | None = None
    for index in range(len(sheet.titles)):
        row, column = divmod(index, sheet.columns)
        left = layout.left + column * (layout.panel[1] + layout.gap[1])
        bottom = layout.bottom + (sheet.rows - 1 - row) * (layout.panel[0] + layout.gap[0])
        axes = figure.add_axes_at(left, bottom, layout.panel[1], layout.panel[0], sharex=first, sharey=first)
        first = first or axes
        _fill(axes, cells[index], norm, cmap, sheet, layout)
        _name(axes, layout, sheet, index)
        if style.annotate or (style.annotate is None and _numbers_fit(layout, sheet)):
            _write_weights(axes, cells[index], norm, cmap, style)
    _add_colour_bar(figure, layout, sheet, style)
    if sheet.title:
        figure.suptitle(sheet.title, y=1 - px(0.1) / height, va="top", size=12, color=INK, family=layout.families)
    return figure


def norm_of(cells: np.ndarray, style: Style) -> Normalize:
    """Return one colour scale for all panels."""
    values = np.ma.masked_invalid(cells).compressed()
    high = float(values.max()) if values.size else 1.0
    if style.scale == "log":
        low = max(float(values.min()), high / 10**DECADES) if values.size else 0.1
        return LogNorm(*(style.limits or (low if low < high else high / 10, high)), clip=True)
    low = min(0.0, float(values.min())) if values.size else 0.0
    return Normalize(*(style.limits or (low, high if high > low else low + 1)))


def _fill(axes: Axes, cells: np.ndarray, norm: Normalize, cmap: Colormap, sheet: Sheet, layout: Layout) -> None:
    """Draw the cells in token coordinates, with thin lines between them if they are large enough."""
    queries, keys = sheet.lengths
    extent = (-0.5, keys - 0.5, queries - 0.5, -0.5)
    axes.imshow(cells, cmap=cmap, norm=norm, extent=extent, aspect="auto", interpolation="nearest", zorder=1)
    axes.set_axisbelow(True)  # draw ticks, frame and grid below the cells, so that edge cells are fully visible
    if min(layout.cell) >= MIN_LINED_CELL and layout.cells == sheet.lengths:
        for i in range(1, queries):
            axes.axhline(i - 0.5, color=HAIR, linewidth=0.6)
        for i in range(1, keys):
            axes.axvline(i - 0.5, color=HAIR, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.9, zorder=0.5)


def _name(axes: Axes, layout: Layout, sheet: Sheet, index: int) -> None:
    """Draw the title, and at the left and bottom of the grid also ticks and axis names."""
    text: dict[str, Any] = {"family": layout.families, "color": INK, "size": layout.points}
    verbatim: dict[str, Any] = {"parse_math": False, "usetex": False}  # do not interpret $ and _ in tokens
    queries, keys = layout.ticks
    rotated: dict[str, Any] = {"rotation": keys.rotation, "rotation_mode": "anchor"}
    rotated |= {"ha": "right", "va": "center"} if keys.rotation else {"ha": "center", "va": "top"}
    axes.set_yticks(queries.positions, queries.labels, **text, **verbatim)
    axes.set_xticks(keys.positions, keys.labels, **text, **verbatim, **rotated)
    leftmost, lowest = index % sheet.columns == 0, index + sheet.columns >= len(sheet.titles)
    axes.tick_params(length=2.5, width=0.6, color=LINE, pad=2.5, labelleft=leftmost, labelbottom=lowest)
    if leftmost:
        axes.set_ylabel(sheet.names[0], **{**text, "color": FAINT})
    if lowest:
        axes.set_xlabel(sheet.names[1], **{**text, "color": FAINT})
    if sheet.titles[index]:
        size = min(10, layout.points + 1)
        size *= min(1, layout.panel[1] / width_of(sheet.titles[index], size, layout.families))
        axes.set_title(sheet.titles[index], pad=4, **{**text, "size": size})


def _numbers_fit(layout: Layout, sheet: Sheet) -> bool:
    height, width = layout.cell
    if layout.cells[0] * layout.cells[1] * len(sheet.titles) > MAX_TEXTS:
        return False
    return layout.cells == sheet.lengths and height > line(7) and width > 1.3 * width_of("0.00", 7, layout.families)


def _write_weights(axes: Axes, cells: np.ndarray, norm: Normalize, cmap: Colormap, style: Style) -> None:
    for (query, key), weight in np.ndenumerate(cells):
        if weight is np.ma.masked or not np.isfinite(weight):
            continue
        red, green, blue, _ = cmap(norm(weight))
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK
        text = f"{weight:.2f}" if style.scale == "linear" else f"{weight:.0e}"
        axes.text(key, query, text, ha="center", va="center", size=7, color=ink, family="DejaVu Sans")


def _add_colour_bar(figure: Picture, layout: Layout, sheet: Sheet, style: Style) -> None:
    tall = sheet.rows * layout.panel[0] + (sheet.rows - 1) * layout.gap[0]
    bar = min(tall, max(px(1.2), round(0.6 * tall)))
    left = layout.left + sheet.columns * layout.panel[1] + (sheet.columns - 1) * layout.gap[1] + px(0.16)
    axes = figure.add_axes_at(left, layout.bottom + (tall - bar) / 2, px(0.13), bar)
    colour_bar = figure.colorbar(figure.axes[0].images[0], cax=axes)
    colour_bar.outline.set(linewidth=0.5, color=LINE)
    axes.tick_params(labelsize=min(8, layout.points), length=2.5, width=0.6, color=LINE, labelcolor=INK)
    pooled = [-(-n // cells) for n, cells in zip(sheet.lengths, layout.cells, strict=True)]
    label = "weight" if max(pooled) == 1 else f"weight ({style.reduce} of {pooled[0]} × {pooled[1]})"
    colour_bar.set_label(label, size=min(8, layout.points), color=FAINT)
