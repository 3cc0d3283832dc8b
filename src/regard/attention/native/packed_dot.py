"""Packed sequences by the native kernels, which read and write them in place and independently of each other.

Each sequence is a separate problem, a slice of the shared memory (native/packed/packed_dot.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import validation
from ..packed_layout import Layout
from ..request import Request, shared_lead
from ..similarity import Additive, Dot
from . import backend
from .plan import OPEN, Plan, address, unit_rows


def refusal(request: Request) -> str | None:
    """Return why the sequences of a request, with q, k and v (H, N, D), must be padded, or None if they need not."""
    if isinstance(request.similarity, Additive):
        return "its additive scores are for sequences of one length"
    if request.q.is_meta or backend._through_dispatcher(request):
        return "a tracer or wrapper needs operators of torch"
    return backend.refusal(request)


def context(request: Request, layout: Layout) -> Tensor | None:
    """Return the context (Nq, H, Dv); None if NaN or ∞ in masked positions affected it."""
    learned = any(x.requires_grad for x in request.similarity.parameters) and torch.is_grad_enabled()
    request = request.reduced()
    assert isinstance(request.similarity, Dot)
    mask, softcap = request.mask, request.softcap or 0.0
    sides = (OPEN if mask.left is None else mask.left, OPEN if mask.right is None else mask.right)
    offsets = address(layout.offsets)  # the plan keeps the layout alive
    numbers = None if mask.open else (*sides, offsets, 0, 0, 0, 0, 0, 0, 0)
    scale, shared = request.similarity.scale, shared_lead(request.lead, request.groups)
    # the effective number of sequences determines into how many tasks the most expensive one is divided
    plan = Plan(layout.effective_sequences(), request.lead[0], request.groups, scale, softcap, numbers, (), layout)
    q, k, v = (
        unit_rows(x.expand(*lead, *x.shape[-2:]))  # (H, N, ·)
        for x, lead in ((request.q, request.lead), (request.k, shared), (request.value, shared))
    )
    out, _, finite = backend.attention(q, k, v, plan, mask, request.lead)  # (H, Nq, Dv)
    out = out.transpose(0, 1)
    if mask.open and learned and layout.sequences > 1:  # all sequences share one gradient, which NaN in any would reach
        return out.to(request.value.dtype) if validation.finite(out) else None
    return out.to(request.value.dtype) if finite or mask.open else None
