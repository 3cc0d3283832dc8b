"""The numbers of one head, or of the mean of several: computed in bands of rows, each short enough to be stopped after.

A map keeps queries and keys; the statistic of its rows is found here, band by band, when a view first needs those
rows, and kept: a tile of a long map needs that of its own rows only, and work that was stopped is not done again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention import streamed_views
from ..attention.attention_map import AttentionMap
from ..attention.backends import observer
from ..attention.cells import Cells
from ..attention.request import Request
from ..attention.shading import Shading
from ..attention.statistic import Statistic, examined
from .work_queue import Task

PAIRS = 2**25
"""Pairs of query and key between two looks at whether the answer is still wanted: about a tenth of a second."""
CELLS = 2**22
"""Weights that are spelled out at a time, where a view has to see them all: 16 MiB."""


class Stretch(NamedTuple):
    """Entries [start, stop) of an axis in so many pixels, as `AttentionMap.tile` cuts them."""

    start: int
    stop: int
    pixels: int

    @property
    def entries(self) -> int:
        return self.stop - self.start

    def edge(self, pixel: int) -> int:
        return self.start + pixel * self.entries // self.pixels


class Band(NamedTuple):
    """Some rows of a picture, or, where `joins`, more rows of its last pixel."""

    start: int
    stop: int
    pixels: int
    joins: bool = False


def bands(stretch: Stretch, most: int) -> Iterator[Band]:
    """A stretch of rows in parts of at most `most` entries: many pixels, or part of one.

    >>> [(b.start, b.stop, b.pixels, b.joins) for b in bands(Stretch(0, 12, 2), 4)]
    [(0, 4, 1, False), (4, 6, 1, True), (6, 10, 1, False), (10, 12, 1, True)]
    """
    if stretch.entries <= most:
        yield Band(*stretch)
        return
    height = stretch.entries // stretch.pixels
    together = max(1, most // height) if stretch.entries % stretch.pixels == 0 else 1
    for pixel in range(0, stretch.pixels, together):
        last = min(pixel + together, stretch.pixels)
        start, stop = stretch.edge(pixel), stretch.edge(last)
        for at in range(start, stop, max(most, 1) if last == pixel + 1 else stop - start):
            yield Band(at, min(at + most, stop) if last == pixel + 1 else stop, last - pixel, at > start)


class Head:
    """One head, (Tq, Tk)."""

    def __init__(self, map: AttentionMap) -> None:
        assert map.ndim == 2
        self.request = map.request
        self.queries, self.keys = map.shape
        self.height = max(1, min(self.queries, PAIRS // max(1, self.keys)))
        """Rows whose statistic is found together."""
        self._found = [False] * -(-self.queries // self.height)
        """Of each such band, whether it is known."""
        self._observer = observer(self.request)
        kinds = [torch.int64 if self.request.hard else self.request.wide, self.request.wide, torch.bool]
        highest, total, large = (torch.zeros(self.queries, dtype=kind, device=self.request.device) for kind in kinds)
        self._statistic = Statistic(highest, total, large=large if self._observer is streamed_views else None)
        self._lock = threading.Lock()
        known = map.known
        if known is not None:
            self._statistic = replace(self._statistic, sink=known.sink)
            self.know(0, known)

    def part(self, start: int, stop: int, task: Task) -> AttentionMap:
        """The map of some rows with their statistic, (rows, Tk)."""
        self._find(start, stop, task)
        return AttentionMap(self.request.of_rows(slice(start, stop)), self._statistic[start:stop])

    def know(self, band: int, statistic: Statistic) -> None:
        """Take the statistic of the rows from a band on."""
        rows = slice(band * self.height, band * self.height + statistic.shape[0])
        held = self._statistic
        held.highest[rows], held.total[rows] = statistic.highest, statistic.total
        request = self.request.of_rows(rows)
        large = None if held.large is None else examined(request, statistic).large
        if held.large is not None and large is not None:
            held.large[rows] = large
        if observer(request, statistic) is streamed_views:
            self._observer = streamed_views  # the kernels do not serve some row, such as one that attends to NaN
        for at in range(band, band + -(-statistic.shape[0] // self.height)):
            self._found[at] = True

    def _find(self, start: int, stop: int, task: Task) -> None:
        """See that the statistic of some rows is known."""
        for band in range(start // self.height, -(-stop // self.height)):
            task.check()
            if self._found[band]:
                continue
            with self._lock, torch.no_grad():  # whoever wants the same band waits for it rather than find it twice
                if not self._found[band]:
                    rows = slice(band * self.height, min((band + 1) * self.height, self.queries))
                    request = self.request.of_rows(rows)
                    self.know(band, observer(request).statistic(request))

    @property
    def known(self) -> float:
        """The share of rows whose statistic is found."""
        return sum(self._found) / max(1, len(self._found))

    def parts(self, task: Task) -> Iterator[tuple[int, int, AttentionMap]]:
        """All rows, band by band."""
        for start in task.over(range(0, self.queries, self.height)):
            stop = min(start + self.height, self.queries)
            yield start, stop, self.part(start, stop, task)

    def row(self, query: int, task: Task) -> Tensor:
        """(Tk,)"""
        return self.part(query, query + 1, task)[0]

    def column(self, key: int, task: Task) -> Tensor:
        """(Tq,)"""
        return torch.cat([part[:, key] for _, _, part in self.parts(task)])

    def before(self, x: Tensor, task: Task) -> Tensor:
        """x · weights, (Tq,) → (Tk,)"""
        out = torch.zeros(self.keys, dtype=self.request.wide, device=self.request.device)
        for start, stop, part in self.parts(task):
            out += x[start:stop].to(out.dtype) @ part
        return out

    def weights(self, start: int, stop: int, cols: slice, task: Task) -> Tensor:
        """(rows, cols)"""
        return self.part(start, stop, task)[:, cols]

    def picture(self, rows: Sequence[Stretch], cols: Sequence[Stretch], reduce: str, task: Task) -> Tensor:
        """A region as pixels: the largest weight of each, or their mean."""
        steps = _steps(rows, cols)
        apart = reduce == "mean" and any(band.joins for band in steps)
        how = "sum" if apart else reduce
        pieces: list[Tensor] = []
        for band in task.over(steps):
            self._find(band.start, band.stop, task)
            found = _beside([self._observer.pool(*self._asked(band, c), how) for c in cols])
            if band.joins:
                pieces[-1] = torch.maximum(pieces[-1], found) if reduce == "max" else pieces[-1] + found
            else:
                pieces.append(found)
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return whole / _pairs(rows, cols) if apart else whole

    def shades(
        self, rows: Sequence[Stretch], cols: Sequence[Stretch], reduce: str, shading: Shading, task: Task
    ) -> Tensor:
        """The same in shades, uint8: without numbers in between, but where a pixel takes more than one band."""
        steps = _steps(rows, cols)
        if any(band.joins for band in steps):
            return shading.of(self.picture(rows, cols, reduce, task))
        pieces: list[Tensor] = []
        for band in task.over(steps):
            self._find(band.start, band.stop, task)
            found = [self._observer.shades(*self._asked(band, c), reduce, shading) for c in cols]
            pieces.append(_beside(found))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _asked(self, band: Band, cols: Stretch) -> tuple[Request, Statistic, Cells, Cells]:
        """What an observer is told of a picture."""
        return self.request, self._statistic, Cells(band.start, band.stop, band.pixels), Cells(*cols)


class Mean:
    """The mean of several heads, cell by cell; the largest weight of a pixel is that of the mean."""

    def __init__(self, heads: Sequence[Head]) -> None:
        self.heads = heads
        self.queries, self.keys = heads[0].queries, heads[0].keys

    def row(self, query: int, task: Task) -> Tensor:
        return _mean([head.row(query, task) for head in self.heads])

    def column(self, key: int, task: Task) -> Tensor:
        return _mean([head.column(key, task) for head in task.over(self.heads)])

    def before(self, x: Tensor, task: Task) -> Tensor:
        return _mean([head.before(x, task) for head in task.over(self.heads)])

    def weights(self, start: int, stop: int, cols: slice, task: Task) -> Tensor:
        total = self.heads[0].weights(start, stop, cols, task)
        for head in self.heads[1:]:
            total += head.weights(start, stop, cols, task)
        return total / len(self.heads)

    def picture(self, rows: Sequence[Stretch], cols: Sequence[Stretch], reduce: str, task: Task) -> Tensor:
        if reduce == "mean" or all(side.entries == side.pixels for side in (*rows, *cols)):
            return _mean([head.picture(rows, cols, reduce, task) for head in task.over(self.heads)])
        start, stop = cols[0].start, cols[-1].stop
        into = _pixel_of_entry(cols)
        steps = [band for stretch in rows for band in bands(stretch, max(1, CELLS // (stop - start)))]
        pieces: list[Tensor] = []
        for band in task.over(steps):
            weights = self.weights(band.start, band.stop, slice(start, stop), task)  # (rows, cols)
            found = _largest(_largest(weights, into).T, _pixel_of_entry([Stretch(*band[:3])])).T
            if band.joins:
                pieces[-1] = torch.maximum(pieces[-1], found)
            else:
                pieces.append(found)
        return torch.cat(pieces)

    def shades(
        self, rows: Sequence[Stretch], cols: Sequence[Stretch], reduce: str, shading: Shading, task: Task
    ) -> Tensor:
        return shading.of(self.picture(rows, cols, reduce, task))


def _steps(rows: Sequence[Stretch], cols: Sequence[Stretch]) -> list[Band]:
    """The rows of a picture in bands of so many pairs that work can be stopped between two of them."""
    most = max(1, PAIRS // max(1, cols[-1].stop - cols[0].start))
    return [band for stretch in rows for band in bands(stretch, most)]


def _beside(found: Sequence[Tensor]) -> Tensor:
    return found[0] if len(found) == 1 else torch.cat(list(found), -1)


def _mean(found: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(found)).mean(0)


def _sizes(side: Sequence[Stretch]) -> Tensor:
    """Entries of each pixel."""
    edges = [torch.arange(s.pixels + 1) * s.entries // s.pixels for s in side]
    return torch.cat([edge.diff() for edge in edges])


def _pairs(rows: Sequence[Stretch], cols: Sequence[Stretch]) -> Tensor:
    """Pairs of each pixel, (height, width)."""
    return _sizes(rows).unsqueeze(-1) * _sizes(cols)


def _pixel_of_entry(side: Sequence[Stretch]) -> Tensor:
    sizes = _sizes(side)
    return torch.arange(len(sizes)).repeat_interleave(sizes)


def _largest(x: Tensor, into: Tensor) -> Tensor:
    """The largest of the columns that fall into each pixel: (n, entries) → (n, pixels); weights are not negative."""
    out = x.new_zeros(x.shape[0], int(into[-1]) + 1)
    return out.scatter_reduce_(1, into.expand(x.shape), x, "amax")
