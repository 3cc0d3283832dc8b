"""Keys, values and queries that are masked out may hold NaN or ∞ without effect: select, never multiply.

A kernel multiplies a masked value by a weight of zero, and 0 · NaN is NaN; its backward pass does so again with masked
keys. So the numbers that are not finite are taken out before a backend sees them, and put back afterwards into the rows
that really attend to them, where they belong. One place does it for every backend and both directions.

The native kernels run first and report whether their results are finite; only if not does this module run. What they
do not see is the reduction of cosine and bilinear scores to dot products, which `Request.reduced` guards by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .request import Request, spread
from .statistic import Statistic
from .validation import finite, nonfinite_rows

Served = tuple[Tensor, Statistic | Tensor | None]
"""A context and, where the backend has it, its row statistic."""

BLOCK = 2**24
"""Pairs of a dense mask that are looked at together."""


def isolated(request: Request, serve: Callable[[Request], Served]) -> Served:
    """What `serve` gives for the request, untouched by what its mask excludes."""
    if request.mask.open or finite(request.q, request.k, request.value):
        return serve(request)
    apart = Apart.of(request)
    return apart.returned(*serve(apart.clean))


@dataclass(frozen=True)
class Apart:
    """A request without the numbers that are not finite, and where these were."""

    request: Request
    clean: Request
    q: Tensor
    """(..., Tq, 1): True where a query was taken out"""
    k: Tensor
    """(..., Tk, 1)"""

    @classmethod
    def of(cls, request: Request) -> Apart:
        bad_q, bad_k = nonfinite_rows(request.q), nonfinite_rows(request.k)  # (..., Tq, 1), (..., Tk, 1)
        q, k = torch.where(bad_q, 0, request.q), torch.where(bad_k, 0, request.k)
        v = torch.where(request.value.isfinite(), request.value, 0)
        return cls(request, replace(request, q=q, k=k, v=v), bad_q, bad_k)

    def lost(self) -> Tensor:
        """Which queries attend to what was taken out, or are it themselves: (..., Tq, 1)."""
        anything = _reached(self.request, torch.ones_like(self.k))
        return _reached(self.request, self.k) | (self.q & anything)

    def returned(self, context: Tensor, statistic: Statistic | Tensor | None) -> Served:
        """The context of the clean request with the rest put back where it is attended to."""
        v, lost = self.request.value, self.lost()
        for found, poison in ((v.isnan(), torch.nan), (v == torch.inf, torch.inf), (v == -torch.inf, -torch.inf)):
            context = torch.where(_reached(self.request, found), context + poison, context)  # ∞ − ∞ is NaN, as it ought
        context = torch.where(lost, torch.nan, context)
        statistic = Statistic.unpack(statistic)
        if statistic is not None and not self.request.hard:
            statistic = statistic.map(lambda x: torch.where(lost.squeeze(-1), torch.nan, x))
        return context, statistic


def _reached(request: Request, found: Tensor) -> Tensor:
    """Which queries may attend to a key where `found` (..., Tk, n) is True: (..., Tq, n)."""
    found = spread(found, request.groups)
    if request.mask.dense is not None:
        return _reached_through(request, found)
    mask, device, keys = request.mask, request.device, request.keys
    position = torch.arange(request.queries, device=device).unsqueeze(-1) + mask.offset  # (..., Tq, 1)
    first = torch.zeros_like(position) if mask.left is None else position - mask.left
    last = torch.full_like(position, keys) if mask.right is None else position + mask.right + 1
    if mask.lengths is not None:
        last = last.minimum(torch.as_tensor(mask.lengths, device=device))
    first, last = first.clamp(0, keys), last.clamp(0, keys)
    count = torch.nn.functional.pad(found.to(torch.int32).cumsum(-2), (0, 0, 1, 0))  # (..., Tk + 1, n)
    lead = torch.broadcast_shapes(count.shape[:-2], first.shape[:-2], last.shape[:-2])
    shape = (*lead, request.queries, count.shape[-1])
    count = count.expand(*lead, *count.shape[-2:])
    return count.gather(-2, last.expand(shape)) > count.gather(-2, first.minimum(last).expand(shape))


def _reached_through(request: Request, found: Tensor) -> Tensor:
    """The same through a dense mask, some rows at a time."""
    step = max(1, BLOCK // max(1, request.keys * request.entries))
    if torch.compiler.is_compiling():  # sizes may be symbols, which a loop cannot depend on
        step = max(1, request.queries)
    parts = []
    for start in range(0, max(1, request.queries), step):
        rows = slice(start, min(start + step, request.queries))
        allowed = request.mask.dense_allowed(rows, request.keys, request.device)
        assert allowed is not None
        allowed = allowed.expand(*allowed.shape[:-2], rows.stop - rows.start, request.keys)
        parts.append(allowed.to(torch.float32) @ found.to(torch.float32) > 0)  # (..., rows, n)
    return torch.cat(parts, -2)
