"""The torch backend: PyTorch's own scaled_dot_product_attention, where the request is one it can serve."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from ..core.tensors import readable, widen
from . import reference
from .derivatives import rerouted, unserved
from .request import Request, by_head, mask_by_head
from .similarity import Additive, Dot, Pairwise

name = "torch"
isolates = False

ROUNDING = 2**-15
"""By how much, relatively, the weights of a backward pass may be off because of large scores. The fused kernel of a CPU
recomputes them from a log-sum-exp, which is rounded like the highest score of its row: at 256 by 2^-15, at 1e8 by 8.
Beyond it, gradients come from SDPA's unfused kernel."""


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if request.hard:
        return "SDPA has soft weights only, not hard ones"
    if request.softcap is not None:
        return "SDPA has no softcap"
    if isinstance(request.similarity, Additive | Pairwise):
        return "SDPA compares by dot products only"
    return unserved(request)


def mask_pairs(request: Request) -> int:
    """The size of the mask that SDPA would have to be given, in pairs: what `auto` weighs against streaming."""
    mask = request.mask
    if mask.open or mask.only_causal:
        return 0
    shapes = [x.shape[:-2] for x in (mask.dense, mask.offset, mask.lengths) if isinstance(x, Tensor)]
    return math.prod(torch.broadcast_shapes(*shapes)) * request.keys * (request.queries if mask.positional else 1)


def stored_weights(request: Request) -> int:
    """How many weights SDPA would store because no fused kernel of a CPU takes the request; 0 where one does."""
    if request.device.type != "cpu":
        return 0
    slow = _learned(request) or request.dropout_p > 0 or large(request, _mask(request))
    return request.entries * request.queries * request.keys if slow else 0


def large(request: Request, mask: Tensor | None) -> bool:
    """Whether gradients are wanted, on a CPU, of rows whose highest score may be rounded by more than ROUNDING.

    Scores are bounded by ‖q‖ ‖k‖, so two norms decide. A float mask (`_mask`) counts by the highest number of each row:
    what it holds over some keys is harmless, what it holds over all is not.
    """
    tensors = (request.q, request.k, request.v)
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    if not wanted or request.device.type != "cpu" or not readable(*tensors):
        return False
    most = ROUNDING / torch.finfo(request.wide).eps
    request = request.reduced()
    assert isinstance(request.similarity, Dot)
    with torch.no_grad():
        if not request.q.numel() or not request.k.numel():
            return False
        norms = (widen(x).nan_to_num(0.0, 0.0, 0.0).norm(dim=-1).amax() for x in (request.q, request.k))
        if not bool(abs(request.similarity.scale) * math.prod(norms) <= most):
            return True
        if mask is None or mask.dtype == torch.bool:
            return False
        highest = mask.amax(-1)
        return bool(((highest.abs() > most) & (highest != -torch.inf)).any())


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
    q = by_head(request.q, request)  # (B, H, Tq, D)
    k, v = (by_head(x, request, request.groups) for x in (request.k, request.value))  # (B, H / groups, Tk, ·)
    if scale <= 0:  # SDPA's fused kernels mask before they scale, and −∞ · 0 is NaN
        q, scale = q * scale, 1.0
    if q.shape[-1] != value_width:  # nor do they take different widths; zeros add nothing
        width = max(q.shape[-1], value_width)
        q, k, v = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    mask = _mask(request)
    unfused = large(request, mask)
    with sdpa_kernel(SDPBackend.MATH) if unfused else nullcontext():
        out = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=request.dropout_p,
            is_causal=request.mask.only_causal,
            scale=scale,
            enable_gqa=request.groups > 1,
        )
    if out.shape[-1] != value_width:
        out = out[..., :value_width]
    out = out if len(lead) == 2 else out.reshape(*lead, *out.shape[-2:])  # (*lead, Tq, Dv)
    # only a fused kernel lacks second derivatives, and a dropout that was drawn inside cannot be drawn again
    unfused = unfused or (request.device.type == "cpu" and _learned(request))
    return (out if request.dropout_p or unfused else rerouted(out, request)), None


def _mask(request: Request) -> Tensor | None:
    """The mask as SDPA takes it: boolean or float, dense where it is not plainly causal."""
    mask = request.mask
    if mask.open or mask.only_causal:
        return None
    rows, cols = slice(0, request.queries), slice(0, request.keys)
    bias, dense = mask.bias(rows, cols), mask.allowed(rows, cols, request.device)
    if bias is not None:
        # float16 and bfloat16 have no room for the finite numbers that a float32 mask may hold: they would become −∞
        bias = bias.to(request.wide if request.device.type == "cpu" else request.q.dtype)
        dense = bias if dense is None else torch.where(dense, bias, -torch.inf)
    return None if dense is None else mask_by_head(dense, request)
