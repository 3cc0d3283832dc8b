"""The numbers of one head, or of the mean of several, computed in steps that a `Task` can stop between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..attention.cells import Cells, Shading, bands, cell_of_entry, largest
from ..attention.streamed_views import Reduce
from .work_queue import Task

CELLS = 2**22
"""Weights that are computed at a time where a view needs all of them: 16 MiB."""


class Head:
    """One head, (Tq, Tk)."""

    def __init__(self, map: AttentionMap) -> None:
        assert map.ndim == 2
        self.request, self.bands = map.request, map.bands
        self.queries, self.keys = map.shape

    def part(self, start: int, stop: int, task: Task) -> AttentionMap:
        """The map of some rows with their statistic, (rows, Tk)."""
        return AttentionMap(*self.bands.rows(start, stop, task))

    def parts(self, task: Task) -> Iterator[tuple[int, int, AttentionMap]]:
        """All rows, band by band."""
        for start in task.over(range(0, self.queries, self.bands.height)):
            stop = min(start + self.bands.height, self.queries)
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

    def picture(
        self, rows: Sequence[Cells], cols: Sequence[Cells], reduce: Reduce, task: Task, shading: Shading | None = None
    ) -> Tensor:
        """A region as pixels: the largest weight of each, or their mean; with `shading`, as shades, uint8."""
        return self.bands.picture(rows, cols, reduce, task, shading)


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

    def picture(
        self, rows: Sequence[Cells], cols: Sequence[Cells], reduce: Reduce, task: Task, shading: Shading | None = None
    ) -> Tensor:
        if shading is not None:
            return shading.of(self.picture(rows, cols, reduce, task))
        if reduce == "mean" or all(side.entries == side.count for side in (*rows, *cols)):
            return _mean([head.picture(rows, cols, reduce, task) for head in task.over(self.heads)])
        start, stop = cols[0].start, cols[-1].stop
        into = cell_of_entry(cols)
        steps = [band for cells in rows for band in bands(cells, max(1, CELLS // (stop - start)))]
        pieces: list[Tensor] = []
        for band in task.over(steps):
            weights = self.weights(band.start, band.stop, slice(start, stop), task)  # (rows, cols)
            found = largest(largest(weights, into).T, cell_of_entry([Cells(*band[:3])])).T
            if band.joins:
                pieces[-1] = torch.maximum(pieces[-1], found)
            else:
                pieces.append(found)
        return torch.cat(pieces)


def _mean(found: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(found)).mean(0)
