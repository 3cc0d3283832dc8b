"""Additive attention by the native kernels. With precomputed exponentials, no pair needs a transcendental function."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..derivatives import gradients_by_head, needs_operators
from ..masks import Mask
from ..similarity import Additive, Prepared
from .plan import Plan, address, allocate, kernels, rows_of, unit_rows, view

ROWS_PER_TASK = 64
KEYS_PER_TASK = 64
"""Fewest keys per task: a backward pass is not divided further."""
MAX_SAVED_RATIO = 2
"""Scores are saved for the backward pass if they take at most this many times the memory of the exponentials."""


class Saved(NamedTuple):
    """Tensors and flags for the backward pass."""

    own: tuple[bool, bool]
    """Whether q and k are stored instead of their exponentials, which each task then recomputes."""
    tensors: tuple[Tensor, ...]
    """q, k, v, w, the context, the softmax of each row, and the scores if they were saved."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, plan: Plan, prepared: Prepared | None, keep: bool
) -> tuple[Tensor, Tensor, bool, Saved]:
    """Return context (B, H, Tq, Dv), softmax (2, B, H, Tq), whether the kernels succeeded, and data for backward.

    If they did not succeed, the other results are undefined. `keep`: there will be a backward pass.
    """
    (batches, heads, queries, width), keys = q.shape, k.shape[2]
    threads = torch.get_num_threads()
    rows = plan.rows_per_task(queries, threads, ROWS_PER_TASK)
    one_task_per_head = rows >= queries and plan.groups == 1  # each task has its own head and computes its exponentials
    context = q.new_empty(batches, heads, queries, v.shape[-1])
    query_row, key_row = kernels().query_row(width), kernels().key_row(width)
    keep &= keys <= MAX_SAVED_RATIO * (query_row + key_row * keys // max(1, queries))
    eq = None if one_task_per_head else q.new_empty(batches, heads, queries, query_row)
    ek, filled = _exponentials(k, (batches, k.shape[1], keys, key_row), prepared, one_task_per_head)
    lead = (batches, heads, queries)
    shapes = ((2, *lead), (*lead, keys if keep else 0))
    softmax, scores = allocate(*shapes) if keep else map(q.new_empty, shapes)
    succeeded = True
    if softmax.numel():
        exponentials = address(eq), address(ek), filled
        outputs = address(context), rows_of(softmax), address(scores) if keep else 0
        succeeded = kernels().additive_forward(
            plan.problem(q, k, v, width), _weights(w), *exponentials, *outputs, rows, threads
        )
    if prepared is not None and succeeded and keys:
        prepared.exponentials = ek
    own = eq is None, ek is None
    saved = (q if eq is None else eq, k if ek is None else ek, v, w, context, softmax, scores)
    return context, softmax, succeeded, Saved(own, saved)


def _exponentials(
    k: Tensor, shape: tuple[int, ...], prepared: Prepared | None, one_task_per_head: bool
) -> tuple[Tensor | None, bool]:
    """Return memory for the exponentials of the keys, and whether it is filled; None if each task computes its own."""
    if prepared is None:
        return None if one_task_per_head else k.new_empty(shape), False
    if prepared.exponentials is not None and prepared.exponentials.shape == shape:
        return prepared.exponentials, True
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
        context, softmax, succeeded, saved = forward(q, k, v, w, plan, prepared, keep=True)
        ctx.plan, ctx.width, ctx.own = plan, q.shape[-1], saved.own
        ctx.mask, ctx.lead = mask, lead
        ctx.save_for_backward(*saved.tensors, q, k)  # the last two only for second derivatives
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(softmax)
        return context, softmax, succeeded

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        q, k, v, w, context, softmax, scores, *q_and_k = ctx.saved_tensors  # q and k may be their exponentials
        if needs_operators(grad):
            numbers = (Additive(w), ctx.mask, ctx.plan.softcap, ctx.plan.groups, ctx.lead)
            return *gradients_by_head((*q_and_k, v, w), ctx.needs_input_grad[:4], grad, *numbers), *(None,) * 4
        plan, width, threads = ctx.plan, ctx.width, torch.get_num_threads()
        batches, heads, queries, keys = plan.batches, plan.heads, q.shape[2], k.shape[2]
        parts = plan.key_parts(keys, threads, KEYS_PER_TASK)
        row = kernels().padded(width)
        empty = not (grad.numel() and keys)
        shapes = ((batches, heads, parts, queries, row), (batches, heads, parts, row))
        dq, dw, dk, dv = allocate(*shapes, (batches, heads, keys, row), (batches, heads, keys, v.shape[-1]))
        if empty:
            dq, dw, dk, dv = dq.zero_(), dw.zero_(), dk.zero_(), dv.zero_()
        else:  # the kernel writes every element
            grad = unit_rows(grad)
            forward_results = view(grad), view(context), rows_of(softmax), address(scores)
            gradients = map(address, (dq, dk, dv, dw))
            kernels().additive_backward(
                plan.problem(q, k, v, width), _weights(w), *ctx.own, *forward_results, parts, *gradients, threads
            )
        dk, dv = plan.ungroup(dk[..., :width]), plan.ungroup(dv)
        return _sum_parts(dq)[..., :width], dk, dv, _sum_parts(dw)[..., :width], *(None,) * 4


def _sum_parts(x: Tensor) -> Tensor:
    """Sum the results over the parts of a head's keys: (B, H, parts, …) → (B, H, …)."""
    return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)


def _weights(w: Tensor) -> tuple[int, int, int, int]:
    """Return pointer and strides of w (B, H, D), one row per head."""
    return address(w), w.stride(0), w.stride(1), 0
