"""The native backend: C++ kernels for the CPU, float32, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import blocked, engine
from .isolate import Apart, isolated
from .masks import transformed
from .native_additive import AdditiveAttention
from .native_op import request_of, traced
from .native_plan import Plan, kernels, view
from .request import Request
from .similarity import Additive, Dot, Pairwise

name = "native"
isolates = True

PLAIN = (Tensor, torch.nn.Parameter)
"""The tensors whose memory may be read: a subclass may hold it elsewhere, or none."""
ROWS_PER_TASK = 192
"""Queries that share one transposition of the keys."""


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if engine.module is None:
        return engine.reason
    if not (request.q.is_cpu or request.q.is_meta):
        return f"it is for the CPU, not for {request.device.type}"
    if request.q.dtype != torch.float32:
        return f"it computes in float32, not in {str(request.q.dtype).removeprefix('torch.')}"
    if isinstance(request.similarity, Pairwise):
        return "it knows dot products and additive scores, not callables"
    if request.hard or request.dropout_p:
        return "it has no hard weighting" if request.hard else "it has no dropout"
    if transformed():
        return "torch.func sees PyTorch's own operators only"
    if isinstance(request.similarity, Additive) and torch.compiler.is_compiling():
        return "torch.compile sees its dot products only"
    return None if request.mask.open else _unfit_mask(request)


def _unfit_mask(request: Request) -> str | None:
    dense = request.mask.dense
    if dense is not None and dense.requires_grad and torch.is_grad_enabled():
        return "it gives a float mask no gradient"
    for number, what in ((request.mask.offset, "causal_offset"), (request.mask.lengths, "lengths")):
        per_head = len(request.lead) > 1 or request.groups > 1
        if isinstance(number, Tensor) and per_head and number.shape[len(request.lead) - 1] != 1:
            return f"it takes one number of {what} per batch entry, not per head"
    return None


def context(request: Request) -> tuple[Tensor, Tensor]:
    """The context and each row's log-sum-exp."""
    request = request.reduced()
    if _through_dispatcher(request) and isinstance(request.similarity, Dot):
        return traced(request)
    return _eager(request)


def _eager(request: Request) -> tuple[Tensor, Tensor]:
    """A masked key or value that is not finite shows as a context that is not: then, and only then, it is taken out."""
    found, lse, finite = _serve(request)
    if finite or request.mask.open:
        return found, lse
    return isolated(request, lambda clean: _serve(clean)[:2])  # type: ignore[return-value]


def _through_dispatcher(request: Request) -> bool:
    """Whether somebody traces or wraps tensors, and has to see an operator of torch in place of pointers."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    return not (type(request.q) in PLAIN and type(request.k) in PLAIN and type(request.v) in PLAIN)


def _serve(request: Request) -> tuple[Tensor, Tensor, bool]:
    """Context, log-sum-exp, and whether every context is finite."""
    plan = Plan.of(request)
    lead, groups = request.lead, request.groups
    shared = (*lead[:-1], lead[-1] // groups) if groups > 1 else lead
    q = _four(request.q, lead, plan)  # (B, H, Tq, D)
    k, v = _four(request.k, shared, plan), _four(request.value, shared, plan)  # (B, H / groups, Tk, ·)
    finite = True
    if isinstance(request.similarity, Additive):
        found, lse, beyond = AdditiveAttention.apply(q, k, v, _heads(request, plan), plan)
        if bool(beyond):  # |x| > 43, or not finite: rare, and then the explicit tanh
            found, lse = isolated(request, blocked.context)
    elif _wants_gradient(q, k, v):
        found, lse, finite = _Dot.apply(q, k, v, plan)
    else:
        found, lse, finite = _forward(plan, q, k, v)
    if len(lead) == 2:
        return found, lse, finite
    return found.reshape(*lead, *found.shape[-2:]), lse.reshape(*lead, request.queries), finite


def _wants_gradient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether autograd has to know of the call; a tangent of forward mode, which is not served, is for it to refuse."""
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    return (wanted and torch.is_grad_enabled()) or forward_ad._current_level >= 0


def _heads(request: Request, plan: Plan) -> Tensor:
    """The weights of additive scores, (B, H, D), broadcast by strides."""
    assert isinstance(request.similarity, Additive)
    w = request.similarity.weight.to(torch.float32)
    w = w.expand(*request.lead, w.shape[-1]).reshape(plan.batches, plan.heads, w.shape[-1])
    return w if w.stride(-1) == 1 or w.shape[-1] == 1 else w.contiguous()


def _four(x: Tensor, lead: tuple[int, ...], plan: Plan) -> Tensor:
    """Free leading dimensions as (batch, heads), the last dimension with unit stride."""
    if len(lead) != 2 or x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
        heads = math.prod(lead) // plan.batches if plan.batches else 0
        x = x.reshape(plan.batches, heads, *x.shape[-2:])
    return _rows(x)


def _rows(x: Tensor) -> Tensor:
    """The last dimension with unit stride."""
    return x if x.stride()[-1] == 1 or x.shape[-1] == 1 else x.contiguous()


def _forward(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Context (B, H, Tq, Dv), log-sum-exp (B, H, Tq), and whether every context is finite."""
    batches, heads, queries, width = q.shape
    found = q.new_empty(batches, heads, queries, v.shape[-1])
    lse = q.new_empty(batches, heads, queries)
    if not lse.numel():
        return found, lse, True
    threads = torch.get_num_threads()
    rows = plan.rows_per_task(queries, threads, ROWS_PER_TASK)
    finite = kernels().dot_forward(
        *plan.arguments(q, k, v, width=width), found.data_ptr(), lse.data_ptr(), rows, threads
    )
    return found, lse, finite


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor, bool]:
        found, lse, finite = _forward(plan, q, k, v)
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
    grad = _rows(grad)
    (batches, heads), (*_, keys, width), value_width = q.shape[:2], k.shape, v.shape[-1]
    dq = q.new_empty(q.shape)
    dk, dv = q.new_empty(batches, heads, keys, width), q.new_empty(batches, heads, keys, value_width)  # per query head
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


@torch.library.impl("regard::dot", "CPU")
@torch.no_grad()
def _dot(*plan: Any) -> tuple[Tensor, Tensor]:
    return _eager(request_of(*plan))


@torch.library.impl("regard::dot_backward", "CPU")
@torch.no_grad()
def _dot_backward(grad: Tensor, found: Tensor, lse: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    request = request_of(*arguments)
    plan = Plan.of(request)
    q, k, v, found = (_rows(x) for x in (request.q, request.k, request.value, found))
    dq, dk, dv, finite = _backward(plan, q, k, v, found, lse.contiguous(), grad)
    if finite or not plan.masked:
        return dq, dk, dv
    apart = Apart.of(request)  # as `isolated` and its gradient do in an eager call
    q, k, v = (_rows(x) for x in (apart.clean.q, apart.clean.k, apart.clean.value))
    found, lse, _ = _forward(plan, q, k, v)
    dq, dk, dv, _ = _backward(plan, q, k, v, found, lse, torch.where(apart.lost(), 0, grad))
    return dq, dk, torch.where(request.value.isfinite(), dv, 0)  # a query or key taken out weighs nothing any more
