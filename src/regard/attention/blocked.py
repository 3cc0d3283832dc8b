"""The blocked backend: PyTorch only, streaming over blocks of pairs, forward and backward in O(N) memory.

    for rows in blocks of queries:
        for cols in blocks of the keys they may attend to:
            scores  = similarity(q[rows], k[cols]), softcap, mask
            fold scores and v[cols] into a running softmax           (Milakov & Gimelshein 2018; Dao et al. 2022)
        context[rows], highest[rows], total[rows] = result of the running softmax

The backward pass iterates over the same blocks, recomputes their scores with autograd enabled, and backpropagates
dscores = weights · (dweights − Σ weights · dweights) through them. So it supports any similarity that PyTorch can
differentiate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.tensors import transformed, wide, widen
from .derivatives import differentiable_gradients, needs_operators, unsupported_derivative
from .masks import take_block
from .request import Request, block_shape, narrow, repeat_heads
from .statistic import Statistic

name = "blocked"
handles_nonfinite = False

BLOCK = {"cpu": 2**20}
"""Elements in the scores of one block, by device type. Five to eight tensors of this size are alive at a time."""
BLOCK_DEFAULT = 2**24
MIN_SKIPPED_PAIRS = 2**17
"""Process batch entries one by one only if this skips more pairs per entry than this number, on average."""
LARGE_SCORE = 128
"""If scores exceed this, the backward pass recomputes them exactly as the forward pass did."""


def refusal(request: Request) -> str | None:
    """Return why this backend cannot serve a request, or None if it can."""
    if transformed():
        return "it has a backward pass of its own that torch.func (vmap, grad, jvp) cannot transform"
    return unsupported_derivative(request)


def context(request: Request) -> tuple[Tensor, Statistic]:
    """Return the context and the statistic of its rows. A compiler does not trace this."""
    global _untraced
    if _untraced is None and "torch._dynamo" in sys.modules:  # importing it takes a second
        _untraced = torch.compiler.disable(_context)
    return (_untraced or _context)(request)


_untraced: Callable[[Request], tuple[Tensor, Statistic]] | None = None


def _context(request: Request) -> tuple[Tensor, Statistic]:
    request = request.reduced()
    seed = int(torch.randint(2**62, ())) if request.dropout_p else 0
    out, highest, total, best = _Blocked.apply(request, seed, *request.tensors)  # type: ignore[no-untyped-call]  # torch declares no types
    return out, Statistic.hard(best, request.wide) if request.hard else Statistic(highest, total)


def _shape(request: Request) -> tuple[int, int]:
    return block_shape(request, BLOCK.get(request.device.type, BLOCK_DEFAULT))


@dataclass(frozen=True)
class _Part:
    """Batch entries that are processed together: all of them, or one if lengths differ so much that it saves work."""

    request: Request
    entry: int | None = None

    def view(self, x: Tensor, trailing: int) -> Tensor:
        """Return these entries of a tensor (*lead or broadcastable, *trailing dimensions), as a view."""
        return x if self.entry is None else narrow(x, len(self.request.lead), trailing, self.entry)

    def rows(self) -> Iterator[slice]:
        step, _ = _shape(self.request)
        for start in range(0, self.request.queries, step):
            yield slice(start, min(start + step, self.request.queries))

    def blocks(self, rows: slice) -> Iterator[_Block]:
        """Yield the blocks of these rows that may contain an unmasked pair."""
        _, step = _shape(self.request)
        first, last = self.request.mask.span(rows, self.request.keys)
        for start in range(first, last, step):
            number = ((self.entry or 0) * self.request.queries + rows.start) * self.request.keys + start
            yield _Block(rows, slice(start, min(start + step, last)), number)


@dataclass(frozen=True)
class _Block:
    rows: slice
    cols: slice
    number: int
    """Unique number of the block. It seeds dropout, so that the backward pass draws the same mask."""

    def dropout_factors(self, request: Request, seed: int) -> Tensor | None:
        """Return the dropout factors of the weights, 0 or 1 / (1 − p); None without dropout."""
        if not request.dropout_p:
            return None
        generator = torch.Generator(request.device).manual_seed((seed + self.number) % 2**63)
        shape = (*request.lead, self.rows.stop - self.rows.start, self.cols.stop - self.cols.start)
        uniform = torch.rand(shape, generator=generator, device=request.device, dtype=torch.float32)
        return (uniform >= request.dropout_p).to(request.wide) / ((1 - request.dropout_p) or 1.0)

    def hard_weights(self, best: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the hard weights of the block: 1 at the best key of each row, (..., rows, cols)."""
        key = torch.arange(self.cols.start, self.cols.stop, device=best.device)
        return (best[..., self.rows].unsqueeze(-1) == key).to(dtype)


