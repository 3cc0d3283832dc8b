"""Draw a matrix of weights in the terminal, in colour or in shades.

5 × 5, labelled:                         1,000 × 1,000, pooled:
        the     cat     sat              0    ▀▄▀▄▀▄▀▄▀▄▀▄
le    █ 0.91    0.06    0.03                  ▄▀▄▀▄▀▄▀▄▀▄▀
chat    0.05  █ 0.93    0.02             500  ▀▄▀▄▀▄▀▄▀▄▀▄
"""

from __future__ import annotations

import math
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from torch import Tensor

from .fonts import label, shorten

SHADES = " ░▒▓█"
# Anchors of matplotlib's magma: zero is dark on any background, and lightness increases evenly.
RAMP = ((0, 0, 4), (40, 17, 89), (101, 26, 128), (159, 47, 127), (221, 73, 104), (253, 144, 99), (252, 253, 191))
LEVELS = 64
NOT_A_NUMBER = -1  # as a level
LABEL_WIDTH = 16
KEY_HEIGHT = 10
LEFT_TO_RIGHT_MARK = "\u200e"


@dataclass(frozen=True)
class Drawing:
    """The result of `draw`. rich prints it in colour, `str` converts it to shades."""

    weights: Tensor
    query_tokens: Sequence[str] | None
    key_tokens: Sequence[str] | None
    width: int | None
    lengths: tuple[int, int]

    def __str__(self) -> str:
        lines = _lines(self, self.width or shutil.get_terminal_size().columns, colour=False)
        return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = console.color_system is not None and not console.no_color
        width = min(self.width or options.max_width, options.max_width)
        for line in _lines(self, width, colour):
            yield from line
            yield Segment.line()


def draw(
    weights: Tensor,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    width: int | None = None,
    *,
    lengths: tuple[int, int] | None = None,
) -> Drawing:
    """Draw the weights (Tq, Tk) for the terminal: rows are queries, columns are keys.

    Labels are written if they fit, otherwise some positions. A matrix that is too wide is pooled by its maximum, so
    that every strong link stays visible. `width` is in characters, by default the width of the terminal. `lengths` are
    Tq and Tk before pooling, if the weights are already pooled; positions and tokens then refer to them.

    Raises ValueError if `weights` is not a non-empty matrix or a list of tokens has another length.

    >>> print(draw(torch.eye(2), ["le", "chat"], ["the", "cat"], width=40))
             the     cat
    le    █ 1.00    0.00
    chat    0.00  █ 1.00
    0  ░▒▓█ 1
    """
    weights = torch.as_tensor(weights).detach().to("cpu", torch.float32)
    if weights.ndim != 2 or weights.numel() == 0:
        raise ValueError(
            f"draw: weights ({tuple(weights.shape)}) must be a matrix (Tq, Tk) with at least one cell; "
            f"got {weights.ndim} dimensions and {weights.numel()} cells. Select one head, for example weights[0, 3]."
        )
    lengths = lengths or (weights.shape[0], weights.shape[1])
    for name, tokens, count in (("query_tokens", query_tokens, lengths[0]), ("key_tokens", key_tokens, lengths[1])):
        if tokens is not None and len(tokens) != count:
            raise ValueError(
                f"draw: {name} ({len(tokens)}) must name each of {count} positions; "
                f"got {len(tokens)}. Pass one token per position."
            )
    return Drawing(weights, query_tokens, key_tokens, width, lengths)


def shrink(weights: Tensor, rows: int, columns: int) -> Tensor:
    """Max-pool weights (…, Tq, Tk) to at most `rows` × `columns`. Smaller sides are unchanged.

    >>> shrink(torch.eye(4), 2, 8)
    tensor([[1., 1., 0., 0.],
            [0., 0., 1., 1.]])
    """
    rows, columns = min(rows, weights.shape[-2]), min(columns, weights.shape[-1])
    if (rows, columns) == tuple(weights.shape[-2:]):
        return weights
    flat = weights.reshape(1, -1, *weights.shape[-2:])  # (1, N, Tq, Tk)
    pooled = torch.nn.functional.adaptive_max_pool2d(flat, (rows, columns))  # (1, N, rows, columns)
    return pooled.reshape(*weights.shape[:-2], rows, columns)


def _lines(drawing: Drawing, width: int, colour: bool) -> list[list[Segment]]:
    queries, keys = drawing.lengths
    names = _names(drawing.query_tokens, queries)
    heads = _names(drawing.key_tokens, keys)
    margin = max(map(cell_len, names), default=0) + 1
    space = width - margin
    top = float(drawing.weights.nan_to_num(0, 0, 0).max()) or 1.0
    wide = max(8, max(map(cell_len, heads), default=0) + 2)
    complete = drawing.lengths == tuple(drawing.weights.shape)
    if complete and queries <= 40 and keys * wide <= space:
        body = _labelled_cells(drawing.weights, top, names, heads, wide, margin, colour)
    elif complete and queries <= 60 and keys * 2 <= space:
        body = _square_cells(drawing.weights, top, names, heads, margin, colour)
    else:
        body = _pooled_cells(drawing, top, width, colour)
    return [*body, _legend(top, colour)]


