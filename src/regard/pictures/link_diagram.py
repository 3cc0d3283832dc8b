"""Link diagrams: the strongest attention links of a span, as lines between two columns of tokens.

query            key
  it ──────╲      ⋯
           ╲     12  animal
was ───────── ╲──14  it
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import matplotlib
import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from ..attention.attention_map import AttentionMap
from . import fonts, panel_selection
from .figure import Picture, check_path, save
from .heatmap import name_of
from .layout import line, px, width_of
from .panels import FAINT, INK, LINE

MAX_QUERIES = 64
MAX_UNLINKED_KEYS = 40
"""Up to this number, all keys are shown, even those without a link."""


@dataclass(frozen=True)
class Link:
    """A query, a key and the weight between them."""

    query: int
    key: int
    weight: float


def strongest(
    map: AttentionMap, query: slice | int = slice(0, 32), head: int | str = "mean", batch: int = 0, top: int = 3
) -> list[Link]:
    """Return the strongest links of each query of a span, strongest first, without zero weights.

    >>> import regard, torch
    >>> q = torch.eye(3)
    >>> _, m = regard.attend(q, q, q, scale=20.0, return_map=True)
    >>> strongest(m, query=1, top=1)
    [Link(query=1, key=1, weight=1.0)]
    """
    span = _span(map, query)
    if top < 1:
        raise ValueError(f"links: top ({top}) must be at least 1: the number of keys for each query.")
    weights = panel_selection.rows("links", map, span, head, batch)  # (queries, Tk)
    values, keys = weights.topk(min(top, weights.shape[-1]), -1)
    return [
        Link(span.start + row, key, weight)
        for row, (weights_, keys_) in enumerate(zip(values.tolist(), keys.tolist(), strict=True))
        for weight, key in zip(weights_, keys_, strict=True)
        if weight > 0
    ]


class LinkOptions(TypedDict, total=False):
    """Keyword arguments of `links`."""

    query: slice | int
    head: int | str
    batch: int
    top: int
    path: str | os.PathLike[str] | None
    title: str | None


def links(
    map: AttentionMap,
    query: slice | int = slice(0, 32),
    *,
    head: int | str = "mean",
    batch: int = 0,
    top: int = 3,
    path: str | os.PathLike[str] | None = None,
    title: str | None = None,
) -> Picture:
    """Draw the strongest links of a span: queries at the left, keys at the right. The line width shows the weight.

    If there are many keys, only those with a link are shown, each with its position. Maps may have any length. If the
    span is only a part of the queries, the title names it.

    Args:
        query: the span, as a slice or one index; at most 64 tokens.
        head: index of a head, or "mean" of all.
        top: number of keys for each query.
        path: also save the picture to this file (.png, .svg or .pdf).
        title: default: the layer of the map, if it is set, and the head.

    Raises:
        ValueError: if span, head or batch entry are out of range.

    >>> import regard, torch
    >>> x = torch.randn(3, 4, 8)                                        # (heads, tokens, width)
    >>> _, m = regard.attend(x, x, x, return_map=True)
    >>> picture = links(m.tokens(query=list("abcd"), key=list("abcd")), head=0, top=1, title="head 0")
    >>> [text.get_text() for text in picture.axes[0].texts][:3]
    ['a', '0', 'b']
    """
    path = None if path is None else check_path("links", path)
    span = _span(map, query)
    strongest_links = strongest(map, span, head, batch, top)
    keys = map.shape[-1]
    shown = list(range(keys)) if keys <= MAX_UNLINKED_KEYS else sorted({link.key for link in strongest_links})
    left = _texts(map.query_tokens, range(span.start, span.stop))
    right = _texts(map.key_tokens, shown)
    if title is None:
        heads = "" if map.ndim == 2 else "mean of heads" if head == "mean" else f"head {head}"
        title = ", ".join(filter(None, (name_of(map), heads)))
    if span.stop - span.start < map.shape[-2]:
        part = f"tokens {span.start} to {span.stop - 1} of {map.shape[-2]:,}"
        title = f"{title}\n{part}" if title else part
    picture = _paint(strongest_links, range(span.start, span.stop), shown, left, right, title)
    if path is not None:
        save(picture, path)
    return picture


def _span(map: AttentionMap, query: slice | int) -> slice:
    queries = map.shape[-2]
    if isinstance(query, int):
        query = slice(query, query + 1 or None)
    start, stop, step = query.indices(queries)
    if step != 1 or not 0 < stop - start <= MAX_QUERIES:
        raise ValueError(
            f"links: query ({query}) must be a span of 1 to {MAX_QUERIES} of the {queries} queries; "
            f"got {max(0, stop - start)}. Select one, for example query=slice(0, {min(queries, 16)})."
        )
    return slice(start, stop)


def _texts(tokens: Sequence[str] | None, indices: Sequence[int]) -> list[str]:
    return ["" if tokens is None else fonts.label(tokens[index], 20) for index in indices]


def _rows(shown: Sequence[int]) -> list[float]:
    """Return vertical positions, with a gap between tokens that are not neighbours."""
    gaps = [0.6 * (after - before > 1) for before, after in itertools.pairwise(shown)]
    return [row + gap for row, gap in enumerate(np.cumsum([0, *gaps]).tolist())]


def _paint(
    links: list[Link], queries: Sequence[int], keys: Sequence[int], left: list[str], right: list[str], title: str
) -> Picture:
    texts, families = fonts.fit([*left, *right, title])
    left, right, title = texts[: len(left)], texts[len(left) : -1], texts[-1]
    row, middle = line(9) + 4, px(2.6)
    positions = {
        "query": dict(zip(queries, _rows(queries), strict=True)),
        "key": dict(zip(keys, _rows(keys), strict=True)),
    }
    tall = max(max(side.values(), default=0) for side in positions.values()) + 1
    columns = [max((width_of(text, 9, families) for text in side if text), default=0) for side in (left, right)]
    number = width_of("0" * len(str(max([*queries, *keys]))), 7, families) + px(0.1)
    edge = [px(0.15) + number + column + px(0.08) for column in columns]
    lines = title.split("\n") if title else []
    top, bottom = px(0.36) + px(0.3) * len(lines), px(0.4)
    widest = max((width_of(text, 11, families) for text in lines), default=0) + px(0.3)
    middle = max(middle, widest - edge[0] - edge[1])
    width, height = edge[0] + middle + edge[1], top + round(tall * row) + bottom
    picture = Picture.of_pixels(width, height)
    axes = picture.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))  # in pixels
    axes.set_axis_off()
    down = {}
    for side, rows in positions.items():  # center the shorter column
        spare = (tall - max(rows.values(), default=0) - 1) / 2
        down[side] = {index: top + (at + spare + 0.5) * row for index, at in rows.items()}
    ends = edge[0], edge[0] + middle
    text: dict[str, Any] = {"va": "center", "family": families, "parse_math": False}
    for side, end, sign, words in (("query", ends[0], -1, left), ("key", ends[1], 1, right)):
        align = "right" if sign < 0 else "left"
        for (index, y), word in zip(down[side].items(), words, strict=True):
            axes.text(end + sign * px(0.06), y, word, ha=align, size=9, color=INK, **text)
            beyond = end + sign * (px(0.06) + columns[sign > 0] + px(0.08 if columns[sign > 0] else 0))
            axes.text(beyond, y, str(index), ha=align, size=7, color=FAINT, **text)
        axes.text(end + sign * px(0.06), top - row * 0.55, side, ha=align, size=8, color=FAINT, **text)
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.82, max(2, len(queries))))
    for link in sorted(links, key=lambda link: link.weight):  # the strongest on top
        a, b = down["query"][link.query], down["key"][link.key]
        colour = colours[queries.index(link.query)]
        _curve(axes, (ends[0], a), (ends[1], b), link.weight, colour)
    _legend(axes, (ends[0], ends[1]), height - px(0.18))
    if title:
        axes.text(width / 2, px(0.1), title, ha="center", va="top", size=11, color=INK, family=families)
    return picture


def _curve(axes: Any, start: tuple[float, float], end: tuple[float, float], weight: float, colour: Any) -> None:
    offset = 0.45 * (end[0] - start[0])
    points = [start, (start[0] + offset, start[1]), (end[0] - offset, end[1]), end]
    curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    alpha = 0.25 + 0.65 * min(1.0, weight)
    axes.add_patch(
        PathPatch(curve, fill=False, edgecolor=colour, linewidth=0.4 + 4 * weight, alpha=alpha, capstyle="butt")
    )


def _legend(axes: Any, ends: tuple[float, float], y: float) -> None:
    """Draw a legend of the line widths."""
    step = (ends[1] - ends[0]) / 3
    for index, weight in enumerate((0.05, 0.3, 1.0)):
        x = ends[0] + index * step + px(0.1)
        axes.plot([x, x + px(0.28)], [y, y], color=LINE, linewidth=0.4 + 4 * weight, solid_capstyle="butt")
        axes.text(x + px(0.34), y, f"{weight:g}", va="center", size=7, color=FAINT)
