"""A grid of thumbnails: layers × heads.

               0     1     2     3      head
         0    ┌──┐  ┌──┐  ┌──┐  ┌──┐
              └──┘  └──┘  └──┘  └──┘   ┌─┐ 1
         1    ┌──┐  ┌──┐  ┌──┐  ┌──┐   │ │
              └──┘  └──┘  └──┘  └──┘   └─┘ 0.001
    layer

All thumbnails are drawn as one image instead of separate axes, so hundreds of heads take as long as one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from torch import Tensor

from ..attention.attention_map import AttentionMap
from . import fonts, panel_selection
from .figure import Picture, check_path, save
from .layer_names import split_common
from .layout import line, px, width_of
from .panel_selection import Selection
from .panels import FAINT, INK, LINE, NOTHING, PAPER, Style, norm_of

MAX_PANELS = 2048
GAP = 6
"""Pixels between thumbnails."""
DECADES = 4
"""Range of the logarithmic scale. Smaller weights get the lowest colour."""
EMPTY = -1.0
"""Value of the gaps between thumbnails."""


class GridOptions(TypedDict, total=False):
    """Keyword arguments of `grid`."""

    heads: Selection
    tokens: slice | None
    batch: int
    reduce: str
    scale: str
    limits: tuple[float, float] | None
    cmap: str | Colormap
    side: int | None
    title: str


def grid(
    maps: AttentionMap | Sequence[tuple[str, AttentionMap]],
    path: str | os.PathLike[str] | None = None,
    *,
    heads: Selection = None,
    tokens: slice | None = None,
    batch: int = 0,
    reduce: str = "max",
    scale: str = "log",
    limits: tuple[float, float] | None = None,
    cmap: str | Colormap = PAPER,
    side: int | None = None,
    title: str = "",
) -> Picture:
    """Draw thumbnails of layers × heads with one colour scale. Long maps are pooled with O(N) memory.

    Args:
        maps: one map, or a non-empty sequence of (name, map) pairs.
        path: also save the picture to this file (.png, .svg or .pdf).
        heads: indices of heads; None for all.
        tokens: restrict queries and keys to this slice.
        batch: index of the batch entry.
        reduce: pooling: "max" keeps every strong link visible; "mean", "sum".
        scale: "log" emphasizes small weights and draws zeros in grey; "linear".
        limits: ends of the colour scale, to compare pictures.
        side: pixels of the longer side of a thumbnail.

    Raises:
        ValueError: if a selection is out of range or an option is unknown.

    >>> import regard
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> picture = seen.grid(scale="linear")
    >>> [tick.get_text() for tick in picture.axes[0].get_yticklabels()]
    ['0', '1', '2']
    """
    path = None if path is None else check_path("grid", path)
    layers = [("", maps)] if isinstance(maps, AttentionMap) else maps
    panel_selection.check_options("grid", reduce, scale, limits)
    columns = [panel_selection.positions("grid", "heads", heads, m.shape[-3] if m.ndim > 2 else 1) for _, m in layers]
    all_heads = sorted({head for row in columns for head in row})
    if len(layers) * len(all_heads) > MAX_PANELS:
        raise ValueError(
            f"grid: panels ({len(layers)} layers × {len(all_heads)} heads) must be at most {MAX_PANELS}. "
            "Select some: layers=range(0, 12), heads=[0, 1]."
        )
    side = max(64, min(224, 1500 // len(all_heads))) if side is None else side
    if not 8 <= side <= 1024:
        raise ValueError(f"grid: side ({side}) must lie in 8…1024 pixels.")
    rows = [
        thumbnails(m, indices, batch, tokens, side, reduce) for (_, m), indices in zip(layers, columns, strict=True)
    ]
    sheet = _mosaic(rows, [[all_heads.index(head) for head in indices] for indices in columns], len(all_heads))
    style = Style(cmap, scale, limits, reduce=reduce)
    picture = _paint(sheet, [row.shape[1] for row in rows], [name for name, _ in layers], all_heads, style, title)
    if path is not None:
        save(picture, path)
    return picture


def thumbnails(m: AttentionMap, heads: list[int], batch: int, tokens: slice | None, side: int, reduce: Any) -> Tensor:
    """Return thumbnails, (heads, height, width), of at most `side` pixels. Small maps are enlarged, others pooled."""
    rows, cols = (slice(*(tokens or slice(None)).indices(size)[:2]) for size in m.shape[-2:])
    lengths = [max(0, span.stop - span.start) for span in (rows, cols)]
    if not all(lengths) or (tokens is not None and tokens.step not in (None, 1)):
        raise ValueError(f"grid: tokens ({tokens}) must be a range of the {m.shape[-2]} queries, {m.shape[-1]} keys.")
    longest = max(lengths)
    pixels = max(1, side // longest)  # per cell
    out = [max(1, min(size, side * size // longest)) for size in lengths]

    def pooled(part: AttentionMap) -> Tensor:
        if part.ndim > 2 and part.request.separable and len(heads) < part.shape[-3]:
            return torch.stack([part.at(head).tile(rows, cols, (out[0], out[1]), reduce) for head in heads])
        tiles = part.tile(rows, cols, (out[0], out[1]), reduce)
        return tiles[..., heads, :, :] if part.ndim > 2 else tiles

    tiles = panel_selection.entry("grid", m, batch, pooled)  # (heads, rows, cols)
    return tiles.float().cpu().repeat_interleave(pixels, -2).repeat_interleave(pixels, -1)


def _mosaic(rows: list[Tensor], columns_of: list[list[int]], columns: int) -> np.ndarray:
    """Arrange the weights of all thumbnails on one sheet, with EMPTY between them."""
    width = max(row.shape[2] for row in rows)
    height = sum(row.shape[1] for row in rows) + GAP * (len(rows) - 1)
    sheet = np.full((height, columns * (width + GAP) - GAP), EMPTY, np.float32)
    top = 0
    for row, indices in zip(rows, columns_of, strict=True):
        for column, head in zip(indices, row.numpy(), strict=True):
            left = column * (width + GAP)
            sheet[top : top + head.shape[0], left : left + head.shape[1]] = head
        top += row.shape[1] + GAP
    return sheet


def _paint(
    sheet: np.ndarray, heights: list[int], names: list[str], heads: Iterable[int], style: Style, title: str
) -> Picture:
    heads = list(heads)
    labels, outside = split_common(names)
    (*labels, outside, title), families = fonts.fit([*labels, outside, title])
    gutter = px(0.1) + max(width_of(label, 8, families) if label else 0 for label in labels)
    gutter += px(0.06) + (line(9) if outside else 0)
    top, right, bottom = px(0.4) + (px(0.3) if title else 0), px(0.95), px(0.12)
    height, width = sheet.shape[0] + top + bottom, sheet.shape[1] + gutter + right
    height = max(height, top + bottom + px(0.9))
    picture = Picture.of_pixels(width, height)
    low = height - top - sheet.shape[0]
    axes = picture.add_axes_at(gutter, low, sheet.shape[1], sheet.shape[0])
    cells = sheet[sheet != EMPTY]
    if style.scale == "log":
        cells = np.maximum(cells[cells > 0], cells.max() / 10**DECADES)
    norm = norm_of(cells, style)
    cmap = matplotlib.colormaps.get_cmap(style.cmap)
    assert norm.vmin is not None, "norm_of sets the limits"
    colours = cmap(norm(np.maximum(sheet, norm.vmin)), bytes=True)
    if style.scale == "log":
        colours[sheet == 0] = np.round(255 * np.array(matplotlib.colors.to_rgba(NOTHING)))
    colours[sheet == EMPTY] = 255
    extent = (-0.5, sheet.shape[1] - 0.5, sheet.shape[0] - 0.5, -0.5)
    axes.imshow(colours, extent=extent, aspect="auto", interpolation="nearest")
    _label(axes, heights, labels, outside, heads, families)
    _frame(axes, sheet)
    tall = min(sheet.shape[0], px(2.2))
    bar = picture.add_axes_at(gutter + sheet.shape[1] + px(0.16), low + sheet.shape[0] - tall, px(0.11), tall)
    colour_bar = picture.colorbar(matplotlib.cm.ScalarMappable(norm, cmap), cax=bar)
    colour_bar.outline.set(linewidth=0.5, color=LINE)
    bar.tick_params(which="both", labelsize=7, length=2, width=0.5, color=LINE, labelcolor=INK)
    bar.minorticks_off()
    colour_bar.set_label("weight" if style.reduce == "max" else f"weight ({style.reduce})", size=7, color=FAINT)
    if title:
        picture.suptitle(title, y=1 - px(0.08) / height, va="top", size=11, color=INK, family=families)
    return picture


def _label(
    axes: Axes, heights: list[int], labels: list[str], outside: str, heads: list[int], families: list[str]
) -> None:
    """Label heads at the top and layers at the left. Some labels are omitted if they would overlap."""
    text: dict[str, Any] = {"size": 8, "color": INK, "family": families, "parse_math": False}
    tops = np.cumsum([0, *(height + GAP for height in heights[:-1])])
    middles = tops + np.array(heights) / 2 - 0.5
    step = max(1, -(-line(8) // (min(heights) + GAP)))
    axes.set_yticks(middles[::step], labels[::step], **text)
    pitch = (axes.get_xlim()[1] - axes.get_xlim()[0] + GAP) / len(heads)
    axes.set_xticks(
        [pitch * column + (pitch - GAP) / 2 - 0.5 for column in range(len(heads))], [*map(str, heads)], **text
    )
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", size=8, color=FAINT, labelpad=2)
    axes.tick_params(length=0, pad=3)
    if outside:
        axes.set_ylabel(outside, size=8, color=FAINT, family=families, labelpad=4, parse_math=False)


def _frame(axes: Axes, sheet: np.ndarray) -> None:
    """Draw a thin line around each thumbnail, so that white thumbnails have visible edges."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    inside = np.pad(sheet != EMPTY, 1)
    edge = np.zeros_like(inside)
    for axis in (0, 1):
        for shift in (-1, 1):
            edge |= np.roll(inside, shift, axis) & ~inside
    line_ = np.zeros((*edge.shape, 4), np.uint8)
    line_[edge] = (184, 184, 184, 255)
    height, width = sheet.shape
    axes.imshow(
        line_, extent=(-1.5, width + 0.5, height + 0.5, -1.5), aspect="auto", interpolation="nearest", clip_on=False
    )
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
