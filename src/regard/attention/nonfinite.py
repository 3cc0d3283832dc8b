"""Make NaN and ∞ in masked queries, keys and values have no effect.

A kernel multiplies a masked value by a weight of zero, and 0 · NaN is NaN. Its backward pass does the same with masked
keys. So this module replaces non-finite numbers by zero before a backend runs, and restores their effect afterwards in
the rows that may attend to them. It serves all backends, forward and backward.

The native kernels run first and report whether their results are finite; this module runs only if they are not. The
reduction of cosine and bilinear scores to dot products happens outside the kernels: `Request.reduced` handles
non-finite numbers there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .request import Request, repeat_heads
from .statistic import Statistic
from .validation import finite, nonfinite_rows

Result = tuple[Tensor, Statistic | Tensor | None]
"""A context and, if the backend computes it, its row statistic."""

BLOCK = 2**24
"""Pairs of a dense mask that are processed at a time."""


def serve_without_nonfinite(request: Request, serve: Callable[[Request], Result]) -> Result:
    """Return `serve(request)`, unaffected by NaN and ∞ in masked positions."""
    if request.mask.open or finite(request.q, request.k, request.value):
        return serve(request)
    finite_request = FiniteRequest.of(request)
    return finite_request.restore(*serve(finite_request.clean))


@dataclass(frozen=True)
class FiniteRequest:
    """A request with non-finite numbers replaced by zero, and their positions."""

    request: Request
    clean: Request
    bad_q: Tensor
    """(..., Tq, 1): True where a query has a non-finite number"""
    bad_k: Tensor
    """(..., Tk, 1): likewise for keys"""

    @classmethod
    def of(cls, request: Request) -> FiniteRequest:
        bad_q, bad_k = nonfinite_rows(request.q), nonfinite_rows(request.k)  # (..., Tq, 1), (..., Tk, 1)
        q, k = torch.where(bad_q, 0, request.q), torch.where(bad_k, 0, request.k)
        v = torch.where(request.value.isfinite(), request.value, 0)
        return cls(request, replace(request, q=q, k=k, v=v), bad_q, bad_k)

    def affected_queries(self) -> Tensor:
        """Return which queries are non-finite or attend to a non-finite key: (..., Tq, 1)."""
        has_keys = _reached(self.request, torch.ones_like(self.bad_k))
        return _reached(self.request, self.bad_k) | (self.bad_q & has_keys)

    def restore(self, context: Tensor, statistic: Statistic | Tensor | None) -> Result:
        """Set NaN and ∞ in those rows of the clean context that attend to non-finite numbers."""
        v, affected = self.request.value, self.affected_queries()
        for where, nonfinite in ((v.isnan(), torch.nan), (v == torch.inf, torch.inf), (v == -torch.inf, -torch.inf)):
            context = torch.where(_reached(self.request, where), context + nonfinite, context)  # ∞ − ∞ is NaN
        context = torch.where(affected, torch.nan, context)
        statistic = Statistic.unpack(statistic)
        if statistic is not None and not self.request.hard:
            statistic = statistic.map(lambda x: torch.where(affected.squeeze(-1), torch.nan, x))
        return context, statistic


def _reached(request: Request, marked: Tensor) -> Tensor:
    """Return which queries may attend to a key at which `marked` (..., Tk, n) is True: (..., Tq, n)."""
    marked = repeat_heads(marked, request.groups)
    if request.mask.dense is not None:
        return _reached_by_dense_mask(request, marked)
    mask, device, keys = request.mask, request.device, request.keys
    position = torch.arange(request.queries, device=device).unsqueeze(-1) + mask.offset  # (..., Tq, 1)
    first = torch.zeros_like(position) if mask.left is None else position - mask.left
    last = torch.full_like(position, keys) if mask.right is None else position + mask.right + 1
    if mask.lengths is not None:
        last = last.minimum(torch.as_tensor(mask.lengths, device=device))
    first, last = first.clamp(0, keys), last.clamp(0, keys)
    count = torch.nn.functional.pad(marked.to(torch.int32).cumsum(-2), (0, 0, 1, 0))  # (..., Tk + 1, n)
    lead = torch.broadcast_shapes(count.shape[:-2], first.shape[:-2], last.shape[:-2])
    shape = (*lead, request.queries, count.shape[-1])
    count = count.expand(*lead, *count.shape[-2:])
    return count.gather(-2, last.expand(shape)) > count.gather(-2, first.minimum(last).expand(shape))


def _reached_by_dense_mask(request: Request, marked: Tensor) -> Tensor:
    """Compute `_reached` for a dense mask, some rows at a time."""
    step = max(1, BLOCK // max(1, request.keys * request.entries))
    if torch.compiler.is_compiling():  # sizes may be symbols, which a loop cannot depend on
        step = max(1, request.queries)
    parts = []
    for start in range(0, max(1, request.queries), step):
        rows = slice(start, min(start + step, request.queries))
        allowed = request.mask.dense_allowed(rows, request.keys, request.device)
        assert allowed is not None
        allowed = allowed.expand(*allowed.shape[:-2], rows.stop - rows.start, request.keys)
        parts.append(allowed.to(torch.float32) @ marked.to(torch.float32) > 0)  # (..., rows, n)
    return torch.cat(parts, -2)
