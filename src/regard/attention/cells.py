"""The cells of a picture: a stretch of rows or columns cut into parts of nearly equal size.

Cell c of m over n entries holds entries ⌊c·n/m⌋ up to, not with, ⌊(c+1)·n/m⌋: the cells are disjoint, miss nothing, and
differ in size by one at the most. A picture with more cells than entries repeats each entry.

    n = 7, m = 3      0 1 | 2 3 | 4 5 6
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .masks import Span


@dataclass(frozen=True)
class Columns:
    """The entries of some cells, laid out so that every cell has the same width."""

    cells: slice
    span: Span
    width: int
    counted: Tensor | None = None
    """0 where a smaller cell repeats its last entry to fill the width, else 1, (cells, width); None for all 1."""


@dataclass(frozen=True)
class Cells:
    """Entries [start, stop) in `wanted` cells."""

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
        """Cells that are computed: no more than there are entries."""
        return min(self.wanted, self.entries)

    def edge(self, cell: int) -> int:
        return self.start + cell * self.entries // self.count

    def cell_of(self, entry: int) -> int:
        """The last cell that starts at or before the entry."""
        return ((entry - self.start + 1) * self.count - 1) // self.entries

    def sizes(self, device: torch.device) -> Tensor:
        return self.edges(device).diff()

    def edges(self, device: torch.device) -> Tensor:
        """Where each cell starts, and where the last ends: count + 1 numbers."""
        if self.count == self.entries:
            return torch.arange(self.start, self.stop + 1, device=device)
        return self.start + torch.arange(self.count + 1, device=device) * self.entries // max(1, self.count)

    def even(self) -> int | None:
        """Entries of every cell, where all have as many."""
        return self.entries // self.count if self.entries % self.count == 0 else None

    def parts(self, within: slice, most: int, device: torch.device) -> Iterator[Columns]:
        """The cells that overlap a stretch, in parts of at most so many entries: many small cells, or part of one."""
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
        """Whole cells. Uneven ones gather keys, which is cheaper than gathering scores."""
        if self.entries % self.count == 0:
            return Columns(cells, slice(self.edge(cells.start), self.edge(cells.stop)), width)
        edges = torch.arange(cells.start, cells.stop + 1, device=device) * self.entries // self.count + self.start
        entries = edges[:-1, None] + torch.arange(width, device=device)  # (cells, width)
        last = edges[1:, None] - 1
        return Columns(cells, entries.minimum(last).flatten(), width, (entries <= last).to(torch.float32))

    def fold(self, out: Tensor, rows: slice, strength: Tensor, *, largest: bool) -> None:
        """Reduce rows of the picture's columns (..., rows, n) into the cells of this axis, out (..., count, n)."""
        entry = torch.arange(rows.start, rows.stop, device=out.device)
        cell = ((entry - self.start + 1) * self.count - 1) // self.entries
        index = cell.unsqueeze(-1).expand(strength.shape)
        out.scatter_reduce_(-2, index, strength, "amax" if largest else "sum")

    def enlarge(self, x: Tensor, dim: int) -> Tensor:
        """Repeat entries where more cells are wanted than there are."""
        if self.wanted == self.count:
            return x
        return x.index_select(dim, torch.arange(self.wanted, device=x.device) * self.count // self.wanted)


def mean_(sums: Tensor, rows: Cells, cols: Cells) -> Tensor:
    """The sums of the pairs of each cell (..., rows.count, cols.count) → their mean, in place."""
    height, width = rows.even(), cols.even()
    if height is not None and width is not None:
        return sums if height * width == 1 else sums.div_(height * width)
    return sums.div_(rows.sizes(sums.device).unsqueeze(-1) * cols.sizes(sums.device))