def _names(tokens: Sequence[str] | None, count: int) -> list[str]:
    """Return the labels of all positions, or none if there are too many."""
    if count > 500:
        return []
    return [str(i) if tokens is None else label(tokens[i], LABEL_WIDTH) for i in range(count)]


def _labelled_cells(
    weights: Tensor, top: float, names: list[str], heads: list[str], wide: int, margin: int, colour: bool
) -> list[list[Segment]]:
    """Draw few cells: horizontal key labels, and the weight in each cell."""
    lines = [[Segment(" " * margin + "".join(_align(head, wide - 1, right=True) + " " for head in heads))]]
    for name, row in zip(names, weights.tolist(), strict=True):
        line = [Segment(_align(name, margin))]
        for weight in row:
            text = f"{weight:.2f} " if colour else f"{_shade(weight, top)} {weight:.2f} "
            line.append(Segment(text.rjust(wide), _style(_level(weight, top), number=True) if colour else None))
        lines.append(line)
    return lines


def _square_cells(
    weights: Tensor, top: float, names: list[str], heads: list[str], margin: int, colour: bool
) -> list[list[Segment]]:
    """Draw more cells: two characters each, which is about square, and vertical key labels."""
    columns = [_stack(shorten(head, KEY_HEIGHT)) for head in heads]
    height = max(map(len, columns))
    lines = []
    for i in range(height):
        glyphs = (column[i - height + len(column)] if i >= height - len(column) else "" for column in columns)
        lines.append([Segment(" " * margin + "".join(_align(glyph, 2) for glyph in glyphs))])
    for name, row in zip(names, weights.tolist(), strict=True):
        line = [Segment(_align(name, margin))]
        for weight in row:
            line.append(Segment("  ", _style(_level(weight, top))) if colour else Segment(_shade(weight, top) * 2))
        lines.append(line)
    return lines


def _pooled_cells(drawing: Drawing, top: float, width: int, colour: bool) -> list[list[Segment]]:
    """Draw many cells: one character wide and, in colour, half a line high; every fifth line has its position."""
    queries, keys = drawing.lengths
    margin = len(str(queries - 1)) + 1 + (LABEL_WIDTH // 2 if drawing.query_tokens else 0)
    columns = max(1, width - margin)
    rows = max(1, columns // (1 if colour else 2))  # a character is about twice as high as wide
    cells = shrink(drawing.weights, rows, columns).tolist()
    columns = len(cells[0])
    pair = 2 if colour else 1
    last = str(keys - 1)
    lines = [[Segment(" " * margin + ("0".ljust(columns - len(last)) + last if columns > len(last) else last))]]
    for start in range(0, len(cells), pair):
        position = start * queries // len(cells)
        text = str(position) if (start // pair) % 5 == 0 else ""
        if text and drawing.query_tokens:
            text += " " + label(drawing.query_tokens[position], LABEL_WIDTH // 2 - 1)
        line = [Segment(_align(text, margin))]
        upper, lower = cells[start], cells[start + 1] if colour and start + 1 < len(cells) else None
        for j, weight in enumerate(upper):
            if not colour:
                line.append(Segment(_shade(weight, top)))
            else:
                below = None if lower is None else _level(lower[j], top)
                line.append(Segment("▀", _style(below, _level(weight, top))))
        lines.append(line)
    return lines


def _legend(top: float, colour: bool) -> list[Segment]:
    if not colour:
        return [Segment(f"0 {SHADES} {top:.3g}")]
    ramp = [Segment(" ", _style(level)) for level in range(0, LEVELS, 3)]
    return [Segment("0 "), *ramp, Segment(f" {top:.3g}")]


def _level(weight: float, top: float) -> int:
    if math.isnan(weight):
        return NOT_A_NUMBER
    return round(min(max(weight / top, 0.0), 1.0) * (LEVELS - 1))


def _shade(weight: float, top: float) -> str:
    level = _level(weight, top)
    return "?" if level == NOT_A_NUMBER else SHADES[round(level / (LEVELS - 1) * (len(SHADES) - 1))]


@lru_cache(maxsize=2 * LEVELS * LEVELS)
def _style(back: int | None, front: int | None = None, number: bool = False) -> Style:
    ink = Color.parse("black" if back is not None and back > 0.6 * LEVELS else "bright_white") if number else None
    return Style(
        color=ink if number else None if front is None else _colour(front),
        bgcolor=None if back is None else _colour(back),
    )


def _colour(level: int) -> Color:
    if level == NOT_A_NUMBER:
        return Color.parse("bright_green")
    position = level / (LEVELS - 1) * (len(RAMP) - 1)
    low = min(int(position), len(RAMP) - 2)
    mixed = (round(a + (b - a) * (position - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    return Color.from_rgb(*mixed)


def _align(text: str, width: int, right: bool = False) -> str:
    """Pad `text` to `width` cells. A mark after right-to-left text keeps the terminal from reordering cells."""
    padding = " " * (width - cell_len(text))
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        text += LEFT_TO_RIGHT_MARK
    return padding + text if right else text + padding


def _stack(text: str) -> list[str]:
    """Split `text` into characters for vertical writing. Combining marks and joiners stay with their base character."""
    stack: list[str] = []
    for character in text:
        if stack and cell_len(character) == 0:
            stack[-1] += character
        else:
            stack.append(character)
    return stack