def _parts(request: Request) -> Iterator[_Part]:
    """Yield one part; or one per batch entry, if skipping the keys past each length saves enough work."""
    lengths = request.mask.lengths
    if isinstance(lengths, Tensor) and lengths.ndim > 2 and lengths.shape[0] > 1 and request.can_narrow:
        entries, longest = lengths.shape[0], request.mask.span(slice(0, request.queries), request.keys)[1]
        skipped = int((longest - lengths).sum()) * request.queries * (request.entries // entries)
        if skipped > entries * MIN_SKIPPED_PAIRS:
            yield from (_Part(request.narrow(entry), entry) for entry in range(entries))
            return
    yield _Part(request)


def _all_blocks(request: Request) -> Iterator[tuple[_Part, _Block]]:
    """Yield all blocks that may contain an unmasked pair, each with its part."""
    for part in _parts(request):
        for rows in part.rows():
            for block in part.blocks(rows):
                yield part, block


class _RunningSoftmax:
    """A running softmax over blocks of keys: the highest score, the total, and the weighted sum of values."""

    def __init__(self, request: Request) -> None:
        zero = torch.zeros((), dtype=request.wide, device=request.device)
        self.hard = request.hard
        self.highest = zero - torch.inf  # after the first block (..., rows, 1)
        self.best = torch.full_like(zero, -1, dtype=torch.int64)  # likewise, for hard weighting
        self.total, self.summed = zero, zero  # (..., rows, 1), (..., rows, Dv)

    def add(self, scores: Tensor, v: Tensor, dropout_factors: Tensor | None, first: int) -> None:
        top = scores.amax(-1, keepdim=True)  # (..., rows, 1)
        if self.hard:
            index = scores.argmax(-1, keepdim=True) + first  # the first one on ties
            self.best = torch.where(top > self.highest, index, self.best)
        highest = torch.maximum(self.highest, top)
        base = torch.where(highest == -torch.inf, 0, highest)
        e = torch.exp(scores - base)  # (..., rows, cols)
        shrink = torch.exp(self.highest - base)
        self.total = self.total * shrink + e.sum(-1, keepdim=True)
        self.summed = self.summed * shrink + (e if dropout_factors is None else e * dropout_factors) @ v
        self.highest = highest

    @property
    def context(self) -> Tensor:
        return self.summed / torch.where(self.total == 0, 1, self.total)


def _forward(request: Request, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the soft context (*lead, Tq, Dv), and highest score, total and best key, (*lead, Tq) each."""
    lead = (*request.lead, request.queries)
    soft = torch.zeros(*lead, request.value.shape[-1], dtype=request.wide, device=request.device)
    highest, total = soft.new_full(lead, -torch.inf), soft.new_zeros(lead)
    best = torch.full(lead, -1, device=request.device)
    for part in _parts(request):
        for rows in part.rows():
            softmax = _RunningSoftmax(request)
            for block in part.blocks(rows):
                v = _values(part.request, block)
                dropout_factors = block.dropout_factors(part.request, seed)
                softmax.add(part.request.scores(block.rows, block.cols), v, dropout_factors, block.cols.start)
            part.view(soft, 2)[..., rows, :] = softmax.context
            part.view(highest, 1).unsqueeze(-1)[..., rows, :] = softmax.highest
            part.view(total, 1).unsqueeze(-1)[..., rows, :] = softmax.total
            part.view(best, 1).unsqueeze(-1)[..., rows, :] = softmax.best
    return soft, highest, total, best


def _hard_context(request: Request, best: Tensor, seed: int) -> Tensor:
    """Return the context of hard weights: the value of the best key, or 0 if it is dropped."""
    out = torch.zeros(*best.shape, request.value.shape[-1], dtype=request.wide, device=request.device)
    for part, block in _all_blocks(request):
        weights = block.hard_weights(part.view(best, 1), request.wide)
        dropout_factors = block.dropout_factors(part.request, seed)
        weights = weights if dropout_factors is None else weights * dropout_factors
        part.view(out, 2)[..., block.rows, :] += weights @ _values(part.request, block)
    return out


def _all_dropout_factors(request: Request, seed: int) -> Tensor | None:
    """Return the dropout factors of all weights, (*lead, Tq, Tk), as drawn by the blocks; None without dropout."""
    if not request.dropout_p:
        return None
    whole = torch.zeros(request.shape, dtype=request.wide, device=request.device)
    for part, block in _all_blocks(request):
        dropout_factors = block.dropout_factors(part.request, seed)
        assert dropout_factors is not None
        part.view(whole, 2)[..., block.rows, block.cols] = dropout_factors
    return whole


def _values(request: Request, block: _Block) -> Tensor:
    return widen(repeat_heads(request.value[..., block.cols, :], request.groups))  # (..., cols, Dv)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Request, seed: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        request = request.with_tensors([x if x is None else x.detach() for x in tensors])
        soft, highest, total, best = _forward(request, seed)
        out = _hard_context(request, best, seed) if request.hard else soft
        ctx.request, ctx.seed = request, seed
        ctx.save_for_backward(soft, highest, total, best, *tensors)
        ctx.mark_non_differentiable(highest, total, best)
        return out.to(request.value.dtype), highest, total, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        soft, highest, total, best, *tensors = ctx.saved_tensors
        if grad is None:
            return (None, None, *(None for _ in tensors))
        if needs_operators(grad):
            request = ctx.request.with_tensors(tensors)
            dropout_factors = _all_dropout_factors(request, ctx.seed)
            return (None, None, *differentiable_gradients(request, ctx.needs_input_grad[2:], grad, dropout_factors))
        backward_pass = _Backward(ctx.request.with_tensors(tensors), ctx.seed, ctx.needs_input_grad[2:])
        return (None, None, *backward_pass.run(widen(grad), soft, Statistic(highest, total), best))


class _Backward:
    """Iterates over the blocks again and sums the gradients of `Request.tensors`."""

    def __init__(self, request: Request, seed: int, needed_grads: tuple[bool, ...]) -> None:
        self.request, self.seed = request, seed
        self.tensors = request.tensors
        self.sums = [
            torch.zeros(x.shape, dtype=wide(x.dtype), device=x.device) if x is not None and needed else None
            for x, needed in zip(self.tensors, needed_grads, strict=True)
        ]

    def run(self, grad: Tensor, soft: Tensor, statistic: Statistic, best: Tensor) -> list[Tensor | None]:
        delta = (grad * soft).sum(-1, keepdim=True)  # Σⱼ weightᵢⱼ · dweightᵢⱼ, (*lead, Tq, 1)
        for part, block in _all_blocks(self.request):
            g, d = (part.view(x, 2)[..., block.rows, :] for x in (grad, delta))
            rows = Statistic(*(part.view(x, 1)[..., block.rows] for x in (statistic.highest, statistic.total)))
            self._block(part, block, g, d, rows, part.view(best, 1))
        return [s if s is None or x is None else s.to(x.dtype) for s, x in zip(self.sums, self.tensors, strict=True)]

    def _block(
        self, part: _Part, block: _Block, grad: Tensor, delta: Tensor, statistic: Statistic, best: Tensor
    ) -> None:
        request = part.request
        scores, leaves = self._scores(part, block)
        soft = statistic.weights(self._forward_scores(part, block, scores, statistic))  # (..., rows, cols)
        dropout_factors = block.dropout_factors(request, self.seed)
        if self.sums[2] is not None:
            weights = block.hard_weights(best, request.wide) if request.hard else soft
            dv = (weights if dropout_factors is None else weights * dropout_factors).mT @ grad  # (..., cols, Dv)
            into = part.view(self.sums[2], 2)[..., block.cols, :]
            into += _sum_to_shape(dv, request.groups, into.shape)
        if not scores.requires_grad:
            return
        dweights = grad @ _values(request, block).mT  # (..., rows, cols)
        if dropout_factors is not None:
            dweights = dweights * dropout_factors
        dscores = (soft * (dweights - delta)).sum_to_size(scores.shape)
        retain = not request.separable  # the graph of a callable may be shared between blocks
        inputs = [leaf for leaf, _ in leaves]
        for (_, into), gradient in zip(
            leaves, torch.autograd.grad(scores, inputs, dscores, retain_graph=retain, allow_unused=True), strict=True
        ):
            if gradient is not None:
                into += gradient

    @staticmethod
    def _forward_scores(part: _Part, block: _Block, scores: Tensor, statistic: Statistic) -> Tensor:
        """Return the scores as the forward pass computed them.

        PyTorch may choose another matrix product for tensors that require a gradient, with different rounding. This is
        harmless for ordinary scores, but e^(score − highest) of huge ones would overflow.
        """
        finite = torch.where(statistic.highest.isfinite(), statistic.highest, 0)
        if not finite.numel() or bool(finite.abs().amax() <= LARGE_SCORE):
            return scores.detach()
        request = part.request.with_tensors([x if x is None else x.detach() for x in part.request.tensors])
        with torch.no_grad():
            return request.scores(block.rows, block.cols)

    def _scores(self, part: _Part, block: _Block) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the block's scores with their graph, and its leaves, each with the sum of its gradient."""
        request, rows, cols = part.request, block.rows, block.cols
        leaves: list[tuple[Tensor, Tensor]] = []

        def leaf(x: Tensor, number: int, select: Callable[[Tensor], Tensor]) -> Tensor:
            total = self.sums[number]
            x = select(x).detach()
            x = widen(x) if request.separable else x  # a callable gets the dtype of the inputs
            if total is not None:
                leaves.append((x.requires_grad_(), select(part.view(total, 2))))
            return x

        q = leaf(request.q, 0, lambda x: x[..., rows, :])
        k = leaf(request.k, 1, lambda x: x[..., cols, :])
        bias = request.mask.bias(rows, cols)
        if bias is not None and request.mask.dense is not None:
            bias = leaf(request.mask.dense, 3, lambda x: take_block(x, rows, cols))
        similarity = request.similarity
        if request.separable:
            similarity = similarity.with_parameters(
                tuple(leaf(p, 4 + i, lambda x: x) for i, p in enumerate(similarity.parameters))
            )
        else:
            totals = zip(similarity.parameters, self.sums[4:], strict=True)
            leaves += [(p, total) for p, total in totals if total is not None]
        with torch.enable_grad():
            return replace(request, similarity=similarity).score(q, k, rows, cols, bias), leaves


def _sum_to_shape(x: Tensor, groups: int, shape: torch.Size) -> Tensor:
    """Sum (*lead, T, D) to the shape of a key or value: the transpose of `repeat_heads` and of broadcasting."""
    if groups > 1:
        x = x.unflatten(-3, (-1, groups)).sum(-3)  # (..., H / groups, T, D)
    return x.sum_to_size(shape)
