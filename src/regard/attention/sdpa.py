"""The torch backend: PyTorch's own scaled_dot_product_attention, where the request is one it can serve."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from . import reference
from .request import Request
from .similarity import Additive, Dot, Pairwise

name = "torch"
isolates = False


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if request.hard:
        return "SDPA has soft weights only, not hard ones"
    if request.softcap is not None:
        return "SDPA has no softcap"
    if isinstance(request.similarity, Additive | Pairwise):
        return "SDPA compares by dot products only"
    return None


def mask_pairs(request: Request) -> int:
    """The size of the mask that SDPA would have to be given, in pairs: what `auto` weighs against streaming."""
    mask = request.mask
    if mask.open or mask.only_causal:
        return 0
    shapes = [x.shape[:-2] for x in (mask.dense, mask.offset, mask.lengths) if isinstance(x, Tensor)]
    return math.prod(torch.broadcast_shapes(*shapes)) * request.keys * (request.queries if mask.positional else 1)


def stored_weights(request: Request) -> int:
    """How many weights SDPA would store because no fused kernel of a CPU takes the request; 0 where one does."""
    slow = request.device.type == "cpu" and (_learned(request) or request.dropout_p > 0)
    return request.entries * request.queries * request.keys if slow else 0


def _learned(request: Request) -> bool:
    """Whether a float mask wants a gradient."""
    dense = request.mask.dense
    return dense is not None and dense.requires_grad and torch.is_grad_enabled()


def context(request: Request) -> tuple[Tensor, None]:
    """The context alone: SDPA returns no log-sum-exp, so a map finds its own when it is first looked at."""
    request = request.reduced()
    if _learned(request) and 0 in request.shape:  # SDPA would leave the mask out of the graph
        return reference.context(request)[0], None
    assert isinstance(request.similarity, Dot)
    scale, lead, value_width = request.similarity.scale, request.lead, request.value.shape[-1]
    shared = (*lead[:-1], lead[-1] // request.groups) if request.groups > 1 else lead
    q = _four(request.q, lead)  # (B, H, Tq, D)
    k = _four(request.k, shared)  # (B, H / groups, Tk, D)
    v = _four(request.value, shared)  # (B, H / groups, Tk, Dv)
    if scale <= 0:  # SDPA's fused kernels mask before they scale, and −∞ · 0 is NaN
        q, scale = q * scale, 1.0
    if q.shape[-1] != value_width:  # nor do they take different widths; zeros add nothing
        width = max(q.shape[-1], value_width)
        q, k, v = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=_mask(request),
        dropout_p=request.dropout_p,
        is_causal=request.mask.only_causal,
        scale=scale,
        enable_gqa=request.groups > 1,
    )
    if out.shape[-1] != value_width:
        out = out[..., :value_width]
    return (out if len(lead) == 2 else out.reshape(*lead, *out.shape[-2:])), None  # (*lead, Tq, Dv)


def _four(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Bring free leading dimensions to SDPA's fast case (B, H, ·, ·): a view, unless more than two broadcast."""
    if len(lead) == 2 and x.shape[:-2] == lead:
        return x
    x = x.expand(*lead, *x.shape[-2:])
    return x.reshape(math.prod(lead[:-1]), math.prod(lead[-1:]), *x.shape[-2:])


def _mask(request: Request) -> Tensor | None:
    """The mask as SDPA takes it: boolean or float, dense where it is not plainly causal."""
    mask = request.mask
    if mask.open or mask.only_causal:
        return None
    rows, cols = slice(0, request.queries), slice(0, request.keys)
    bias, dense = mask.bias(rows, cols), mask.allowed(rows, cols, request.device)
    if bias is not None:
        bias = bias.to(request.q.dtype)
        dense = bias if dense is None else torch.where(dense, bias, -torch.inf)
    if dense is None:
        return None
    if len(request.lead) > 2:
        return _four(dense, request.lead)
    return dense.reshape((1,) * (4 - dense.ndim) + tuple(dense.shape))
