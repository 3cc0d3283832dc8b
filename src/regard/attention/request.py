"""`Request`: the validated, immutable arguments of a call of the operator.

All validation happens when a request is created. A backend computes requests; a map stores one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from ..core.tensors import autocast_dtype, wide
from ..core.trace import trace_step
from . import validation
from .masks import OPEN, Mask, Span
from .similarity import Dot, Pairwise, Similarity, SimilarityArgument, resolve

Weighting: TypeAlias = Literal["softmax", "hard", "uniform"]
"""The argument `weighting` of `attend`."""
Index: TypeAlias = int | slice | Tensor
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Request:
    """A call of the operator. Leading dimensions of query, key and value broadcast and are not expanded here."""

    q: Tensor
    """(*lead, Tq, D)"""
    k: Tensor
    """(*lead, Tk, D), with `groups` times fewer heads"""
    v: Tensor | None
    """(*lead, Tk, Dv), likewise; None in a map"""
    similarity: Similarity
    _: KW_ONLY
    lead: tuple[int, ...]
    hard: bool = False
    mask: Mask = OPEN
    softcap: float | None = None
    dropout_p: float = 0.0
    groups: int = 1
    """Number of query heads per key head: dimension −3 of q is that of k times groups."""

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        similarity: SimilarityArgument = "scaled_dot",
        weighting: Weighting = "softmax",
        softcap: float | None = None,
        window: tuple[int | None, int | None] | None = None,
        causal_offset: int | Tensor | Sequence[int] = 0,
        lengths: int | Tensor | Sequence[int] | None = None,
    ) -> Request:
        """Validate the arguments of `attend`. Raises ValueError, which names the value and a remedy."""
        validation.tensors(query, key, value)
        query, key, value = _under_autocast(query, key, value)
        groups, lead = validation.lead(query, key, value, enable_gqa)
        attn_mask, is_causal, causal_offset = validation.causal_bias(
            attn_mask, is_causal, window, causal_offset, query, key
        )
        validation.options(dropout_p, softcap, weighting, window)
        validation.widths(query, key, similarity)
        resolved = resolve(
            similarity, scale, query.shape[-1], lambda: (query[..., :1, :], repeat_heads(key[..., :1, :], groups))
        )
        validation.parameters(resolved, query, key, lead)
        left, right = window if window is not None else (None, None)
        if is_causal:
            right = 0 if right is None else min(right, 0)
        offset = validation.per_entry("causal_offset", causal_offset, lead, query.device)
        if attn_mask is None and lengths is None and left is None and right is None:
            mask = OPEN
        else:
            dense = validation.attn_mask(attn_mask, query, key, lead)
            mask = Mask(dense, left, right, offset, None if lengths is None else validation.lengths(lengths, key, lead))
        if 0 in (query.shape[-1], key.shape[-1]) and not isinstance(resolved, Pairwise):
            query, key = _without_width(query, *resolved.parameters), _without_width(key)
            resolved = Dot()  # every score is an empty sum, 0
        if weighting == "uniform":  # a softmax of equal scores, so backends need not handle it
            ignored = (*resolved.parameters, mask.dense)
            query, key, resolved, softcap = _zero(query, *ignored), _zero(key), Dot(), None
            mask = mask.without_bias()
        return cls(
            query,
            key,
            value,
            resolved,
            lead=tuple(lead),
            hard=weighting == "hard",
            mask=mask,
            softcap=softcap,
            dropout_p=float(dropout_p),
            groups=groups,
        )

    @classmethod
    def of_parts(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        similarity: Similarity,
        *,
        lead: tuple[int, ...],
        hard: bool = False,
        mask: Mask = OPEN,
        softcap: float | None = None,
        groups: int = 1,
    ) -> Request:
        """Create a request without dropout from the values of its fields.

        Raises ValueError if they do not match. Values of tensors are not checked (see `validation.numbers`).
        """
        validation.parts(q, k, v, mask, similarity, softcap, groups, lead)
        return cls(q, k, v, similarity, lead=lead, hard=hard, mask=mask, softcap=softcap, groups=groups)

    @property
    def queries(self) -> int:
        return self.q.shape[-2]

    @property
    def keys(self) -> int:
        return self.k.shape[-2]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weights, (*lead, Tq, Tk)."""
        return (*self.lead, self.queries, self.keys)

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def wide(self) -> torch.dtype:
        """Dtype of scores, log-sum-exps and sums."""
        return wide(self.q.dtype)

    @property
    def entries(self) -> int:
        return math.prod(self.lead)

    @property
    def value(self) -> Tensor:
        assert self.v is not None, "a map keeps no values"
        return self.v

    def reduced(self) -> Request:
        """Return an equivalent request whose similarity is a dot product, or `self` if there is none.

        The reduction runs under autograd, outside every kernel. Its gradient multiplies masked rows by zero, and
        0 · NaN is NaN. So rows of q and k that are not finite bypass it and come out as rows of NaN.
        """
        q, k, similarity = self.similarity.reduce(self.q, self.k)
        if similarity is self.similarity:
            return self
        changed = [(x, y) for x, y in ((self.q, q), (self.k, k)) if x is not y]
        if any(y.requires_grad for _, y in changed) and not validation.finite(*(x for x, _ in changed)):
            return self._reduced_around_nonfinite()
        return replace(self, q=q, k=k, similarity=similarity)

    def _reduced_around_nonfinite(self) -> Request:
        bad_q, bad_k = map(validation.nonfinite_rows, (self.q, self.k))  # (..., Tq, 1), (..., Tk, 1)
        q, k, similarity = self.similarity.reduce(torch.where(bad_q, 0, self.q), torch.where(bad_k, 0, self.k))
        q, k = torch.where(bad_q, torch.nan, q), torch.where(bad_k, torch.nan, k)
        return replace(self, q=q, k=k, similarity=similarity)

    def kept(self) -> Request:
        """Return the request that a map stores: reduced, detached, and without values and dropout."""
        with torch.no_grad():
            reduced = self.reduced()
        similarity = reduced.similarity.with_parameters(tuple(p.detach() for p in reduced.similarity.parameters))
        if isinstance(similarity, Pairwise) and not reduced.mask.open and not validation.finite(reduced.q, reduced.k):
            similarity = _around_nonfinite(similarity)
        mask = reduced.mask if reduced.mask.dense is None else replace(reduced.mask, dense=reduced.mask.dense.detach())
        return replace(
            reduced, q=reduced.q.detach(), k=reduced.k.detach(), v=None, similarity=similarity, mask=mask, dropout_p=0.0
        )

    def scores(self, rows: Span, cols: Span) -> Tensor:
        """Return the scores of one block, (*lead or broadcastable, rows, cols), −∞ where a query may not attend."""
        return self.score(self.q[..., rows, :], self.k[..., cols, :], rows, cols, self.mask.bias(rows, cols))

    def score(self, q: Tensor, k: Tensor, rows: Span, cols: Span, bias: Tensor | None) -> Tensor:
        """Return the scores of one block from its queries, keys and float mask, which may be leaves of a graph."""
        with trace_step("similarity", self.similarity):
            scores = self.similarity.scores(q, repeat_heads(k, self.groups))
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
        with trace_step("mask"):
            if bias is not None:
                scores = scores + bias.to(scores.dtype)
            allowed = self.mask.allowed(rows, cols, self.device)
            return scores if allowed is None else torch.where(allowed, scores, -torch.inf)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Every tensor that may require a gradient: q, k, v, the dense mask, and the similarity's parameters."""
        return (self.q, self.k, self.v, self.mask.dense, *self.similarity.parameters)

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Request:
        q, k, v, dense, *parameters = tensors
        assert q is not None and k is not None
        similarity = self.similarity.with_parameters(tuple(p for p in parameters if p is not None))
        return replace(self, q=q, k=k, v=v, mask=replace(self.mask, dense=dense), similarity=similarity)

    @property
    def separable(self) -> bool:
        """Whether entries of the leading dimensions can be computed separately. A callable may mix them."""
        return not isinstance(self.similarity, Pairwise)

    def of_rows(self, rows: Span) -> Request:
        """Return the request of some queries, which are renumbered from 0."""
        return replace(self, q=self.q[..., rows, :], mask=self.mask.of_rows(rows))

    @property
    def can_narrow(self) -> bool:
        """Whether `narrow` can take entries of the first leading dimension as views."""
        shared = self.groups > 1 and len(self.lead) == 1
        per_entry_parameters = any(p.ndim > len(self.lead) for p in self.similarity.parameters)
        return self.separable and bool(self.lead) and not shared and not per_entry_parameters

    def narrow(self, entry: int) -> Request:
        """Return the request of one entry of the first leading dimension, which remains with size 1."""
        assert self.can_narrow

        def cut(x: T) -> T:
            return cast(T, narrow(x, len(self.lead), 2, entry)) if isinstance(x, Tensor) else x

        m = self.mask
        mask = replace(m, dense=cut(m.dense), offset=cut(m.offset), lengths=cut(m.lengths))
        return replace(self, q=cut(self.q), k=cut(self.k), v=cut(self.v), mask=mask, lead=(1, *self.lead[1:]))

    def select(self, index: tuple[Index, ...]) -> Request:
        """Return the request of some entries: one index per leading dimension, applied independently."""
        assert self.separable and len(index) == len(self.lead)
        indexed = _Indexer(self.lead, index)
        all_heads = self.groups > 1 and isinstance(index[-1], slice) and index[-1] == slice(None)
        groups = self.groups if all_heads else 1
        shared = indexed if all_heads or self.groups == 1 else indexed.of_groups(self.groups)
        similarity, trailing = self.similarity, self.similarity.trailing
        parameters = tuple(indexed(p, trailing) if p.ndim > trailing else p for p in similarity.parameters)
        offset, lengths = self.mask.offset, self.mask.lengths
        mask = replace(
            self.mask,
            dense=None if self.mask.dense is None else indexed(self.mask.dense, 2),
            offset=indexed(offset, 2) if isinstance(offset, Tensor) else offset,
            lengths=indexed(lengths, 2) if isinstance(lengths, Tensor) else lengths,
        )
        return replace(
            self,
            q=indexed(self.q, 2),
            k=shared(self.k, 2),
            v=None if self.v is None else shared(self.v, 2),
            similarity=similarity.with_parameters(parameters),
            mask=mask,
            groups=groups,
            lead=indexed.result,
        )


