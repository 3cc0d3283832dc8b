"""The verbs of a map, streamed: blocks of exact weights, folded one by one into what was asked.

The statistic of a row (`statistic.py`) turns any of its scores into a weight, so a view computes only the scores it
needs. This requires that two calls give the same scores. Libraries round products of different shapes differently: by
little for ordinary scores, but at 1e12 by 1e5, and e^(score − highest) may then be anything. Rows in which this would
show (`large_rows`) are computed whole and normalised by the scores of the view itself: no weight exceeds 1, and every
row adds up to 1, on every host.

Memory: a few blocks of BLOCK or ROWS numbers, or one row, and the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .cells import Cells, Columns, Shading, mean_
from .masks import Span, indices
from .request import Request, block_shape
from .statistic import Statistic, examined

Reduce: TypeAlias = Literal["max", "mean", "sum"]

BLOCK = 2**19
"""Numbers in one block of scores: a few such blocks stay in a core's cache."""
ROWS = 2**21
"""Scores of rows that are computed whole."""
SMALLEST_LOG = -1e4
"""In place of log 0, where it is multiplied by a weight of 0."""


@dataclass(frozen=True)
class Block:
    """Some rows and columns of some entries."""

    request: Request
    entry: tuple[int, ...]
    """Which entry of the leading dimensions; () for all of them together."""
    rows: slice
    cols: slice
    whole: tuple[Tensor, Statistic] | None = None
    """Of rows that are computed whole, all scores (..., rows, Tk), and the statistic of just these."""

    def scores(self, cols: Span | None = None) -> Tensor:
        """(..., rows, cols)"""
        cols = self.cols if cols is None else cols
        scores = scores_of(self.request, self.rows, cols) if self.whole is None else self.whole[0][..., cols]
        return scores.expand(*self.request.lead, *scores.shape[-2:])

    def own(self, x: Tensor) -> Tensor:
        """The entries of this block in a tensor over all of them, as a view."""
        return x[self.entry]

    def of_rows(self, x: Tensor) -> Tensor:
        """The rows of this block in a tensor (*lead, Tq), as a view."""
        return self.own(x)[..., self.rows]

    def statistic(self, statistic: Statistic) -> Statistic:
        """The statistic that belongs to the scores of this block, (..., rows), from that of all rows and entries."""
        return statistic.map(self.of_rows) if self.whole is None else self.whole[1]

    def weights(self, statistic: Statistic, cols: Span | None = None) -> Tensor:
        """(..., rows, cols), from the statistic of all rows and entries."""
        cols = self.cols if cols is None else cols
        return to_weights(self.request, self.scores(cols), self.statistic(statistic), cols)

    def parted(self, statistic: Statistic | None) -> Iterator[Block]:
        """The block itself; or, if it has large rows, a few rows at a time that are computed whole."""
        if statistic is None or statistic.large is None or not bool(self.of_rows(statistic.large).any()):
            yield self
            return
        height = max(1, ROWS // max(1, self.request.entries * self.request.keys))
        for start in range(self.rows.start, self.rows.stop, height):
            part = replace(self, rows=slice(start, min(start + height, self.rows.stop)))
            scores = whole_scores(part.request, part.rows)
            found = Statistic.of(scores)
            if statistic.sink is not None:
                found = found.with_sink(part.of_rows(statistic.sink))
            yield replace(part, whole=(scores, found))


def whole_scores(request: Request, rows: slice) -> Tensor:
    """All scores of some rows, (*lead, rows, Tk); −∞ where they may not attend."""
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
    """Some rows of a region at a time, as wide as they may attend; entry by entry where all would be too much.

    With the statistic of all rows, large ones come apart, computed whole.
    """
    statistic = None if statistic is None else examined(request, statistic)
    pairs = request.entries * (rows.stop - rows.start) * (cols.stop - cols.start)
    if pairs <= BLOCK or not request.separable or request.entries == 1:
        parts: Iterator[tuple[tuple[int, ...], Request]] = iter([((), request)])
    else:
        parts = ((entry, request.select(entry)) for entry in itertools.product(*map(range, request.lead)))
    for entry, part in parts:
        step, _ = block_shape(part, BLOCK)
        for start in range(rows.start, rows.stop, step):
            some = slice(start, min(start + step, rows.stop))
            first, last = part.mask.span(some, part.keys)
            first, last = max(first, cols.start), min(last, cols.stop)
            if first < last:
                yield from Block(part, entry, some, slice(first, last)).parted(statistic)


def blocks(request: Request, statistic: Statistic | None = None) -> Iterator[Block]:
    """Blocks that hold every pair that may attend."""
    for band in bands(request, slice(0, request.queries), slice(0, request.keys), statistic):
        if band.whole is not None:
            yield band
            continue
        _, step = block_shape(band.request, BLOCK)
        for start in range(band.cols.start, band.cols.stop, step):
            yield replace(band, cols=slice(start, min(start + step, band.cols.stop)))


def scores_of(request: Request, rows: Span, cols: Span) -> Tensor:
    """Scores (*lead or broadcastable, rows, cols), −∞ where a float mask says so, even if a key there is NaN."""
    scores, bias = request.scores(rows, cols), request.mask.bias(rows, cols)
    return scores if bias is None else torch.where(bias == -torch.inf, -torch.inf, scores)


def to_weights(request: Request, scores: Tensor, statistic: Statistic, cols: Span) -> Tensor:
    """Scores (..., rows, cols) and the statistic of their rows (..., rows) → weights."""
    if request.hard:
        return (indices(cols, scores.device) == statistic.highest.unsqueeze(-1)).to(scores.dtype)
    return statistic.weights(scores)


def statistic(request: Request) -> Statistic:
    """The statistic of every row, (*lead, Tq), large rows marked."""
    shape = (*request.lead, request.queries)
    highest = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)
    best = torch.full(shape, -1, device=request.device)
    total = torch.zeros_like(highest)
    for block in blocks(request):
        scores = block.scores()
        top, sum_, at = (block.of_rows(x) for x in (highest, total, best))
        if request.hard:
            found, where = scores.max(-1)
            better = found > top
            top[...] = torch.where(better, found, top)
            at[...] = torch.where(better, where + block.cols.start, at)
            continue
        found = torch.maximum(top, scores.amax(-1))
        base = torch.where(found == -torch.inf, 0, found)
        sum_[...] = sum_ * torch.exp(top - base) + torch.exp(scores - base.unsqueeze(-1)).sum(-1)
        top[...] = found
    return Statistic.hard(best, request.wide) if request.hard else examined(request, Statistic(highest, total))


