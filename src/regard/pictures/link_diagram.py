"""Links: what the tokens of a span look at, as lines between two columns of tokens.

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
from typing import Any

import matplotlib
import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from ..attention.attention_map import AttentionMap
from . import fonts, panel_selection
from .figure import Picture, check_path, save
from .layout import line, px, width_of
from .panels import FAINT, INK, LINE

MOST_QUERIES = 64
MOST_KEYS = 40
"""Keys that are all shown, linked or not."""


@dataclass(frozen=True)
class Link:
    query: int
    key: int
    weight: float


def strongest(
    map: AttentionMap, query: slice | int = slice(0, 32), head: int | str = "mean", batch: int = 0, top: int = 3
) -> list[Link]:
    """The strongest keys of each query of a span, strongest first; none for a weight of zero.

    >>> import regard, torch
    >>> q = torch.eye(3)
    >>> _, m = regard.attend(q, q, q, scale=20.0, return_map=True)
    >>> strongest(m, query=1, top=1)
    [Link(query=1, key=1, weight=1.0)]
    """
    span = _span(map, query)
    if top < 1:
        raise ValueError(f"links: top ({top}) must be at least 1, keys of each query.")
    weights = panel_selection.rows("links", map, span, head, batch)  # (queries, Tk)
    values, keys = weights.topk(min(top, weights.shape[-1]), -1)
    return [
        Link(span.start + row, key, weight)
        for row, (own, found) in enumerate(zip(values.tolist(), keys.tolist(), strict=True))
        for weight, key in zip(own, found, strict=True)
        if weight > 0
    ]


def links(
    map: AttentionMap,
    query: slice | int = slice(0, 32),
    *,
    head: int | str = "mean",
    batch: int = 0,
    top: int = 3,
    path: str | os.PathLike[str] | None = None,
    title: str = "",
) -> Picture:
    """A picture of the strongest links of a span: queries at the left, keys at the right, a line's width its weight.

    Of many keys only linked ones are shown, each with its position. Works for maps of any length.

    Args:
        query: the span, a slice or one position; at most 64 tokens.
        head: a number, or "mean" of all.
        top: keys of each query.
        path: also save the picture there (.png, .svg or .pdf).

    Raises:
        ValueError: for a span, head or batch entry that the map does not have.
    """
    path = None if path is None else check_path("links", path)
    span = _span(map, query)
    found = strongest(map, span, head, batch, top)
    keys = map.shape[-1]
    shown = list(range(keys)) if keys <= MOST_KEYS else sorted({link.key for link in found})
    left = _texts(map.query_tokens, range(span.start, span.stop))
    right = _texts(map.key_tokens, shown)
    picture = _paint(found, range(span.start, span.stop), shown, left, right, title)
    if path is not None:
        save(picture, path)
    return picture


def _span(map: AttentionMap, query: slice | int) -> slice:
    queries = map.shape[-2]
    if isinstance(query, int):
        query = slice(query, query + 1 or None)
    start, stop, step = query.indices(queries)
    if step != 1 or not 0 < stop - start <= MOST_QUERIES:
        raise ValueError(
            f"links: query ({query}) must be a span of 1 to {MOST_QUERIES} of the {queries} queries; "
            f"got {max(0, stop - start)}. Choose one, as in query=slice(0, {min(queries, 16)})."
        )
    return slice(start, stop)


def _texts(tokens: Sequence[str] | None, places: Sequence[int]) -> list[str]:
    return ["" if tokens is None else fonts.label(tokens[place], 20) for place in places]


def _rows(shown: Sequence[int]) -> list[float]:
    """Places down the column: half a row between tokens that are not neighbours."""
    gaps = [0.6 * (after - before > 1) for before, after in itertools.pairwise(shown)]
    return [place + gap for place, gap in enumerate(np.cumsum([0, *gaps]).tolist())]


def _paint(
    found: list[Link], queries: Sequence[int], keys: Sequence[int], left: list[str], right: list[str], title: str
) -> Picture:
    texts, families = fonts.fit([*left, *right, title])
    left, right, title = texts[: len(left)], texts[len(left) : -1], texts[-1]
    row, middle = line(9) + 4, px(2.6)
    places = {
        "query": dict(zip(queries, _rows(queries), strict=True)),
        "key": dict(zip(keys, _rows(keys), strict=True)),
    }
    tall = max(max(side.values(), default=0) for side in places.values()) + 1
    columns = [max((width_of(text, 9, families) for text in side if text), default=0) for side in (left, right)]
    number = width_of("0" * len(str(max([*queries, *keys]))), 7, families) + px(0.1)
    edge = [px(0.15) + number + column + px(0.08) for column in columns]
    top, bottom = px(0.36) + (px(0.3) if title else 0), px(0.4)
    width, height = edge[0] + middle + edge[1], top + round(tall * row) + bottom
    picture = Picture.of_pixels(width, height)
    axes = picture.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))  # in pixels
    axes.set_axis_off()
    down = {}
    for side, own in places.items():  # the shorter column stands at the middle
        spare = (tall - max(own.values(), default=0) - 1) / 2
        down[side] = {place: top + (at + spare + 0.5) * row for place, at in own.items()}
    ends = edge[0], edge[0] + middle
    text: dict[str, Any] = {"va": "center", "family": families, "parse_math": False}
    for side, end, way, words in (("query", ends[0], -1, left), ("key", ends[1], 1, right)):
        align = "right" if way < 0 else "left"
        for (place, y), word in zip(down[side].items(), words, strict=True):
            axes.text(end + way * px(0.06), y, word, ha=align, size=9, color=INK, **text)
            beyond = end + way * (px(0.06) + columns[way > 0] + px(0.08 if columns[way > 0] else 0))
            axes.text(beyond, y, str(place), ha=align, size=7, color=FAINT, **text)
        axes.text(end + way * px(0.06), top - row * 0.55, side, ha=align, size=8, color=FAINT, **text)
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.82, max(2, len(queries))))
    for link in sorted(found, key=lambda link: link.weight):  # the strongest on top
        a, b = down["query"][link.query], down["key"][link.key]
        colour = colours[queries.index(link.query)]
        _curve(axes, (ends[0], a), (ends[1], b), link.weight, colour)
    _legend(axes, (ends[0], ends[1]), height - px(0.18))
    if title:
        axes.text(width / 2, px(0.1), title, ha="center", va="top", size=11, color=INK, family=families)
    return picture


def _curve(axes: Any, start: tuple[float, float], end: tuple[float, float], weight: float, colour: Any) -> None:
    bend = 0.45 * (end[0] - start[0])
    points = [start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end]
    curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    alpha = 0.25 + 0.65 * min(1.0, weight)
    axes.add_patch(
        PathPatch(curve, fill=False, edgecolor=colour, linewidth=0.4 + 4 * weight, alpha=alpha, capstyle="butt")
    )


def _legend(axes: Any, ends: tuple[float, float], y: float) -> None:
    """How wide a weight is."""
    step = (ends[1] - ends[0]) / 3
    for place, weight in enumerate((0.05, 0.3, 1.0)):
        x = ends[0] + place * step + px(0.1)
        axes.plot([x, x + px(0.28)], [y, y], color=LINE, linewidth=0.4 + 4 * weight, solid_capstyle="butt")
        axes.text(x + px(0.34), y, f"{weight:g}", va="center", size=7, color=FAINT)
