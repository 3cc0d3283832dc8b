"""Additive attention by the native kernels: exponentials first, then no transcendental function per pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..derivatives import gradients_by_head
from ..masks import Mask
from ..similarity import Additive, Prepared
from .plan import Plan, address, kernels, pieces, rows_of, unit_rows, view

ROWS_PER_TASK = 64
KEYS_PER_TASK = 64
"""Keys of a share below which a backward pass is not cut further."""
KEPT = 2
"""Scores are kept for the backward pass where they are at most so many times as large as the exponentials."""


class Saved(NamedTuple):
    """What a backward pass needs."""

    own: tuple[bool, bool]
    """Whether q and k are themselves, and not their exponentials: then a task computes those once more."""
    tensors: tuple[Tensor, ...]
    """q, k, v, w, the context, the softmax of each row, and its scores if they were kept."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, plan: Plan, prepared: Prepared | None, keep: bool
) -> tuple[Tensor, Tensor, bool, Saved]:
    """Context (B, H, Tq, Dv), softmax (2, B, H, Tq), whether the kernels could serve, and what a backward pass needs.

    Where they could not, nothing else is to be used. `keep`: there will be a backward pass.
    """
    (batches, heads, queries, width), keys = q.shape, k.shape[2]
    threads = torch.get_num_threads()
    rows = plan.rows_per_task(queries, threads, ROWS_PER_TASK)
    alone = rows >= queries and plan.groups == 1  # a task has a head for itself, and computes its exponentials
    context = q.new_empty(batches, heads, queries, v.shape[-1])
    of_queries, of_keys = kernels().query_row(width), kernels().key_row(width)
    keep &= keys <= KEPT * (of_queries + of_keys * keys // max(1, queries))
    eq = None if alone else q.new_empty(batches, heads, queries, of_queries)
    ek, ready = _exponentials(k, (batches, k.shape[1], keys, of_keys), prepared, alone)
    lead = (batches, heads, queries)
    shapes = ((2, *lead), (*lead, keys if keep else 0))
    softmax, kept = pieces(*shapes) if keep else map(q.new_empty, shapes)
    served = True
    if softmax.numel():
        exponentials = address(eq), address(ek), ready
        outputs = address(context), rows_of(softmax), address(kept) if keep else 0
        served = kernels().additive_forward(
            plan.problem(q, k, v, width), _weights(w), *exponentials, *outputs, rows, threads
        )
    if prepared is not None and served and keys:
        prepared.found = ek
    own = eq is None, ek is None
    saved = (q if eq is None else eq, k if ek is None else ek, v, w, context, softmax, kept)
    return context, softmax, served, Saved(own, saved)


def _exponentials(
    k: Tensor, shape: tuple[int, ...], prepared: Prepared | None, alone: bool
) -> tuple[Tensor | None, bool]:
    """Those of the keys, or room for them, and whether they are there; None where each task is to compute its own."""
    if prepared is None:
        return None if alone else k.new_empty(shape), False
    if prepared.found is not None and prepared.found.shape == shape:
        return prepared.found, True
    return k.new_empty(shape), False


class AdditiveAttention(torch.autograd.Function):
    """`forward` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        w: Tensor,
        plan: Plan,
        prepared: Prepared | None,
        mask: Mask,
        lead: tuple[int, ...],
    ) -> tuple[Tensor, Tensor, bool]:
        context, softmax, served, saved = forward(q, k, v, w, plan, prepared, keep=True)
        ctx.plan, ctx.width, ctx.own = plan, q.shape[-1], saved.own
        ctx.mask, ctx.lead = mask, lead
        ctx.save_for_backward(*saved.tensors, q, k)  # the last two for second derivatives alone
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(softmax)
        return context, softmax, served

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        q, k, v, w, context, softmax, kept, *given = ctx.saved_tensors  # q and k, or their exponentials
        if torch.is_grad_enabled():  # only under create_graph=True
            numbers = (Additive(w), ctx.mask, ctx.plan.softcap, ctx.plan.groups, ctx.lead)
            return *gradients_by_head((*given, v, w), ctx.needs_input_grad[:4], grad, *numbers), *(None,) * 4
        plan, width, threads = ctx.plan, ctx.width, torch.get_num_threads()
        batches, heads, queries, keys = plan.batches, plan.heads, q.shape[2], k.shape[2]
        parts = plan.shares(keys, threads, KEYS_PER_TASK)
        row = kernels().padded(width)
        empty = not (grad.numel() and keys)
        shapes = ((batches, heads, parts, queries, row), (batches, heads, parts, row))
        dq, dw, dk, dv = pieces(*shapes, (batches, heads, keys, row), (batches, heads, keys, v.shape[-1]))
        if empty:
            dq, dw, dk, dv = dq.zero_(), dw.zero_(), dk.zero_(), dv.zero_()
        else:  # the kernel writes all
            grad = unit_rows(grad)
            outcome = view(grad), view(context), rows_of(softmax), address(kept)
            gradients = map(address, (dq, dk, dv, dw))
            kernels().additive_backward(
                plan.problem(q, k, v, width), _weights(w), *ctx.own, *outcome, parts, *gradients, threads
            )
        dk, dv = plan.ungroup(dk[..., :width]), plan.ungroup(dv)
        return _joined(dq)[..., :width], dk, dv, _joined(dw)[..., :width], *(None,) * 4


def _joined(x: Tensor) -> Tensor:
    """Add up what the shares of a head's keys found: (B, H, parts, …) → (B, H, …)."""
    return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)


def _weights(w: Tensor) -> tuple[int, int, int, int]:
    """w (B, H, D): one row for each head."""
    return address(w), w.stride(0), w.stride(1), 0
