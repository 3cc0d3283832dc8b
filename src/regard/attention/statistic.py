"""The softmax of each row in two numbers, from which any of its scores becomes a weight.

    weight = e^(score − highest) / total,      total = Σ e^(score − highest)

They are never joined to a log-sum-exp, highest + log total: that is rounded like the highest score. In a row that a
float mask holds at −1e9 throughout, log total would be lost in it, and every weight would be 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..core.tensors import widen
from .request import Request, spread
from .similarity import Additive, Dot

ERROR = 2**-17
"""By how much a weight may be off, relatively, because its score was computed by another call than the statistic."""


@dataclass(frozen=True, eq=False)
class Statistic:
    """The rows of a map, (*lead, Tq) each.

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
    """True in rows that a view must normalise by the scores it computed itself (`large_rows`); None: unknown."""

    @classmethod
    def of(cls, scores: Tensor) -> Statistic:
        """From all scores of some rows, (..., rows, Tk), at least one key."""
        highest = scores.amax(-1)
        return cls(highest, torch.exp(scores - _finite(highest).unsqueeze(-1)).sum(-1))

    @classmethod
    def hard(cls, best: Tensor, dtype: torch.dtype) -> Statistic:
        """Under hard weighting: the index of the best key of each row."""
        return cls(best, torch.ones_like(best, dtype=dtype))

    @classmethod
    def unpack(cls, rows: Statistic | Tensor | None) -> Statistic | None:
        """From (2, *lead, Tq), as the native kernels write it: two views that most calls have no use for."""
        return cls(*rows.unbind(0)) if isinstance(rows, Tensor) else rows

    @property
    def shape(self) -> torch.Size:
        return self.highest.shape

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of each row, rounded like its highest score: not for computing weights."""
        return self.highest + self.total.log()

    def map(self, function: Callable[[Tensor], Tensor]) -> Statistic:
        """The same of other rows: `function` takes them from a tensor (*lead, Tq)."""
        held = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: function(x) for name, x in held if x is not None})

    def __getitem__(self, index: Any) -> Statistic:
        return self.map(lambda x: x[index])

    def isnan(self) -> Tensor:
        """Rows that attend to what is not finite."""
        return self.total.isnan()

    def subtracted(self) -> tuple[Tensor, Tensor]:
        """What is subtracted from the scores of a row for the logarithms of its weights, one after the other.

        0 and 0 in a row without keys, whose scores are all −∞: its weights are then 0 and not NaN.
        """
        return _finite(self.highest), torch.where(self.total == 0, 0, self.total.log())

    def logs(self, scores: Tensor) -> Tensor:
        """Scores (..., rows, cols) → the logarithms of their weights."""
        highest, log_total = self.subtracted()
        return (scores - highest.unsqueeze(-1)).sub_(log_total.unsqueeze(-1))

    def weights(self, scores: Tensor) -> Tensor:
        """Scores (..., rows, cols) → weights."""
        share = torch.where(self.total == 0, 0, 1 / self.total)
        return (scores - _finite(self.highest).unsqueeze(-1)).exp_().mul_(share.unsqueeze(-1))

    def with_sink(self, sink: Tensor) -> Statistic:
        """The same with one more score, (*lead, Tq) or broadcastable, whose weight is lost."""
        sink = sink.to(self.total.dtype).expand(self.shape)
        highest = torch.maximum(self.highest, sink)
        total = self.total * torch.exp(self.highest - highest) + torch.exp(sink - highest)
        return Statistic(highest, total, sink, self.large)


def _finite(highest: Tensor) -> Tensor:
    return torch.where(highest == -torch.inf, 0, highest)


def large_rows(request: Request, highest: Tensor) -> Tensor:
    """Rows whose weights would be off by more than ERROR if their scores came from another call, (*lead, Tq) of bool.

    Two sums of the same D products differ by up to √D · eps/2 · Σ|qk| (measured on several libraries), and
    Σ|qk| ≤ ‖q‖ ‖k‖. What a float mask adds is rounded like the sum, which matters only near the highest score of a row.
    Nothing is known of callables: all of their rows are large.
    """
    eps, similarity = torch.finfo(request.wide).eps, request.similarity
    shape = (*request.lead, request.queries)
    if not request.keys:
        return torch.zeros(shape, dtype=torch.bool, device=request.device)
    if isinstance(similarity, Additive):
        size = widen(similarity.weight).abs().sum(-1, keepdim=True)  # (..., 1)
    elif isinstance(similarity, Dot):
        keys = widen(request.k).nan_to_num(0.0, 0.0, 0.0).norm(dim=-1, keepdim=True)  # NaN and ∞ show in `highest`
        keys = spread(keys.amax(-2, keepdim=True), request.groups).squeeze(-1)  # (..., 1)
        size = abs(similarity.scale) * widen(request.q).norm(dim=-1) * keys  # (..., Tq)
    else:
        return torch.ones(shape, dtype=torch.bool, device=request.device)
    within = size * (request.q.shape[-1] ** 0.5 * eps / 2) <= ERROR
    within = within & ((highest.abs() * eps <= ERROR) | (highest == -torch.inf))
    if request.softcap is not None and request.softcap * eps > ERROR:
        within = torch.zeros_like(within)
    return ~within.expand(shape)


def examined(request: Request, statistic: Statistic) -> Statistic:
    """The statistic with its large rows marked."""
    if request.hard or statistic.large is not None:
        return statistic
    return replace(statistic, large=large_rows(request, statistic.highest))
