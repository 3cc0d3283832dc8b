"""Packed sequences by the native kernels: each is read and written where it lies, and none waits for another.

A sequence is a problem of its own, cut out of the shared memory by native/packed/packed_dot.cpp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import validation
from ..derivatives import gradients_of_packed
from ..masks import Mask
from ..packed_layout import Layout
from ..request import Request, shared_lead
from ..similarity import Additive, Dot
from . import backend
from .plan import NUMBERS, OPEN, Gradients, Plan, address, kernels, unit_rows, view


class Packed(NamedTuple):
    """What the kernels are told besides q, k and v."""

    plan: Plan
    layout: Layout
    mask: Mask
    """As the request has it: for second derivatives."""

    def arguments(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
        plan, layout, _ = self
        sizes = (plan.heads, plan.groups, layout.most_queries, layout.most_keys, q.shape[-1], v.shape[-1])
        numbers = (NUMBERS[v.dtype], plan.scale, plan.softcap)
        lengths = (layout.sequences, address(layout.queries), address(layout.keys))
        views = (view(q), view(k), view(v))
        return (layout.sequences, *sizes), *views, numbers, plan.mask, lengths, q.shape[1]


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
    # as many sequences as the costliest stands for: what the costliest is cut into depends on the others
    plan = Plan(
        layout.alike(), request.lead[0], request.groups, request.similarity.scale, softcap, numbers, (), not mask.open
    )
    packed, shared = Packed(plan, layout, mask), shared_lead(request)
    q, k, v = (
        unit_rows(x.expand(*lead, *x.shape[-2:]))  # (H, N, ·)
        for x, lead in ((request.q, request.lead), (request.k, shared), (request.value, shared))
    )
    if backend._wants_gradient(q, k, v):
        found, finite = _Attention.apply(q, k, v, packed)
    else:
        found, _, finite = _forward(q, k, v, packed)
    if mask.open and learned and layout.sequences > 1:  # one gradient for all sequences: NaN in one would reach it
        return found.to(request.value.dtype) if validation.finite(found) else None
    return found.to(request.value.dtype) if finite or mask.open else None


def _forward(q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> tuple[Tensor, Tensor, bool]:
    """Context (Nq, H, Dv), softmax (2, H, Nq), and whether every context is finite."""
    (heads, queries, _), plan = q.shape, packed.plan
    found = q.new_empty(queries, heads, v.shape[-1], dtype=torch.float32)
    softmax = q.new_empty(2, heads, queries, dtype=torch.float32)
    if not softmax.numel():
        return found, softmax, True
    threads = torch.get_num_threads()
    rows = plan.rows_per_task(packed.layout.most_queries, threads, backend.ROWS_PER_TASK)
    context = view(found.transpose(0, 1))
    finite = kernels().packed_forward(*packed.arguments(q, k, v), context, address(softmax), rows, threads)
    return found, softmax, finite


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> tuple[Tensor, bool]:
        found, softmax, finite = _forward(q, k, v, packed)
        ctx.packed = packed
        ctx.save_for_backward(q, k, v, found, softmax)
        ctx.set_materialize_grads(False)
        return found, finite

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        plan, layout, mask = ctx.packed
        q, k, v, found, softmax = ctx.saved_tensors
        if torch.is_grad_enabled():  # only under create_graph=True
            request = Request.of_parts(
                q, k, v, Dot(plan.scale), lead=q.shape[:1], mask=mask, softcap=plan.softcap or None, groups=plan.groups
            )
            return *gradients_of_packed(request, layout, ctx.needs_input_grad[:3], grad), None
        *gradients, finite = _backward(ctx.packed, q, k, v, found, softmax, grad)
        if plan.masked and not finite:
            q, k, v = (torch.where(x.isfinite(), x, 0) for x in (q, k, v))  # masked out, or lost in any case
            *gradients, _ = _backward(ctx.packed, q, k, v, found, softmax, grad)
        return *gradients, None


def _backward(
    packed: Packed, q: Tensor, k: Tensor, v: Tensor, found: Tensor, softmax: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The gradients of q, k and v, (H, N, ·) each, and whether all are finite."""
    plan, layout, finite, threads = packed.plan, packed.layout, True, torch.get_num_threads()
    grad = unit_rows(grad)
    parts = plan.shares(layout.most_keys, threads, backend.KEYS_PER_TASK)
    room = Gradients.room(plan, q, k, v, parts)
    if not grad.numel() or not layout.queries.all():  # no query, no gradient of its keys
        room.zero()
    if grad.numel():
        finite = kernels().packed_backward(
            *packed.arguments(q, k, v),
            view(grad.transpose(0, 1)),
            view(found.transpose(0, 1)),
            address(softmax),
            parts,
            *room.arguments(),
            threads,
        )
    return *room.of(plan, q, k, v), finite
