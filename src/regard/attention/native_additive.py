"""Additive attention by the native kernels: exponentials first, then no transcendental function per pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .native_plan import Plan, kernels, view

ROWS_PER_TASK = 48
EXPONENTIALS_PER_TASK = 256


@dataclass(frozen=True)
class Exponentials:
    """e^{2x} of queries or keys, (B, H, T, padded width), and whether they need clamping."""

    e: Tensor
    beyond: bool
    """Some |x| is above 43 or NaN: the kernels cannot serve."""
    large: bool

    @classmethod
    def of(cls, x: Tensor) -> Exponentials:
        batches, heads, rows, width = x.shape
        e = x.new_empty(batches, heads, rows, kernels().padded(width))
        flags = torch.zeros(2, dtype=torch.int32)
        if e.numel():
            threads = torch.get_num_threads()
            kernels().exponentials(
                tuple(x.shape), view(x), e.data_ptr(), flags.data_ptr(), EXPONENTIALS_PER_TASK, threads
            )
        beyond, large = flags.tolist()
        return cls(e, bool(beyond), bool(large))


class AdditiveAttention(torch.autograd.Function):
    """(context, lse, beyond): where `beyond` is not 0 the kernels could not serve, and nothing else is to be used."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, w: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        context = q.new_empty(*q.shape[:-1], v.shape[-1])  # (B, H, Tq, Dv)
        lse = q.new_empty(q.shape[:-1])  # (B, H, Tq)
        eq, ek = Exponentials.of(q), Exponentials.of(k)
        clamp = int(eq.large or ek.large)
        beyond = torch.full((1,), int(eq.beyond or ek.beyond), dtype=torch.int32)
        if not bool(beyond) and lse.numel():
            threads = torch.get_num_threads()
            rows = plan.rows_per_task(q.shape[2], threads, ROWS_PER_TASK)
            kernels().additive_forward(
                *plan.arguments(eq.e, ek.e, v, width=q.shape[-1]),
                _weights(w),
                clamp,
                context.data_ptr(),
                lse.data_ptr(),
                beyond.data_ptr(),
                rows,
                threads,
            )
        ctx.plan, ctx.clamp, ctx.width = plan, clamp, q.shape[-1]
        ctx.save_for_backward(eq.e, ek.e, v, w, context, lse)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(lse, beyond)
        return context, lse, beyond

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        ctx.plan.once()
        if grad is None:
            return None, None, None, None, None
        eq, ek, v, w, context, lse = ctx.saved_tensors
        plan, width, threads = ctx.plan, ctx.width, torch.get_num_threads()
        heads, queries, keys, row = plan.batches * plan.heads, eq.shape[2], ek.shape[2], eq.shape[3]
        parts = kernels().additive_parts(heads, keys, threads) if heads else 1
        dq = eq.new_zeros(plan.batches, plan.heads, parts, queries, row)
        dk = eq.new_zeros(plan.batches, plan.heads, keys, row)
        dv = eq.new_zeros(plan.batches, plan.heads, keys, v.shape[-1])
        dw = eq.new_zeros(plan.batches, plan.heads, parts, row)
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        if grad.numel() and keys:
            kernels().additive_backward(
                *plan.arguments(eq, ek, v, width=width),
                _weights(w),
                ctx.clamp,
                view(grad),
                view(context),
                lse.data_ptr(),
                parts,
                dq.data_ptr(),
                dk.data_ptr(),
                dv.data_ptr(),
                dw.data_ptr(),
                threads,
            )
        dk, dv = plan.ungroup(dk[..., :width]), plan.ungroup(dv)
        return dq.sum(2)[..., :width], dk, dv, dw.sum(2)[..., :width], None


def _weights(w: Tensor) -> tuple[int, int, int, int]:
    """w (B, H, D): one row for each head."""
    return w.data_ptr(), w.stride(0), w.stride(1), 0
