"""The verbs of a map, streamed: blocks of exact weights, folded one by one into what was asked.

A row's statistic (the log-sum-exp of its scores; under hard weighting the index of its best key) turns any score into
its weight, so a view computes the scores it needs and no others. Memory: a few blocks of BLOCK numbers, and the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .cells import Cells, Columns, mean_
from .masks import Span, indices
from .request import Request, block_shape
from .shading import Shading

Reduce: TypeAlias = Literal["max", "mean", "sum"]

BLOCK = 2**19
"""Numbers in one block of scores: a few such blocks stay in a core's cache."""
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

    def scores(self, cols: Span | None = None) -> Tensor:
        """(..., rows, cols)"""
        scores = scores_of(self.request, self.rows, self.cols if cols is None else cols)
        return scores.expand(*self.request.lead, *scores.shape[-2:])

    def own(self, x: Tensor) -> Tensor:
        """The entries of this block in a tensor over all of them, as a view."""
        return x[self.entry]

    def statistic(self, whole: Tensor) -> Tensor:
        """The statistic of these rows, (..., rows)."""
        return self.own(whole)[..., self.rows]

    def weights(self, statistic: Tensor) -> Tensor:
        """(..., rows, cols), from the statistic of all rows and entries."""
        return to_weights(self.request, self.scores(), self.statistic(statistic), self.cols)


def bands(request: Request, rows: slice, cols: slice) -> Iterator[Block]:
    """Some rows of a region at a time, as wide as they may attend; entry by entry where all would be too much."""
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
                yield Block(part, entry, some, slice(first, last))


def blocks(request: Request) -> Iterator[Block]:
    """Blocks that hold every pair that may attend."""
    for band in bands(request, slice(0, request.queries), slice(0, request.keys)):
        _, step = block_shape(band.request, BLOCK)
        for start in range(band.cols.start, band.cols.stop, step):
            yield replace(band, cols=slice(start, min(start + step, band.cols.stop)))


def scores_of(request: Request, rows: Span, cols: Span) -> Tensor:
    """Scores (*lead or broadcastable, rows, cols), −∞ where a float mask says so, even if a key there is NaN."""
    scores, bias = request.scores(rows, cols), request.mask.bias(rows, cols)
    return scores if bias is None else torch.where(bias == -torch.inf, -torch.inf, scores)


def to_weights(request: Request, scores: Tensor, statistic: Tensor, cols: Span) -> Tensor:
    """Scores (..., rows, cols) and the statistic of their rows (..., rows) → weights."""
    if request.hard:
        return (indices(cols, scores.device) == statistic.unsqueeze(-1)).to(scores.dtype)
    return torch.exp(scores - _base(statistic).unsqueeze(-1))


def _base(lse: Tensor) -> Tensor:
    """A log-sum-exp to subtract: 0 where a row has no keys, so that its weights are 0 and not NaN."""
    return torch.where(lse == -torch.inf, 0, lse)


def statistic(request: Request) -> Tensor:
    """The statistic of every row, (*lead, Tq)."""
    shape = (*request.lead, request.queries)
    highest = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)
    best = torch.full(shape, -1, device=request.device)
    total = torch.zeros_like(highest)
    for block in blocks(request):
        scores = block.scores()
        top, sum_, at = (block.statistic(x) for x in (highest, total, best))
        if request.hard:
            found, where = scores.max(-1)
            better = found > top
            top[...] = torch.where(better, found, top)
            at[...] = torch.where(better, where + block.cols.start, at)
            continue
        found = torch.maximum(top, scores.amax(-1))
        base = _base(found)
        sum_[...] = sum_ * torch.exp(top - base) + torch.exp(scores - base.unsqueeze(-1)).sum(-1)
        top[...] = found
    return best if request.hard else _base(highest) + total.log()


def weights(request: Request, statistic: Tensor, cols: Span) -> Tensor:
    """The weights of all rows and some columns, (*lead, Tq, cols)."""
    columns = indices(cols, request.device)
    shape = (*request.lead, request.queries, len(columns))
    out = torch.empty(shape, dtype=request.wide, device=request.device)
    row_step, col_step = block_shape(request, BLOCK)
    for row in range(0, shape[-2], row_step):
        rows = slice(row, min(row + row_step, shape[-2]))
        for col in range(0, shape[-1], col_step):
            part = columns[col : col + col_step]
            block = to_weights(request, scores_of(request, rows, part), statistic[..., rows], part)
            out[..., rows, col : col + col_step] = block
    return out


