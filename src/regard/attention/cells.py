"""Cells of a pooled image: a range of rows or columns divided into parts of nearly equal size.

Cell c of m over n entries covers entries ⌊c·n/m⌋ up to, but excluding, ⌊(c+1)·n/m⌋. The cells are disjoint, cover every
entry, and differ in size by at most one. An image with more cells than entries repeats entries.

    n = 7, m = 3      0 1 | 2 3 | 4 5 6
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .masks import Span


@dataclass(frozen=True)
class Columns:
    """The entries of some cells, padded so that every cell has the same width."""

    cells: slice
    span: Span
    width: int
    counted: Tensor | None = None
    """(cells, width): 0 for padding, which repeats the last entry of a smaller cell, else 1. None: no padding."""


@dataclass(frozen=True)
class Cells:
    """Entries [start, stop) divided into `wanted` cells."""

    start: int
    stop: int
    wanted: int

    @property
    def region(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def entries(self) -> int:
        return self.stop - self.start

    @property
    def count(self) -> int:
        """Number of cells that are computed: at most the number of entries."""
        return min(self.wanted, self.entries)

    def edge(self, cell: int) -> int:
        return self.start + cell * self.entries // self.count

    def cell_of(self, entry: int) -> int:
        """Return the last cell that starts at or before the entry."""
        return ((entry - self.start + 1) * self.count - 1) // self.entries

    def sizes(self, device: torch.device) -> Tensor:
        return self.edges(device).diff()

    def edges(self, device: torch.device) -> Tensor:
        """Return the start of each cell and the end of the last one, (count + 1,)."""
        if self.count == self.entries:
            return torch.arange(self.start, self.stop + 1, device=device)
        return self.start + torch.arange(self.count + 1, device=device) * self.entries // max(1, self.count)

    def even(self) -> int | None:
        """Return the number of entries per cell if all cells have the same size, else None."""
        return self.entries // self.count if self.entries % self.count == 0 else None

    def parts(self, within: slice, most: int, device: torch.device) -> Iterator[Columns]:
        """Yield the cells that overlap a range, in parts of at most `most` entries: several cells, or part of one."""
        first, last = self.cell_of(within.start), self.cell_of(within.stop - 1) + 1
        width = -(-self.entries // self.count)
        if width > most:
            for cell in range(first, last):
                start, stop = max(self.edge(cell), within.start), min(self.edge(cell + 1), within.stop)
                for at in range(start, stop, most):
                    part = slice(at, min(at + most, stop))
                    yield Columns(slice(cell, cell + 1), part, part.stop - part.start)
            return
        for cell in range(first, last, most // width):
            yield self._columns(slice(cell, min(cell + most // width, last)), width, device)

    def _columns(self, cells: slice, width: int, device: torch.device) -> Columns:
        """Return whole cells. For cells of different sizes it gathers keys, which is cheaper than gathering scores."""
        if self.entries % self.count == 0:
            return Columns(cells, slice(self.edge(cells.start), self.edge(cells.stop)), width)
        edges = torch.arange(cells.start, cells.stop + 1, device=device) * self.entries // self.count + self.start
        entries = edges[:-1, None] + torch.arange(width, device=device)  # (cells, width)
        last = edges[1:, None] - 1
        return Columns(cells, entries.minimum(last).flatten(), width, (entries <= last).to(torch.float32))

    def fold(self, out: Tensor, rows: slice, strength: Tensor, *, largest: bool) -> None:
        """Reduce rows of pooled columns (..., rows, n) into the cells of this axis, out (..., count, n)."""
        entry = torch.arange(rows.start, rows.stop, device=out.device)
        cell = ((entry - self.start + 1) * self.count - 1) // self.entries
        index = cell.unsqueeze(-1).expand(strength.shape)
        out.scatter_reduce_(-2, index, strength, "amax" if largest else "sum")

    def enlarge(self, x: Tensor, dim: int) -> Tensor:
        """Repeat entries if more cells are wanted than there are entries."""
        if self.wanted == self.count:
            return x
        return x.index_select(dim, torch.arange(self.wanted, device=x.device) * self.count // self.wanted)


def mean_(sums: Tensor, rows: Cells, cols: Cells) -> Tensor:
    """Divide the sum of each cell (..., rows.count, cols.count) by its number of pairs, in place."""
    height, width = rows.even(), cols.even()
    if height is not None and width is not None:
        return sums if height * width == 1 else sums.div_(height * width)
    return sums.div_(rows.sizes(sums.device).unsqueeze(-1) * cols.sizes(sums.device))


class Band(NamedTuple):
    """Rows [start, stop) of an image, `pixels` high. If `joins`, they belong to the last pixel of the previous band."""

    start: int
    stop: int
    pixels: int
    joins: bool = False


def bands(cells: Cells, most: int) -> Iterator[Band]:
    """Split cells into bands of at most `most` entries: several whole cells, or part of one.

    >>> [(b.start, b.stop, b.pixels, b.joins) for b in bands(Cells(0, 12, 2), 4)]
    [(0, 4, 1, False), (4, 6, 1, True), (6, 10, 1, False), (10, 12, 1, True)]
    """
    if cells.entries <= most:
        yield Band(cells.start, cells.stop, cells.count)
        return
    height = cells.even()
    together = max(1, most // height) if height is not None else 1
    for cell in range(0, cells.count, together):
        last = min(cell + together, cells.count)
        start, stop = cells.edge(cell), cells.edge(last)
        for at in range(start, stop, max(most, 1) if last == cell + 1 else stop - start):
            yield Band(at, min(at + most, stop) if last == cell + 1 else stop, last - cell, at > start)


def split(start: int, stop: int, size: int) -> list[Cells]:
    """Split entries into cells of `size` entries each; the last cell may be smaller.

    >>> split(0, 10, 4)
    [Cells(start=0, stop=8, wanted=2), Cells(start=8, stop=10, wanted=1)]
    """
    count, rest = divmod(stop - start, size)
    whole = [Cells(start, stop - rest, count)] if count else []
    return [*whole, Cells(stop - rest, stop, 1)] if rest else whole


def sizes(side: Sequence[Cells]) -> Tensor:
    """Return the number of entries of each cell along one side of an image."""
    return torch.cat([cells.sizes(torch.device("cpu")) for cells in side])


def cell_of_entry(side: Sequence[Cells]) -> Tensor:
    """Return the cell of each entry along one side of an image."""
    counts = sizes(side)
    return torch.arange(len(counts)).repeat_interleave(counts)


def largest(x: Tensor, cell: Tensor) -> Tensor:
    """Return the maximum of the columns of each cell: (n, entries) → (n, cells). Weights must not be negative."""
    out = x.new_zeros(x.shape[0], int(cell[-1]) + 1)
    return out.scatter_reduce_(1, cell.expand(x.shape), x, "amax")


class Shading(NamedTuple):
    """Mapping of weights to 256 shades, rounded: 0 for a weight of 0, 255 for a weight of 1. NaN maps to 0.

        linear   255 · w
        log      255 · (1 − log w / log floor)

    >>> Shading().of(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    >>> Shading(floor=1e-3).of(torch.tensor([0.0, 1e-4, 1e-3, 0.1, 1.0])).tolist()
    [0, 0, 0, 170, 255]
    """

    floor: float | None = None
    """Smallest weight of the log scale, between 0 and 1; None for the linear scale."""

    @property
    def log(self) -> bool:
        return self.floor is not None

    @property
    def line(self) -> tuple[float, float]:
        """Slope and shift: a shade is x · slope + shift, truncated to an integer, for x = w or log w."""
        return (255.0, 0.5) if self.floor is None else (-255 / math.log(self.floor), 255.5)

    def of(self, weights: Tensor) -> Tensor:
        """Return the shades of weights of any shape, uint8."""
        slope, shift = self.line
        shades = weights.log().mul_(slope).add_(shift) if self.log else weights * slope + shift
        return torch.fmax(shades.clamp_(max=255.5), shades.new_zeros(())).to(torch.uint8)  # fmax(NaN, 0) is 0
