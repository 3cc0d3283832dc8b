"""Layout of the panels of a picture, in whole pixels.

All cells of a panel have the same integer size in pixels. A matrix with more cells than its panel has pixels is pooled
to cells of two pixels, so that every strong link stays visible.

               title
            head 0     head 1
    q  a   ┌───────┐  ┌───────┐  ┌─┐ 1
    u  b   │ cells │  │ cells │  │ │
    e  c   └───────┘  └───────┘  └─┘ 0
            a  b  c    a  b  c
              key        key
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

from . import fonts

DPI = 160
POOLED = 2  # pixels of a pooled cell
MAX_TICKS = 12  # maximum number of ticks on an axis of positions
MAX_SQUARE_RATIO = 4  # a matrix with a larger aspect ratio does not have square cells
Pair = tuple[int, int]  # down, across: rows and columns, heights and widths


@dataclass(frozen=True)
class Sheet:
    """The contents of a picture: one panel of Tq × Tk cells for each title, with `columns` panels per row."""

    cells: Callable[[int, int], np.ndarray]  # number of rows and columns of cells → (panels, rows, columns)
    lengths: Pair  # Tq, Tk
    tokens: tuple[Sequence[str] | None, Sequence[str] | None]
    names: tuple[str, str]  # of the two axes
    titles: Sequence[str]  # "" for a panel without a title
    columns: int
    title: str = ""

    def legible(self) -> Sheet:
        """Return the sheet with titles and names that the available fonts can draw."""
        *titles, down, across, title = fonts.fit([*self.titles, *self.names, self.title])[0]
        return replace(self, titles=titles, names=(down, across), title=title)

    @property
    def rows(self) -> int:
        """Number of rows of panels."""
        return -(-len(self.titles) // self.columns)


@dataclass(frozen=True)
class Ticks:
    """The labels of one axis."""

    positions: list[int]
    labels: list[str]
    rotation: int
    extent: int  # pixels from the panel to the far end of the labels


@dataclass(frozen=True)
class Layout:
    """Positions and sizes in pixels, except for `points`, the font size of the labels."""

    cells: Pair
    cell: Pair
    ticks: tuple[Ticks, Ticks]
    families: list[str]
    points: float
    left: int
    bottom: int
    gap: Pair
    figure: Pair

    @property
    def panel(self) -> Pair:
        """Height and width of a panel."""
        return self.cells[0] * self.cell[0], self.cells[1] * self.cell[1]


def compute_layout(sheet: Sheet, size: tuple[float, float] | None = None) -> Layout:
    """Compute the layout of a sheet for `size` (width, height) in inches, or for a suitable size.

    >>> blank = lambda rows, columns: np.zeros((1, rows, columns))
    >>> sheet = Sheet(blank, (50_000, 50_000), (None, None), ("query", "key"), titles=[""], columns=1)
    >>> layout = compute_layout(sheet)
    >>> layout.cells, layout.cell
    ((544, 544), (2, 2))
    """
    titled = line(10) if any(sheet.titles) else 0
    gap = (titled + px(0.12), px(0.14))
    top, right = px(0.12) + titled + (px(0.3) if sheet.title else 0), px(0.85)
    space = _preferred_size(sheet) if size is None else (px(size[1]) // sheet.rows, px(size[0]) // sheet.columns)
    for attempt in range(1 if size is None else 3):  # margins depend on labels, labels on space, space on margins
        cells, cell = _divide(sheet.lengths, space)
        points = _points(min(cell))
        ticks, families = _label(sheet, (cells[0] * cell[0], cells[1] * cell[1]), points)
        left, bottom = (px(0.12) + ticks[i].extent + (line(points) if sheet.names[i] else 0) for i in (0, 1))
        if size is not None and attempt < 2:
            down = px(size[1]) - top - bottom - gap[0] * (sheet.rows - 1)
            across = px(size[0]) - left - right - gap[1] * (sheet.columns - 1)
            space = (max(px(0.4), down // sheet.rows), max(px(0.4), across // sheet.columns))
    height = top + bottom + sheet.rows * cells[0] * cell[0] + (sheet.rows - 1) * gap[0]
    width = left + right + sheet.columns * cells[1] * cell[1] + (sheet.columns - 1) * gap[1]
    if size is not None:  # center the panels in the remaining pixels
        left += max(0, (px(size[0]) - width) // 2)
        bottom += max(0, (px(size[1]) - height) // 2)
        height, width = max(height, px(size[1])), max(width, px(size[0]))
    return Layout(cells, cell, ticks, families, points, left, bottom, gap, (height, width))


def px(inches: float) -> int:
    """Convert inches to pixels."""
    return round(inches * DPI)


def line(points: float) -> int:
    """Return the height of a line of text in pixels."""
    return round(points * 1.3 * DPI / 72)


def _points(cell: int) -> float:
    """Return a font size as high as a cell if that is readable. Otherwise some labels are omitted, and it is 8."""
    exact = cell * 72 / (1.3 * DPI)
    return min(10.0, exact) if exact >= 6 else 8.0


def width_of(text: str, points: float, families: list[str]) -> int:
    """Return the width of a text in pixels."""
    properties = FontProperties(family=families, size=points)
    width: float = RendererAgg(1, 1, DPI).get_text_width_height_descent(text, properties, False)[0]
    return round(width)


def _preferred_size(sheet: Sheet) -> Pair:
    """Return the preferred size of a panel: large cells for a small matrix, most of a page for a large one."""
    alone = len(sheet.titles) == 1
    longest = max(sheet.lengths)
    limit = 6.8 if alone else min(3.4, max(1.8, 13 / sheet.columns))
    side = min(limit, max(1.2, longest * (0.62 if alone else 0.36)))
    sizes = []
    for length, tokens in zip(sheet.lengths, sheet.tokens, strict=True):
        least = max(0.45, 0.15 * min(length, 30) if tokens else 0)  # a narrow matrix needs space for its labels
        sizes.append(px(max(min(side, least), side * length / longest)))
    return sizes[0], sizes[1]


def _divide(lengths: Pair, space: Pair) -> tuple[Pair, Pair]:
    """Return the number of cells and the size of a cell in pixels."""
    square = max(lengths) <= MAX_SQUARE_RATIO * min(lengths)
    if square:
        scale = min(space[0] / lengths[0], space[1] / lengths[1])
        space = (max(1, round(scale * lengths[0])), max(1, round(scale * lengths[1])))
    pooled = [length > limit for length, limit in zip(lengths, space, strict=True)]
    if square and any(pooled):  # due to rounding, one side may just fit
        pooled = [True, True]
    rows, columns = (
        min(length, max(1, limit // POOLED)) if is_pooled else length
        for length, limit, is_pooled in zip(lengths, space, pooled, strict=True)
    )
    cells = (rows, columns)
    cell = (space[0] // cells[0], space[1] // cells[1])
    return cells, (min(cell), min(cell)) if square else cell


def _label(sheet: Sheet, panel: Pair, points: float) -> tuple[tuple[Ticks, Ticks], list[str]]:
    """Return the ticks of both axes, as many as fit, and the font families for labels and titles."""
    texts: list[list[str]] = []
    positions: list[list[int]] = []
    for axis, (length, tokens) in enumerate(zip(sheet.lengths, sheet.tokens, strict=True)):
        need: float = line(points)
        if tokens is None and length > MAX_TICKS:
            need = max(need, panel[axis] / MAX_TICKS)
        if tokens is None and axis == 1:  # numbers are not rotated
            need = max(need, (len(str(length - 1)) * 0.64 + 0.8) * points * DPI / 72)
        step = _round_step(length * need / panel[axis] - 1e-9)
        positions.append(list(range(0, length, step)))
        texts.append([_text(tokens, position, step) for position in positions[axis]])
    drawn, families = fonts.fit([*texts[0], *texts[1], *sheet.titles, *sheet.names, sheet.title])
    queries, keys = drawn[: len(texts[0])], drawn[len(texts[0]) : len(texts[0]) + len(texts[1])]
    longest = [max(width_of(text, points, families) for text in side) for side in (queries, keys)]
    pitch = panel[1] / sheet.lengths[1] * (positions[1][1] if len(positions[1]) > 1 else 1)
    rotation = 0 if longest[1] < 0.9 * pitch else 45 if pitch > 2 * line(points) else 90
    below = {0: line(points), 45: round(0.71 * longest[1]) + line(points) // 2, 90: longest[1]}[rotation]
    mark = px(0.05)
    return (
        Ticks(positions[0], queries, 0, longest[0] + mark),
        Ticks(positions[1], keys, rotation, below + mark),
    ), families


def _text(tokens: Sequence[str] | None, position: int, step: int) -> str:
    """Return the label of a token, with its position if some labels are omitted."""
    if tokens is None:
        return str(position)
    return fonts.label(tokens[position]) if step == 1 else f"{position} {fonts.label(tokens[position])}"


def _round_step(least: float) -> int:
    steps: Iterator[int] = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return next(step for step in steps if step >= least)
