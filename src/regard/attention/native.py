"""The native backend: C++ kernels for the CPU, forward and backward, in float32; additive scores also of halves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import blocked, engine
from .isolate import isolated
from .masks import transformed
from .native_additive import AdditiveAttention
from .native_plan import Plan, kernels, view
from .request import Request
from .similarity import Additive, Pairwise, widen

name = "native"
isolates = True

ROWS_PER_TASK = 192
"""Queries that share one transposition of the keys."""
SMALLEST = 2**21
"""Multiplications of one matrix product below which `auto` leaves a request to SDPA."""


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if engine.module is None:
        return engine.reason
    if request.device.type not in ("cpu", "meta"):
        return f"it is for the CPU, not for {request.device.type}"
    half = isinstance(request.similarity, Additive) and request.q.dtype in (torch.bfloat16, torch.float16)
    if request.q.dtype != torch.float32 and not half:
        return f"it computes in float32, not in {str(request.q.dtype).removeprefix('torch.')}"
    if isinstance(request.similarity, Pairwise):
        return "it knows dot products and additive scores, not callables"
    if request.hard or request.dropout_p:
        return "it has no hard weighting" if request.hard else "it has no dropout"
    if torch.compiler.is_compiling() or transformed():
        return "torch.compile and torch.func see PyTorch's own operators only"
    return _unfit_mask(request)


def _unfit_mask(request: Request) -> str | None:
    dense = request.mask.dense
    if dense is not None and dense.requires_grad and torch.is_grad_enabled():
        return "it gives a float mask no gradient"
    for number, what in ((request.mask.offset, "causal_offset"), (request.mask.lengths, "lengths")):
        per_head = len(request.lead) > 1 or request.groups > 1
        if isinstance(number, Tensor) and per_head and number.shape[len(request.lead) - 1] != 1:
            return f"it takes one number of {what} per batch entry, not per head"
    return None


def worth(request: Request) -> bool:
    """Whether there is enough to compute that a call of SDPA, which costs some 25 µs less to start, is not faster."""
    if isinstance(request.similarity, Additive):
        return True  # which SDPA does not serve
    return request.entries * request.queries * request.keys * request.q.shape[-1] >= SMALLEST


def context(request: Request) -> tuple[Tensor, Tensor]:
    """The context and each row's log-sum-exp.

    A masked key or value that is not finite shows as a context that is not: then, and only then, it is taken out.
    """
    found, lse, finite = _serve(request)
    if finite or request.mask.open:
        return found, lse
    return isolated(request, lambda clean: _serve(clean)[:2])  # type: ignore[return-value]


def _serve(request: Request) -> tuple[Tensor, Tensor, bool]:
    """Context, log-sum-exp, and whether every context is finite."""
    request = request.reduced()
    plan = Plan.of(request)
    shared = (*request.lead[:-1], request.lead[-1] // request.groups) if request.groups > 1 else request.lead
    q = _four(widen(request.q), request.lead, plan)  # (B, H, Tq, D)
    k, v = (_four(widen(x), shared, plan) for x in (request.k, request.value))  # (B, H / groups, Tk, ·)
    if isinstance(request.similarity, Additive):
        prepared = request.similarity.prepared
        prepared = prepared if prepared is not None and prepared.serves(request.k) else None
        found, lse, served = AdditiveAttention.apply(q, k, v, _heads(request, plan), plan, prepared)
        found, finite = found if found.dtype == request.value.dtype else found.to(request.value.dtype), True
        if not served:  # |x| > 43, or not finite: rare, and then the explicit tanh
            found, lse = isolated(request, blocked.context)
    else:
        found, lse, finite = _Dot.apply(q, k, v, plan)
    return found.reshape(*request.lead, *found.shape[-2:]), lse.reshape(*request.lead, request.queries), finite


def _heads(request: Request, plan: Plan) -> Tensor:
    """The weights of additive scores, (B, H, D), broadcast by strides."""
    assert isinstance(request.similarity, Additive)
    w = request.similarity.weight
    w = w if w.dtype == torch.float32 else w.to(torch.float32)
    w = w.expand(*request.lead, w.shape[-1]).reshape(plan.batches, plan.heads, w.shape[-1])
    return w if w.stride(-1) == 1 or w.shape[-1] == 1 else w.contiguous()


def _four(x: Tensor, lead: tuple[int, ...], plan: Plan) -> Tensor:
    """Free leading dimensions as (batch, heads), the last dimension with unit stride."""
    if len(lead) != 2 or x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
        heads = math.prod(lead) // plan.batches if plan.batches else 0
        x = x.reshape(plan.batches, heads, *x.shape[-2:])
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor, bool]:
        found = q.new_empty(*q.shape[:-1], v.shape[-1])  # (B, H, Tq, Dv)
        lse = q.new_empty(q.shape[:-1])  # (B, H, Tq)
        threads, finite = torch.get_num_threads(), True
        if found.numel() or lse.numel():
            rows = plan.rows_per_task(q.shape[2], threads, ROWS_PER_TASK)
            finite = kernels().dot_forward(
                *plan.arguments(q, k, v, width=q.shape[-1]), found.data_ptr(), lse.data_ptr(), rows, threads
            )
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, found, lse)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(lse)
        return found, lse, finite

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        ctx.plan.once()
        if grad is None:
            return None, None, None, None
        q, k, v, found, lse = ctx.saved_tensors
        dq, dk, dv, finite = _backward(ctx.plan, q, k, v, found, lse, grad)
        if ctx.plan.masked and not finite:
            q, k, v = (torch.where(x.isfinite(), x, 0) for x in (q, k, v))  # masked out, or lost in any case
            dq, dk, dv, _ = _backward(ctx.plan, q, k, v, found, lse, grad)
        return dq, dk, dv, None


def _backward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, found: Tensor, lse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, bool]:
    finite = True
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    heads = q.shape[:2]
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = (x.new_empty(*heads, *x.shape[2:]) for x in (k, v))  # one per query head
    if grad.numel():
        finite = kernels().dot_backward(
            *plan.arguments(q, k, v, width=q.shape[-1]),
            view(grad),
            view(found),
            lse.data_ptr(),
            dq.data_ptr(),
            dk.data_ptr(),
            dv.data_ptr(),
            torch.get_num_threads(),
        )
    else:
        dq, dk, dv = dq.zero_(), dk.zero_(), dv.zero_()
    return dq, plan.ungroup(dk), plan.ungroup(dv), finite
