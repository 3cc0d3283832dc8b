"""The reference backend: the three steps of attention, written to match the equation.

    scores  = similarity(query, key)                     (*lead, Tq, Tk)
    weights = softmax(softcap(scores) + mask)            (*lead, Tq, Tk)
    context = dropout(weights) · value                   (*lead, Tq, Dv)

It stores all scores and weights, which the other backends stream. Use it for tests, teaching and small problems.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.tensors import widen
from ..core.trace import trace_step
from .request import Request, repeat_heads
from .similarity import Dot
from .statistic import Statistic

name = "reference"
handles_nonfinite = False


def refusal(request: Request) -> str | None:
    """Return None: this backend supports every request."""
    return None


def context(request: Request, dropout_factors: Tensor | None = None) -> tuple[Tensor, Statistic | None]:
    """Return the context and the row statistic of its weights (see `weights`).

    The statistic is None for unmasked soft weights, and for cosine and bilinear scores: a map stores these as dot
    products, which are rounded differently. A map then computes it itself. `dropout_factors` (*lead, Tq, Tk) multiply
    the weights instead of newly drawn dropout.
    """
    s, statistic = scores(request), None
    with trace_step("hard weighting" if request.hard else "weighting"):
        if request.mask.open and not request.hard:
            w = s.softmax(-1)  # every row has keys, so the plain softmax is enough
        else:
            w, statistic = weights(request, s)
            if not request.hard and request.similarity.reduces_to_dot and not isinstance(request.similarity, Dot):
                statistic = None
    with trace_step("weighted sum"):
        if dropout_factors is not None:
            w = w * dropout_factors
        elif request.dropout_p:
            w = torch.nn.functional.dropout(w, request.dropout_p)
        v = widen(repeat_heads(request.value, request.groups))
        return (w @ v).to(request.value.dtype), statistic  # (*lead, Tq, Dv), (*lead, Tq)


def scores(request: Request) -> Tensor:
    """Step 1, with softcap and mask: return scores (*lead, Tq, Tk), −∞ where a query may not attend."""
    s = request.scores(slice(0, request.queries), slice(0, request.keys))
    return s if s.shape == request.shape else s.expand(request.shape)


def weights(request: Request, s: Tensor) -> tuple[Tensor, Statistic]:
    """Step 2: return the weights (*lead, Tq, Tk) of scores s, and the row statistic (*lead, Tq).

    Hard weights are 1 for the best key (the first one on ties) and 0 otherwise, with the gradient of the soft weights
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
    hard = (torch.arange(request.keys, device=s.device) == best).to(s.dtype)
    return (soft - soft.detach()) + hard, Statistic.hard(best.squeeze(-1), s.dtype)
