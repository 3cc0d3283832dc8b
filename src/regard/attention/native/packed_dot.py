"""Packed sequences by the native kernels: each is read and written where it lies, and none waits for another.

A sequence is a problem of its own, cut out of the shared memory by native/packed/packed_dot.cpp.
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
    """Why the sequences of a request, (H, N, D) each of q, k and v, have to be padded; None where they need not."""
    if isinstance(request.similarity, Additive):
        return "its additive scores are for sequences of one length"
    if request.q.is_meta or backend._through_dispatcher(request):
        return "somebody traces or wraps the tensors"
    return backend.refusal(request)


def context(request: Request, layout: Layout) -> Tensor | None:
    """The context (Nq, H, Dv); None if NaN or infinity has to be kept from what may not attend to it."""
    learned = any(x.requires_grad for x in request.similarity.parameters) and torch.is_grad_enabled()
    request = request.reduced()
    assert isinstance(request.similarity, Dot)
    mask, softcap = request.mask, request.softcap or 0.0
    sides = (OPEN if mask.left is None else mask.left, OPEN if mask.right is None else mask.right)
    offsets = address(layout.offsets)  # the layout is kept as long as the plan is
    numbers = None if mask.open else (*sides, offsets, 0, 0, 0, 0, 0, 0, 0)
    scale, shared = request.similarity.scale, shared_lead(request.lead, request.groups)
    # as many sequences as the costliest stands for: what the costliest is cut into depends on the others
    plan = Plan(layout.alike(), request.lead[0], request.groups, scale, softcap, numbers, (), layout)
    q, k, v = (
        unit_rows(x.expand(*lead, *x.shape[-2:]))  # (H, N, ·)
        for x, lead in ((request.q, request.lead), (request.k, shared), (request.value, shared))
    )
    found, _, finite = backend.attention(q, k, v, plan, mask, request.lead)  # (H, Nq, Dv)
    found = found.transpose(0, 1)
    if mask.open and learned and layout.sequences > 1:  # one gradient for all sequences: NaN in one would reach it
        return found.to(request.value.dtype) if validation.finite(found) else None
    return found.to(request.value.dtype) if finite or mask.open else None