def top(request: Request, statistic: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The strongest keys of each query, values and indices (*lead, Tq, count); 0 and −1 where there are fewer."""
    shape = (*request.lead, request.queries, count)
    best = torch.full(shape, -torch.inf, dtype=request.wide, device=request.device)  # by score: a weight that
    at = torch.full(shape, -1, device=request.device)  # underflows to 0 keeps its rank
    for block in blocks(request):
        scores = block.scores()
        if request.hard:
            scores = torch.where(block.weights(statistic) > 0, scores, -torch.inf)
        found, where = scores.topk(min(count, scores.shape[-1]))
        held, places = block.own(best)[..., block.rows, :], block.own(at)[..., block.rows, :]
        both = torch.cat([held, found], -1)
        held[...], chosen = both.topk(count)
        places[...] = torch.cat([places, where + block.cols.start], -1).gather(-1, chosen)
    at = torch.where(best == -torch.inf, -1, at)
    values = (at >= 0).to(request.wide) if request.hard else torch.exp(best - _base(statistic).unsqueeze(-1))
    return values, at


def entropy(request: Request, statistic: Tensor) -> Tensor:
    """−Σⱼ weightᵢⱼ log weightᵢⱼ in nats, (*lead, Tq)."""
    out = torch.zeros(*request.lead, request.queries, dtype=request.wide, device=request.device)
    if request.hard:
        return out
    for block in blocks(request):
        log = block.scores() - _base(block.statistic(statistic)).unsqueeze(-1)
        weights = torch.exp(log)
        block.statistic(out).sub_((weights * log.clamp(min=SMALLEST_LOG)).sum(-1))
    return out


def received(request: Request, statistic: Tensor) -> Tensor:
    """Σᵢ weightᵢⱼ: what each key receives, (*lead, Tk)."""
    out = torch.zeros(*request.lead, request.keys, dtype=request.wide, device=request.device)
    for block in blocks(request):
        block.own(out)[..., block.cols] += block.weights(statistic).sum(-2)
    return out


def times(request: Request, statistic: Tensor, x: Tensor) -> Tensor:
    """weights · x, x (*lead, Tk, E) → (*lead, Tq, E)."""
    out = torch.zeros(*request.lead, request.queries, x.shape[-1], dtype=request.wide, device=request.device)
    x = x.expand(*request.lead, *x.shape[-2:])
    for block in blocks(request):
        block.own(out)[..., block.rows, :] += block.weights(statistic) @ block.own(x)[..., block.cols, :]
    return out


def before(request: Request, statistic: Tensor, x: Tensor) -> Tensor:
    """x · weights, x (*lead, E, Tq) → (*lead, E, Tk)."""
    out = torch.zeros(*request.lead, x.shape[-2], request.keys, dtype=request.wide, device=request.device)
    x = x.expand(*request.lead, *x.shape[-2:])
    for block in blocks(request):
        block.own(out)[..., block.cols] += block.own(x)[..., block.rows] @ block.weights(statistic)
    return out


def pool(request: Request, statistic: Tensor, rows: Cells, cols: Cells, reduce: Reduce) -> Tensor:
    """A region as a picture of (rows.wanted, cols.wanted) cells, (*lead, rows.wanted, cols.wanted)."""
    shape = (*request.lead, rows.count, cols.count)
    out = torch.zeros(shape, dtype=request.wide, device=request.device)
    for band in bands(request, rows.region, cols.region):
        _, step = block_shape(band.request, BLOCK)
        for part in cols.parts(band.cols, step, request.device):
            scores = band.scores(part.span).unflatten(-1, (-1, part.width))  # (..., rows, cells, width)
            strength = _strength(request, scores, band.statistic(statistic), part, reduce)  # (..., rows, cells)
            rows.fold(band.own(out)[..., part.cells], band.rows, strength, largest=reduce == "max")
    if reduce == "mean":
        out = mean_(out, rows, cols)
    return cols.enlarge(rows.enlarge(out, -2), -1)


def shades(request: Request, statistic: Tensor, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading) -> Tensor:
    """The same picture in shades, uint8."""
    return shading.of(pool(request, statistic, rows, cols, reduce))


def _strength(request: Request, scores: Tensor, statistic: Tensor, part: Columns, reduce: Reduce) -> Tensor:
    """The weights of a block folded over the width of each cell."""
    if reduce == "max" and not request.hard:  # the exponential is monotone: one per cell, not one per pair
        return to_weights(request, scores.amax(-1), statistic, part.span)
    weights = to_weights(request, scores.flatten(-2), statistic, part.span).unflatten(-1, scores.shape[-2:])
    if reduce == "max":
        return weights.amax(-1)
    return (weights if part.counted is None else weights * part.counted).sum(-1)