def block_shape(request: Request, budget: int) -> tuple[int, int]:
    """Return rows and columns of a block of at most `budget` elements: nearly square, for the most reuse of q and k."""
    pairs = max(1, budget // max(1, request.entries * request.similarity.width_per_pair(request.q.shape[-1])))
    rows = min(max(1, request.queries), math.isqrt(pairs))
    cols = min(max(1, request.keys), pairs // rows)
    return min(max(1, request.queries), pairs // cols), cols


def narrow(x: Tensor, lead: int, trailing: int, entry: int) -> Tensor:
    """Return one entry of the first of `lead` dimensions, as a view, of a tensor that broadcasts to them."""
    return x[entry : entry + 1] if x.ndim == lead + trailing and x.shape[0] > 1 else x


def repeat_heads(shared: Tensor, groups: int) -> Tensor:
    """Repeat key heads for the query heads that share them: (..., H / groups, T, D) → (..., H, T, D)."""
    return shared if groups == 1 else shared.repeat_interleave(groups, dim=-3)


def take_lead(x: Tensor, lead: tuple[Index, ...]) -> Tensor:
    """Index the first dimensions of a tensor, each independently."""
    for dim in reversed(range(len(lead))):  # from the right, so that a dropped dimension does not shift the next ones
        x = x[(slice(None),) * dim + (lead[dim],)]
    return x


@dataclass(frozen=True)
class _Indexer:
    """Indexes leading dimensions of tensors that broadcast to them."""

    lead: tuple[int, ...]
    index: tuple[Index, ...]

    def __call__(self, tensor: Tensor, trailing: int) -> Tensor:
        """Expand a tensor (*some of lead, *trailing dimensions) to all of lead, and index it."""
        return take_lead(tensor.expand((*self.lead, *tensor.shape[tensor.ndim - trailing :])), self.index)

    def of_groups(self, groups: int) -> _Indexer:
        """Return the indexer for tensors with one head per group of query heads."""
        heads = self.lead[-1]
        at = self.index[-1]
        if isinstance(at, slice):
            at = torch.arange(heads)[at]
        shared = torch.div(at, groups, rounding_mode="floor") if isinstance(at, Tensor) else at // groups
        return _Indexer((*self.lead[:-1], heads // groups), (*self.index[:-1], shared))

    @property
    def result(self) -> tuple[int, ...]:
        return tuple(self(torch.empty(()), 0).shape)


def _around_nonfinite(similarity: Pairwise) -> Pairwise:
    """Return a similarity that is NaN for pairs with a non-finite number, and whose function does not see these.

    Otherwise a masked number might reach other pairs: PyTorch's bfloat16 products with AMX also multiply numbers of
    the next row, by 0.
    """

    def scores(q: Tensor, k: Tensor) -> Tensor:
        bad_q, bad_k = map(validation.nonfinite_rows, (q, k))  # (..., rows, 1), (..., cols, 1)
        finite: Tensor = similarity.function(torch.where(bad_q, 0, q), torch.where(bad_k, 0, k))
        return torch.where(bad_q | bad_k.transpose(-1, -2), torch.nan, finite)  # (..., rows, cols)

    return replace(similarity, function=scores)


def _zero(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return zeros that replace ignored vectors, (..., T, 1).

    They depend on x and the others in the autograd graph, so that the gradient of each is zero, not None.
    """
    return _connected(torch.where(_never(x), x[..., :1], 0), *others)  # (..., T, 1)


def _never(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=x.device)


def _connected(zeros: Tensor, *others: Tensor | None) -> Tensor:
    """Make zeros depend on other tensors in the autograd graph, so that their gradients are zero, not None."""
    for other in others:
        if other is not None and other.requires_grad and torch.is_grad_enabled():
            one = other[(slice(0, 1),) * other.ndim].sum()  # ()
            zeros = zeros + torch.where(_never(one), one, 0).to(zeros.dtype)
    return zeros


def _without_width(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return a column of zeros that replaces vectors if a width is 0; connected to the graph as in `_zero`."""
    return _connected(torch.nn.functional.pad(x[..., :0], (0, 1)), *others)  # (..., T, 1)


def _under_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast as autocast does for SDPA: to its dtype, except float64."""
    dtype = autocast_dtype(query.device)
    if dtype is None:
        return query, key, value
    query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    return query, key, value


def outside_autocast(request: Request) -> AbstractContextManager[Any]:
    """Disable autocast if it is enabled: requests are already cast (`_under_autocast`), and sums stay wide."""
    if autocast_dtype(request.device) is None:
        return nullcontext()
    return torch.autocast(request.device.type, enabled=False)


def entries(request: Request) -> tuple[int, int]:
    """Return the leading dimensions as (batches, heads)."""
    lead = request.lead
    if len(lead) == 2:
        return lead
    if len(lead) == 1 and request.groups == 1:  # a batch without heads: one length or offset per entry
        return lead[0], 1
    return math.prod(lead[:-1]), lead[-1] if lead else 1


def shared_lead(lead: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """Return the leading dimensions of keys and values, each head of which is shared by `groups` query heads."""
    return (*lead[:-1], lead[-1] // groups) if groups > 1 else lead


def by_head(x: Tensor, request: Request, groups: int = 1) -> Tensor:
    """Reshape a tensor that broadcasts to (*lead, T, D), with `groups` times fewer heads, to (B, H, T, D)."""
    lead = request.lead if groups == 1 else shared_lead(request.lead, groups)
    if x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
    if len(lead) == 2:
        return x
    batches, heads = entries(request)
    return x.reshape(batches, heads // groups, *x.shape[-2:])


def mask_by_head(dense: Tensor, request: Request) -> Tensor:
    """Reshape a dense mask so that it broadcasts to (B, H, Tq, Tk)."""
    if len(request.lead) == 2 or dense.ndim == 2:
        return dense[(None,) * (4 - dense.ndim)]
    return by_head(dense, request)


def per_batch(number: int | Tensor, request: Request, batches: int) -> Tensor:
    """Return one int64 per batch entry, (batches,)."""
    if isinstance(number, int):
        return torch.full((batches,), number)
    lead = number.reshape(number.shape[: len(request.lead)])  # without the dimensions of rows and columns
    headless = len(request.lead) < (2 if request.groups == 1 else 1)  # as in `entries`
    lead = lead.expand(request.lead) if headless else lead[..., 0].expand(request.lead[:-1])
    return lead.reshape(batches).to(torch.int64).contiguous()