def weights(request: Request, statistic: Statistic, cols: Span) -> Tensor:
    """The weights of all rows and some columns, (*lead, Tq, cols)."""
    columns = indices(cols, request.device)
    shape = (*request.lead, request.queries, len(columns))
    out = torch.empty(shape, dtype=request.wide, device=request.device)
    statistic, (row_step, col_step) = examined(request, statistic), block_shape(request, BLOCK)
    for row in range(0, shape[-2], row_step):
        rows = slice(row, min(row + row_step, shape[-2]))
        for band in Block(request, (), rows, slice(0, request.keys)).parted(statistic):
            for col in range(0, shape[-1], col_step):
                into = slice(col, min(col + col_step, shape[-1]))
                out[..., band.rows, into] = band.weights(statistic, columns[into])
    return out


def top(request: Request, statistic: Statistic, count: int) -> tuple[Tensor, Tensor]:
    """The strongest keys of each query, values and indices (*lead, Tq, count); 0 and −1 where there are fewer."""
    shape = (*request.lead, request.queries, count)
    best = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)  # by score: a weight that
    at = torch.full(shape, -1, device=request.device)  # underflows to 0 keeps its rank
    used = statistic.map(torch.clone)
    for block in blocks(request, statistic):
        scores = block.scores()
        if request.hard:
            scores = torch.where(block.weights(statistic) > 0, scores, -torch.inf)
        if block.whole is not None:
            rows = block.whole[1]
            block.of_rows(used.highest)[...], block.of_rows(used.total)[...] = rows.highest, rows.total
        found, where = scores.topk(min(count, scores.shape[-1]))
        held, places = block.own(best)[..., block.rows, :], block.own(at)[..., block.rows, :]
        both = torch.cat([held, found], -1)
        held[...], chosen = both.topk(count)
        places[...] = torch.cat([places, where + block.cols.start], -1).gather(-1, chosen)
    at = torch.where(best == -torch.inf, -1, at)
    return (at >= 0).to(request.wide) if request.hard else used.weights(best), at


