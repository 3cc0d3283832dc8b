"""Views of a map, streamed: exact weights are computed in blocks and reduced block by block.

The statistic of a row (`statistic.py`) turns any of its scores into a weight, so a view computes only the scores it
needs. This requires that two calls give the same scores. Libraries round products of different shapes differently: the
difference is small for ordinary scores, but 1e5 at scores of 1e12, which makes e^(score − highest) meaningless. Rows in
which this matters (`large_rows`) are computed whole and normalized by the scores of the view itself. So no weight
exceeds 1, and every row adds up to 1, on every machine.

Memory: a few blocks of BLOCK or ROWS elements, or one row, and the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .cells import Cells, Columns, Shading, mean_
from .masks import Span, indices, part_of, span_length
from .request import Request, block_shape
from .statistic import Statistic, with_large_rows

Reduce: TypeAlias = Literal["max", "mean", "sum"]

BLOCK = 2**19
"""Elements in one block of scores. A few such blocks fit in the cache of a core."""
ROWS = 2**21
"""Scores that are computed at a time for whole rows."""
SMALLEST_LOG = -1e4
"""Replaces log 0 where it is multiplied by a weight of 0."""


@dataclass(frozen=True)
class Block:
    """A block of rows and columns of one or all entries."""

    request: Request
    entry: tuple[int, ...]
    """Index of the leading dimensions; () for all entries."""
    rows: slice
    cols: slice
    whole_rows: tuple[Tensor, Statistic] | None = None
    """For rows that are computed whole: all scores (..., rows, Tk), and their own statistic."""

    def scores(self, cols: Span | None = None) -> Tensor:
        """Return the scores, (..., rows, cols)."""
        cols = self.cols if cols is None else cols
        scores = scores_of(self.request, self.rows, cols) if self.whole_rows is None else self.whole_rows[0][..., cols]
        return scores.expand(*self.request.lead, *scores.shape[-2:])

    def own(self, x: Tensor) -> Tensor:
        """Return the entries of this block of a tensor (*lead, ...), as a view."""
        return x[self.entry]

    def of_rows(self, x: Tensor) -> Tensor:
        """Return the rows of this block of a tensor (*lead, Tq), as a view."""
        return self.own(x)[..., self.rows]

    def statistic(self, statistic: Statistic) -> Statistic:
        """Return the statistic of the scores of this block, (..., rows), given that of all rows and entries."""
        return statistic.map(self.of_rows) if self.whole_rows is None else self.whole_rows[1]

    def weights(self, statistic: Statistic, cols: Span | None = None) -> Tensor:
        """Return the weights, (..., rows, cols), given the statistic of all rows and entries."""
        cols = self.cols if cols is None else cols
        return to_weights(self.request, self.scores(cols), self.statistic(statistic), cols)

    def split_large(self, statistic: Statistic | None) -> Iterator[Block]:
        """Yield the block itself; or, if it has large rows, blocks of a few rows that are computed whole."""
        if statistic is None or statistic.large is None or not bool(self.of_rows(statistic.large).any()):
            yield self
            return
        height = max(1, ROWS // max(1, self.request.entries * self.request.keys))
        for start in range(self.rows.start, self.rows.stop, height):
            part = replace(self, rows=slice(start, min(start + height, self.rows.stop)))
            scores = whole_scores(part.request, part.rows)
            own = Statistic.of(scores)
            if statistic.sink is not None:
                own = own.with_sink(part.of_rows(statistic.sink))
            yield replace(part, whole_rows=(scores, own))


def whole_scores(request: Request, rows: slice) -> Tensor:
    """Return all scores of some rows, (*lead, rows, Tk), −∞ where they may not attend."""
    first, last = request.mask.span(rows, request.keys)
    pairs = request.entries * (rows.stop - rows.start) * request.similarity.width_per_pair(request.q.shape[-1])
    step = max(1, ROWS // max(1, pairs))
    shape = (*request.lead, rows.stop - rows.start, request.keys)
    out = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)
    for start in range(first, last, step):
        cols = slice(start, min(start + step, last))
        out[..., cols] = scores_of(request, rows, cols)
    return out


def bands(request: Request, rows: slice, cols: slice, statistic: Statistic | None = None) -> Iterator[Block]:
    """Yield blocks of some rows of a region, with all columns they may attend to; entry by entry if it is large.

    With the statistic of all rows, large rows come in blocks that are computed whole.
    """
    statistic = None if statistic is None else with_large_rows(request, statistic)
    pairs = request.entries * (rows.stop - rows.start) * (cols.stop - cols.start)
    if pairs <= BLOCK or not request.separable or request.entries == 1:
        parts: Iterator[tuple[tuple[int, ...], Request]] = iter([((), request)])
    else:
        parts = ((entry, request.select(entry)) for entry in itertools.product(*map(range, request.lead)))
    for entry, part in parts:
        step, _ = block_shape(part, BLOCK)
        for start in range(rows.start, rows.stop, step):
            band = slice(start, min(start + step, rows.stop))
            first, last = part.mask.span(band, part.keys)
            first, last = max(first, cols.start), min(last, cols.stop)
            if first < last:
                yield from Block(part, entry, band, slice(first, last)).split_large(statistic)


def blocks(request: Request, statistic: Statistic | None = None) -> Iterator[Block]:
    """Yield blocks that cover every unmasked pair."""
    for band in bands(request, slice(0, request.queries), slice(0, request.keys), statistic):
        if band.whole_rows is not None:
            yield band
            continue
        _, step = block_shape(band.request, BLOCK)
        for start in range(band.cols.start, band.cols.stop, step):
            yield replace(band, cols=slice(start, min(start + step, band.cols.stop)))


def scores_of(request: Request, rows: Span, cols: Span) -> Tensor:
    """Return scores (*lead or broadcastable, rows, cols), −∞ where a float mask is −∞, even if the key is NaN."""
    scores, bias = request.scores(rows, cols), request.mask.bias(rows, cols)
    return scores if bias is None else torch.where(bias == -torch.inf, -torch.inf, scores)


def to_weights(request: Request, scores: Tensor, statistic: Statistic, cols: Span) -> Tensor:
    """Convert scores (..., rows, cols) to weights, given the statistic of their rows (..., rows)."""
    if request.hard:
        return (indices(cols, scores.device) == statistic.highest.unsqueeze(-1)).to(scores.dtype)
    return statistic.weights(scores)


def statistic(request: Request) -> Statistic:
    """Compute the statistic of every row, (*lead, Tq), with `large` set."""
    shape = (*request.lead, request.queries)
    highest = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)
    best = torch.full(shape, -1, device=request.device)
    total = torch.zeros_like(highest)
    for block in blocks(request):
        scores = block.scores()
        top, sum_, at = (block.of_rows(x) for x in (highest, total, best))
        if request.hard:
            maximum, index = scores.max(-1)
            better = maximum > top
            top[...] = torch.where(better, maximum, top)
            at[...] = torch.where(better, index + block.cols.start, at)
            continue
        maximum = torch.maximum(top, scores.amax(-1))
        base = torch.where(maximum == -torch.inf, 0, maximum)
        sum_[...] = sum_ * torch.exp(top - base) + torch.exp(scores - base.unsqueeze(-1)).sum(-1)
        top[...] = maximum
    return Statistic.hard(best, request.wide) if request.hard else with_large_rows(request, Statistic(highest, total))


def weights(request: Request, statistic: Statistic, cols: Span) -> Tensor:
    """Compute the weights of all rows and some columns, (*lead, Tq, cols)."""
    shape = (*request.lead, request.queries, span_length(cols))
    out = torch.empty(shape, dtype=request.wide, device=request.device)
    statistic, (row_step, col_step) = with_large_rows(request, statistic), block_shape(request, BLOCK)
    for row in range(0, shape[-2], row_step):
        rows = slice(row, min(row + row_step, shape[-2]))
        for band in Block(request, (), rows, slice(0, request.keys)).split_large(statistic):
            for col in range(0, shape[-1], col_step):
                into = slice(col, min(col + col_step, shape[-1]))
                out[..., band.rows, into] = band.weights(statistic, part_of(cols, into.start, into.stop))
    return out


def top(request: Request, statistic: Statistic, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest weights of each query and their indices, (*lead, Tq, count); 0 and −1 if there are fewer."""
    shape = (*request.lead, request.queries, count)
    best = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)
    at = torch.full(shape, -1, device=request.device)  # ranked by score: weights may underflow to 0
    used = statistic.map(torch.clone)
    for block in blocks(request, statistic):
        scores = block.scores()
        if request.hard:
            scores = torch.where(block.weights(statistic) > 0, scores, -torch.inf)
        if block.whole_rows is not None:
            rows = block.whole_rows[1]
            block.of_rows(used.highest)[...], block.of_rows(used.total)[...] = rows.highest, rows.total
        block_best, block_at = scores.topk(min(count, scores.shape[-1]))
        row_best, row_at = block.own(best)[..., block.rows, :], block.own(at)[..., block.rows, :]
        row_best[...], chosen = torch.cat([row_best, block_best], -1).topk(count)
        row_at[...] = torch.cat([row_at, block_at + block.cols.start], -1).gather(-1, chosen)
    at = torch.where(best == -torch.inf, -1, at)
    return (at >= 0).to(request.wide) if request.hard else used.weights(best), at


