"""Weights of one head, or of the mean of several heads, computed in steps so that a `Task` can stop in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..attention.cells import Cells, Shading, bands, cell_of_entry, largest
from ..attention.streamed_views import Reduce
from .work_queue import Task

MAX_WEIGHTS = 2**22
"""Maximum number of weights computed at a time: 16 MiB."""


class Head:
    """The attention weights of one head, (Tq, Tk)."""

    def __init__(self, map: AttentionMap) -> None:
        assert map.ndim == 2
        self.request, self.bands = map.request, map.bands
        self.queries, self.keys = map.shape

    def part(self, start: int, stop: int, task: Task) -> AttentionMap:
        """Return the map of the rows `start` to `stop`, (rows, Tk)."""
        return AttentionMap(*self.bands.rows(start, stop, task))

    def parts(self, task: Task) -> Iterator[tuple[int, int, AttentionMap]]:
        """Yield `(start, stop, map)` for bands that cover all rows."""
        for start in task.over(range(0, self.queries, self.bands.height)):
            stop = min(start + self.bands.height, self.queries)
            yield start, stop, self.part(start, stop, task)

    def row(self, query: int, task: Task) -> Tensor:
        """Return the weights of one query, (Tk,)."""
        return self.part(query, query + 1, task)[0]

    def column(self, key: int, task: Task) -> Tensor:
        """Return the weights on one key, (Tq,)."""
        return torch.cat([part[:, key] for _, _, part in self.parts(task)])

    def left_multiply(self, x: Tensor, task: Task) -> Tensor:
        """Return x · weights, (Tq,) → (Tk,)."""
        out = torch.zeros(self.keys, dtype=self.request.wide, device=self.request.device)
        for start, stop, part in self.parts(task):
            out += x[start:stop].to(out.dtype) @ part
        return out

    def weights(self, start: int, stop: int, cols: slice, task: Task) -> Tensor:
        """Return a block of weights, (rows, cols)."""
        return self.part(start, stop, task)[:, cols]

    def picture(
        self, rows: Sequence[Cells], cols: Sequence[Cells], reduce: Reduce, task: Task, shading: Shading | None = None
    ) -> Tensor:
        """Return a region as pixels: the largest or mean weight of each. With `shading`, return shades as uint8."""
        return self.bands.picture(rows, cols, reduce, task, shading)


class Mean:
    """The elementwise mean of several heads. A pixel with reduction "max" is the largest mean weight."""

    def __init__(self, heads: Sequence[Head]) -> None:
        self.heads = heads
        self.queries, self.keys = heads[0].queries, heads[0].keys

    def row(self, query: int, task: Task) -> Tensor:
        return _mean([head.row(query, task) for head in self.heads])

    def column(self, key: int, task: Task) -> Tensor:
        return _mean([head.column(key, task) for head in task.over(self.heads)])

    def left_multiply(self, x: Tensor, task: Task) -> Tensor:
        return _mean([head.left_multiply(x, task) for head in task.over(self.heads)])

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
        cell_indices = cell_of_entry(cols)
        steps = [band for cells in rows for band in bands(cells, max(1, MAX_WEIGHTS // (stop - start)))]
        pixels: list[Tensor] = []
        for band in task.over(steps):
            weights = self.weights(band.start, band.stop, slice(start, stop), task)  # (rows, cols)
            maxima = largest(largest(weights, cell_indices).T, cell_of_entry([Cells(*band[:3])])).T
            if band.joins:
                pixels[-1] = torch.maximum(pixels[-1], maxima)
            else:
                pixels.append(maxima)
        return torch.cat(pixels)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).mean(0)