def entropy(request: Request, statistic: Statistic) -> Tensor:
    """−Σⱼ weightᵢⱼ log weightᵢⱼ in nats, (*lead, Tq)."""
    out = torch.zeros(*request.lead, request.queries, dtype=request.wide, device=request.device)
    if request.hard:
        return out
    for block in blocks(request, statistic):
        log = block.statistic(statistic).logs(block.scores())
        weights = torch.exp(log)
        block.of_rows(out).sub_((weights * log.clamp(min=SMALLEST_LOG)).sum(-1))
    return out


def received(request: Request, statistic: Statistic) -> Tensor:
    """Σᵢ weightᵢⱼ: what each key receives, (*lead, Tk)."""
    out = torch.zeros(*request.lead, request.keys, dtype=request.wide, device=request.device)
    for block in blocks(request, statistic):
        block.own(out)[..., block.cols] += block.weights(statistic).sum(-2)
    return out


def times(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """weights · x, x (*lead, Tk, E) → (*lead, Tq, E)."""
    out = torch.zeros(*request.lead, request.queries, x.shape[-1], dtype=request.wide, device=request.device)
    x = x.expand(*request.lead, *x.shape[-2:])
    for block in blocks(request, statistic):
        block.own(out)[..., block.rows, :] += block.weights(statistic) @ block.own(x)[..., block.cols, :]
    return out


def before(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """x · weights, x (*lead, E, Tq) → (*lead, E, Tk)."""
    out = torch.zeros(*request.lead, x.shape[-2], request.keys, dtype=request.wide, device=request.device)
    x = x.expand(*request.lead, *x.shape[-2:])
    for block in blocks(request, statistic):
        block.own(out)[..., block.cols] += block.own(x)[..., block.rows] @ block.weights(statistic)
    return out


def pool(request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce) -> Tensor:
    """A region as a picture of (rows.wanted, cols.wanted) cells, (*lead, rows.wanted, cols.wanted)."""
    shape = (*request.lead, rows.count, cols.count)
    out = torch.zeros(shape, dtype=request.wide, device=request.device)
    for band in bands(request, rows.region, cols.region, statistic):
        _, step = block_shape(band.request, BLOCK)
        for part in cols.parts(band.cols, step, request.device):
            scores = band.scores(part.span).unflatten(-1, (-1, part.width))  # (..., rows, cells, width)
            strength = _strength(request, scores, band.statistic(statistic), part, reduce)  # (..., rows, cells)
            rows.fold(band.own(out)[..., part.cells], band.rows, strength, largest=reduce == "max")
    if reduce == "mean":
        out = mean_(out, rows, cols)
    return cols.enlarge(rows.enlarge(out, -2), -1)


def shades(
    request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading
) -> Tensor:
    """The same picture in shades, uint8."""
    return shading.of(pool(request, statistic, rows, cols, reduce))


def _strength(request: Request, scores: Tensor, statistic: Statistic, part: Columns, reduce: Reduce) -> Tensor:
    """The weights of a block folded over the width of each cell."""
    if reduce == "max" and not request.hard:  # the exponential is monotone: one per cell, not one per pair
        return to_weights(request, scores.amax(-1), statistic, part.span)
    weights = to_weights(request, scores.flatten(-2), statistic, part.span).unflatten(-1, scores.shape[-2:])
    if reduce == "max":
        return weights.amax(-1)
    return (weights if part.counted is None else weights * part.counted).sum(-1)
