"""The reference backend: the three stages of attention, written to be read beside the equation.

    scores  = similarity(query, key)                     (*lead, Tq, Tk)
    weights = softmax(softcap(scores) + mask)            (*lead, Tq, Tk)
    context = dropout(weights) · value                   (*lead, Tq, Dv)

It stores what the others stream, so it is for tests, for teaching, and for small problems.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.tensors import widen
from ..core.trace import trace_step
from .request import Request, spread
from .statistic import Statistic

name = "reference"
isolates = False


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request: it serves all."""
    return None


def context(request: Request, kept: Tensor | None = None) -> tuple[Tensor, Statistic | None]:
    """The context, and the row statistic of its weights (see `weights`); a map finds it itself where all may attend.

    `kept` multiplies the weights in place of a dropout drawn here: (*lead, Tq, Tk).
    """
    s, statistic = scores(request), None
    with trace_step("hard weighting" if request.hard else "weighting"):
        if request.mask.open and not request.hard:
            w = s.softmax(-1)  # no row is without keys, and one pass does it
        else:
            w, statistic = weights(request, s)
    with trace_step("weighted sum"):
        if kept is not None:
            w = w * kept
        elif request.dropout_p:
            w = torch.nn.functional.dropout(w, request.dropout_p)
        v = widen(spread(request.value, request.groups))
        return (w @ v).to(request.value.dtype), statistic  # (*lead, Tq, Dv), (*lead, Tq)


def scores(request: Request) -> Tensor:
    """Stage 1, with softcap and mask: (*lead, Tq, Tk), −∞ where a query may not attend."""
    s = request.scores(slice(0, request.queries), slice(0, request.keys))
    return s if s.shape == request.shape else s.expand(request.shape)


def weights(request: Request, s: Tensor) -> tuple[Tensor, Statistic]:
    """Stage 2, and what gives any weight from its score s: (*lead, Tq, Tk), (*lead, Tq).

    Hard: the best key, the first of equals. Its weights are 1 and 0, with the gradient of the soft ones
    (straight-through, Bengio et al. 2013).
    """
    if request.keys == 0:
        none = s.new_full(s.shape[:-1], -torch.inf)
        return s, Statistic.hard(none.fill_(-1).long(), s.dtype) if request.hard else Statistic(none, none.exp())
    highest = s.detach().amax(-1, keepdim=True)
    e = torch.exp(s - torch.where(highest == -torch.inf, 0, highest))
    total = e.sum(-1, keepdim=True)
    soft = e / torch.where(total == 0, 1, total)  # a row without keys has weights of zero, not NaN
    if not request.hard:
        return soft, Statistic(highest.squeeze(-1), total.detach().squeeze(-1))
    best = s.detach().argmax(-1, keepdim=True)
    best = torch.where(total == 0, -1, best)
    chosen = (torch.arange(request.keys, device=s.device) == best).to(s.dtype)
    return (soft - soft.detach()) + chosen, Statistic.hard(best.squeeze(-1), s.dtype)
