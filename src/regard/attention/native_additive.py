"""Additive attention by the native kernels: exponentials first, then no transcendental function per pair."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .native_plan import Plan, kernels, view
from .similarity import Prepared

ROWS_PER_TASK = 64
KEPT = 2
"""Scores are kept for the backward pass where they are at most so many times as large as the exponentials."""


class AdditiveAttention(torch.autograd.Function):
    """(context, lse, served): where not served, the kernels could not, and nothing else is to be used."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, w: Tensor, plan: Plan, prepared: Prepared | None
    ) -> tuple[Tensor, Tensor, bool]:
        (batches, heads, queries, width), keys = q.shape, k.shape[2]
        context = q.new_empty(batches, heads, queries, v.shape[-1])  # (B, H, Tq, Dv)
        lse = q.new_empty(batches, heads, queries)  # (B, H, Tq)
        softmax = q.new_empty(batches, heads, queries, 2)
        eq = q.new_empty(batches, heads, queries, kernels().query_row(width))
        shape = (batches, k.shape[1], keys, kernels().key_row(width))
        found = None if prepared is None else prepared.found
        ready = found is not None and found.shape == shape
        ek = found if found is not None and ready else k.new_empty(shape)
        keep = any(ctx.needs_input_grad) and lse.numel() * keys <= KEPT * (eq.numel() + ek.numel())
        kept = q.new_empty(batches, heads, queries, keys if keep else 0)
        served = True
        if lse.numel():
            threads = torch.get_num_threads()
            served = kernels().additive_forward(
                *plan.arguments(q, k, v, width=width),
                _weights(w),
                eq.data_ptr(),
                ek.data_ptr(),
                ready,
                context.data_ptr(),
                lse.data_ptr(),
                softmax.data_ptr(),
                kept.data_ptr() if keep else 0,
                plan.rows_per_task(queries, threads, ROWS_PER_TASK),
                threads,
            )
        if prepared is not None and served and keys:
            prepared.found = ek
        ctx.plan, ctx.width = plan, width
        ctx.save_for_backward(eq, ek, v, w, context, softmax, kept)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(lse)
        return context, lse, served

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        ctx.plan.once()
        if grad is None:
            return (None,) * 6
        eq, ek, v, w, context, softmax, kept = ctx.saved_tensors
        plan, width, threads = ctx.plan, ctx.width, torch.get_num_threads()
        batches, heads, queries, keys = plan.batches, plan.heads, eq.shape[2], ek.shape[2]
        parts = kernels().additive_parts(batches * heads, keys, threads) if batches * heads else 1
        row = kernels().padded(width)
        empty = not (grad.numel() and keys)
        fill = eq.new_zeros if empty else eq.new_empty  # the kernel writes all
        dq, dw = fill(batches, heads, parts, queries, row), fill(batches, heads, parts, row)
        dk, dv = fill(batches, heads, keys, row), fill(batches, heads, keys, v.shape[-1])
        if not empty:
            grad = grad if grad.stride(-1) == 1 else grad.contiguous()
            kernels().additive_backward(
                *plan.arguments(eq, ek, v, width=width),
                _weights(w),
                view(grad),
                view(context),
                softmax.data_ptr(),
                kept.data_ptr(),
                parts,
                dq.data_ptr(),
                dk.data_ptr(),
                dv.data_ptr(),
                dw.data_ptr(),
                threads,
            )
        dk, dv = plan.ungroup(dk[..., :width]), plan.ungroup(dv)
        return _joined(dq)[..., :width], dk, dv, _joined(dw)[..., :width], None, None


def _joined(x: Tensor) -> Tensor:
    """Add up what the shares of a head's keys found: (B, H, parts, …) → (B, H, …)."""
    return x.squeeze(2) if x.shape[2] == 1 else x.sum(2)


def _weights(w: Tensor) -> tuple[int, int, int, int]:
    """w (B, H, D): one row for each head."""
    return w.data_ptr(), w.stride(0), w.stride(1), 0