def entropy(request: Request, statistic: Statistic) -> Tensor:
    """Compute −Σⱼ weightᵢⱼ log weightᵢⱼ in nats, (*lead, Tq)."""
    out = torch.zeros(*request.lead, request.queries, dtype=request.wide, device=request.device)
    if request.hard:
        return out
    for block in blocks(request, statistic):
        log = block.statistic(statistic).logs(block.scores())
        weights = torch.exp(log)
        block.of_rows(out).sub_((weights * log.clamp(min=SMALLEST_LOG)).sum(-1))
    return out


def received(request: Request, statistic: Statistic) -> Tensor:
    """Compute the total weight of each key, Σᵢ weightᵢⱼ, (*lead, Tk)."""
    out = torch.zeros(*request.lead, request.keys, dtype=request.wide, device=request.device)
    for block in blocks(request, statistic):
        block.own(out)[..., block.cols] += block.weights(statistic).sum(-2)
    return out


def matmul(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """Compute weights · x for x (*lead, Tk, E): (*lead, Tq, E)."""
    out = torch.zeros(*request.lead, request.queries, x.shape[-1], dtype=request.wide, device=request.device)
    x = x.expand(*request.lead, *x.shape[-2:])
    for block in blocks(request, statistic):
        block.own(out)[..., block.rows, :] += block.weights(statistic) @ block.own(x)[..., block.cols, :]
    return out


def rmatmul(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """Compute x · weights for x (*lead, E, Tq): (*lead, E, Tk)."""
    out = torch.zeros(*request.lead, x.shape[-2], request.keys, dtype=request.wide, device=request.device)
    x = x.expand(*request.lead, *x.shape[-2:])
    for block in blocks(request, statistic):
        block.own(out)[..., block.cols] += block.own(x)[..., block.rows] @ block.weights(statistic)
    return out


def pool(request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce) -> Tensor:
    """Pool a region to an image, (*lead, rows.wanted, cols.wanted)."""
    shape = (*request.lead, rows.count, cols.count)
    out = torch.zeros(shape, dtype=request.wide, device=request.device)
    for band in bands(request, rows.region, cols.region, statistic):
        _, step = block_shape(band.request, BLOCK)
        for part in cols.parts(band.cols, step, request.device):
            scores = band.scores(part.span).unflatten(-1, (-1, part.width))  # (..., rows, cells, width)
            reduced = _reduced_weights(request, scores, band.statistic(statistic), part, reduce)  # (..., rows, cells)
            rows.fold(band.own(out)[..., part.cells], band.rows, reduced, largest=reduce == "max")
    if reduce == "mean":
        out = mean_(out, rows, cols)
    return cols.enlarge(rows.enlarge(out, -2), -1)


def shades(
    request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading
) -> Tensor:
    """Pool a region to an image of uint8 shades."""
    return shading.of(pool(request, statistic, rows, cols, reduce))


def _reduced_weights(request: Request, scores: Tensor, statistic: Statistic, part: Columns, reduce: Reduce) -> Tensor:
    """Reduce the weights of a block over the width of each cell."""
    if reduce == "max" and not request.hard:  # the exponential is monotone: one per cell, not one per pair
        return to_weights(request, scores.amax(-1), statistic, part.span)
    weights = to_weights(request, scores.flatten(-2), statistic, part.span).unflatten(-1, scores.shape[-2:])
    if reduce == "max":
        returned: Tensor = weights.amax(-1)
        return returned
    result: Tensor = (weights if part.counted is None else weights * part.counted).sum(-1)
    return result
