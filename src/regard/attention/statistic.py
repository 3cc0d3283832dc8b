"""The softmax of each row as two numbers, which turn any score of the row into a weight.

    weight = e^(score − highest) / total,      total = Σ e^(score − highest)

They are not combined into a log-sum-exp, highest + log total, which is rounded like the highest score. In a row to
which a float mask adds −1e9 throughout, log total would vanish in the rounding, and every weight would be 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..core.tensors import widen
from .request import Request, repeat_heads
from .similarity import Additive, Dot

ERROR = 2**-17
"""Largest relative error of a weight whose score was computed by another call than the statistic."""


@dataclass(frozen=True, eq=False)
class Statistic:
    """Row statistics of a map, (*lead, Tq) each.

    >>> rows = Statistic.of(torch.tensor([[0.0, 0.0, -torch.inf], [-1e9, -1e9, -1e9]]))
    >>> rows.highest.tolist(), rows.total.tolist()
    ([0.0, -1000000000.0], [2.0, 3.0])
    """

    highest: Tensor
    """The highest score, −∞ in a row without keys. Under hard weighting the index of the best key, or −1."""
    total: Tensor
    """Σ e^(score − highest), 0 in a row without keys. Under hard weighting 1."""
    sink: Tensor | None = None
    """A score that belongs to no key and is part of the total (`with_sink`)."""
    large: Tensor | None = None
    """True for rows that a view must normalize by the scores it computed itself (`large_rows`). None: unknown."""

    @classmethod
    def of(cls, scores: Tensor) -> Statistic:
        """Compute the statistic from all scores of some rows, (..., rows, Tk), with at least one key."""
        highest = scores.amax(-1)
        return cls(highest, torch.exp(scores - _finite(highest).unsqueeze(-1)).sum(-1))

    @classmethod
    def hard(cls, best: Tensor, dtype: torch.dtype) -> Statistic:
        """Return the statistic of hard weighting from the index of the best key of each row."""
        return cls(best, torch.ones_like(best, dtype=dtype))

    @classmethod
    def unpack(cls, rows: Statistic | Tensor | None) -> Statistic | None:
        """Convert the format of the native kernels, (2, *lead, Tq). Done late, because most calls do not use it."""
        return cls(*rows.unbind(0)) if isinstance(rows, Tensor) else rows

    @property
    def shape(self) -> torch.Size:
        return self.highest.shape

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of each row. It is rounded like the highest score, so do not compute weights from it."""
        return self.highest + self.total.log()

    def map(self, function: Callable[[Tensor], Tensor]) -> Statistic:
        """Apply a function to every tensor (*lead, Tq), for example to select rows."""
        tensors = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: function(x) for name, x in tensors if x is not None})

    def __getitem__(self, index: Any) -> Statistic:
        return self.map(lambda x: x[index])

    def isnan(self) -> Tensor:
        """Return which rows attend to non-finite numbers."""
        return self.total.isnan()

    def subtracted(self) -> tuple[Tensor, Tensor]:
        """Return (highest, log total), which are subtracted from scores in this order to get log-weights.

        Both are 0 in a row without keys, whose scores are all −∞, so that its weights are 0 and not NaN.
        """
        return _finite(self.highest), torch.where(self.total == 0, 0, self.total.log())

    def logs(self, scores: Tensor) -> Tensor:
        """Convert scores (..., rows, cols) to log-weights."""
        highest, log_total = self.subtracted()
        return (scores - highest.unsqueeze(-1)).sub_(log_total.unsqueeze(-1))

    def weights(self, scores: Tensor) -> Tensor:
        """Convert scores (..., rows, cols) to weights."""
        inverse_total = torch.where(self.total == 0, 0, 1 / self.total)
        return (scores - _finite(self.highest).unsqueeze(-1)).exp_().mul_(inverse_total.unsqueeze(-1))

    def with_sink(self, sink: Tensor) -> Statistic:
        """Add one more score, (*lead, Tq) or broadcastable, whose weight is discarded."""
        sink = sink.to(self.total.dtype).expand(self.shape)
        highest = torch.maximum(self.highest, sink)
        total = self.total * torch.exp(self.highest - highest) + torch.exp(sink - highest)
        return Statistic(highest, total, sink, self.large)


def _finite(highest: Tensor) -> Tensor:
    return torch.where(highest == -torch.inf, 0, highest)


def large_rows(request: Request, highest: Tensor) -> Tensor:
    """Return which rows may have weights with an error above ERROR if another call computes the scores, (*lead, Tq).

    Two sums of the same D products differ by up to √D · eps/2 · Σ|qk| (measured with several libraries), and
    Σ|qk| ≤ ‖q‖ ‖k‖. A float mask is rounded with the sum, which matters only near the highest score of a row. There is
    no bound for callables, so all of their rows count as large.
    """
    eps, similarity = torch.finfo(request.wide).eps, request.similarity
    shape = (*request.lead, request.queries)
    if not request.keys:
        return torch.zeros(shape, dtype=torch.bool, device=request.device)
    if isinstance(similarity, Additive):
        size = widen(similarity.weight).abs().sum(-1, keepdim=True)  # (..., 1)
    elif isinstance(similarity, Dot):
        keys = repeat_heads(_largest_norm(widen(request.k)), request.groups).squeeze(-1)  # (..., 1)
        size = abs(similarity.scale) * widen(request.q).norm(dim=-1) * keys  # (..., Tq)
    else:
        return torch.ones(shape, dtype=torch.bool, device=request.device)
    within = size * (request.q.shape[-1] ** 0.5 * eps / 2) <= ERROR
    within = within & ((highest.abs() * eps <= ERROR) | (highest == -torch.inf))
    if request.softcap is not None and request.softcap * eps > ERROR:
        within = torch.zeros_like(within)
    result: Tensor = ~within.expand(shape)
    return result


def _largest_norm(keys: Tensor) -> Tensor:
    """Return the norm of the longest key, (..., 1, 1). NaN and ∞ count as 0, because they appear in `highest`."""
    norms: Tensor = keys.norm(dim=-1, keepdim=True)
    if not bool(norms.isfinite().all()):
        norms = keys.nan_to_num(0.0, 0.0, 0.0).norm(dim=-1, keepdim=True)
    return norms.amax(-2, keepdim=True)


def with_large_rows(request: Request, statistic: Statistic) -> Statistic:
    """Return the statistic with `large` set."""
    if request.hard or statistic.large is not None:
        return statistic
    return replace(statistic, large=large_rows(request, statistic.highest))
