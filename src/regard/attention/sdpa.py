"""The torch backend: PyTorch's scaled_dot_product_attention, for requests that it supports."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from ..core.tensors import readable, widen
from . import reference
from .derivatives import unsupported_derivative, with_higher_order
from .request import Request, by_head, mask_by_head
from .similarity import Dot

name = "torch"
handles_nonfinite = False

ROUNDING = 2**-15
"""Largest relative error of the weights in a backward pass due to large scores. The fused CPU kernel recomputes the
weights from a log-sum-exp, which is rounded like the highest score of its row: by 2^-15 at 256, by 8 at 1e8. If the
error could be larger, SDPA's unfused kernel computes the gradients."""


def refusal(request: Request) -> str | None:
    """Return why this backend cannot serve a request, or None if it can."""
    if request.hard:
        return "SDPA supports only soft weights"
    if request.softcap is not None:
        return "SDPA does not support softcap"
    if not request.similarity.reduces_to_dot:
        return "SDPA supports only dot products"
    return unsupported_derivative(request)


def mask_pairs(request: Request) -> int:
    """Return the size of the mask that SDPA would need, in pairs. `auto` prefers streaming if it is too large."""
    mask = request.mask
    if mask.open or mask.only_causal:
        return 0
    shapes = [x.shape[:-2] for x in (mask.dense, mask.offset, mask.lengths) if isinstance(x, Tensor)]
    entries: tuple[int, ...] = torch.broadcast_shapes(*shapes)
    return math.prod(entries) * request.keys * (request.queries if mask.positional else 1)


def stored_weights(request: Request) -> int:
    """Return the number of weights that SDPA would store; 0 if a fused CPU kernel supports the request."""
    if request.device.type != "cpu":
        return 0
    unfused = _mask_needs_grad(request) or request.dropout_p > 0 or large(request, _mask(request))
    return request.entries * request.queries * request.keys if unfused else 0


def large(request: Request, mask: Tensor | None) -> bool:
    """Return whether gradients are needed, on a CPU, for rows whose highest score may be rounded by more than ROUNDING.

    Scores are bounded by ‖q‖ ‖k‖, so two norms are enough. For a float mask (`_mask`) the maximum of each row counts: a
    large number is harmless at some keys of a row, but not at all of them.
    """
    tensors = (request.q, request.k, request.v)
    needs_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    if not needs_grad or request.device.type != "cpu" or not readable(*tensors):
        return False
    largest = ROUNDING / torch.finfo(request.wide).eps
    request = request.reduced()
    assert isinstance(request.similarity, Dot)
    with torch.no_grad():
        if not request.q.numel() or not request.k.numel():
            return False
        norms = (widen(x).nan_to_num(0.0, 0.0, 0.0).norm(dim=-1).amax() for x in (request.q, request.k))
        if not bool(abs(request.similarity.scale) * math.prod(norms) <= largest):
            return True
        if mask is None or mask.dtype == torch.bool:
            return False
        highest = mask.amax(-1)
        return bool(((highest.abs() > largest) & (highest != -torch.inf)).any())


def _mask_needs_grad(request: Request) -> bool:
    """Return whether a float mask requires a gradient."""
    dense = request.mask.dense
    return dense is not None and dense.requires_grad and torch.is_grad_enabled()


def context(request: Request) -> tuple[Tensor, None]:
    """Return the context only. SDPA returns no log-sum-exp, so a map computes its statistic on first access."""
    request = request.reduced()
    # without heads, SDPA of torch 2.10 ends the process; without cells, it does not connect the mask to the graph
    if 0 in request.lead[-1:] or (_mask_needs_grad(request) and 0 in request.shape):
        return reference.context(request)[0], None
    assert isinstance(request.similarity, Dot)
    scale, lead, value_width = request.similarity.scale, request.lead, request.value.shape[-1]
    q = by_head(request.q, request)  # (B, H, Tq, D)
    k, v = (by_head(x, request, request.groups) for x in (request.k, request.value))  # (B, H / groups, Tk, ·)
    if scale <= 0:  # SDPA's fused kernels mask before they scale, and −∞ · 0 is NaN
        q, scale = q * scale, 1.0
    if q.shape[-1] != value_width:  # nor do they support different widths; padding with zeros changes nothing
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
    # only fused kernels lack second derivatives; dropout that was drawn inside SDPA cannot be reproduced
    unfused = unfused or (request.device.type == "cpu" and _mask_needs_grad(request))
    return (out if request.dropout_p or unfused else with_higher_order(out, request)), None


def _mask(request: Request) -> Tensor | None:
    """Return the mask for SDPA: dense, boolean or float; None if there is none or `is_causal` is enough."""
    mask = request.mask
    if mask.open or mask.only_causal:
        return None
    rows, cols = slice(0, request.queries), slice(0, request.keys)
    bias, dense = mask.bias(rows, cols), mask.allowed(rows, cols, request.device)
    if bias is not None:
        # finite numbers of a float32 mask may be out of range for float16 and would become −∞
        bias = bias.to(request.wide if request.device.type == "cpu" else request.q.dtype)
        dense = bias if dense is None else torch.where(dense, bias, -torch.inf)
    return None if dense is None else mask_by_head(dense, request)
