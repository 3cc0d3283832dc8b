"""The native backend: C++ kernels for the CPU, forward and backward, computing in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.tensors import transformed, widen
from .. import blocked
from ..derivatives import gradients_by_head, unserved
from ..dot_operator import request_of, traced
from ..masks import Mask
from ..nonfinite import Apart, isolated
from ..request import Request
from ..similarity import Additive, Dot, Pairwise
from ..statistic import Statistic
from ..validation import PLAIN
from . import additive, engine
from .plan import NUMBERS, Gradients, Plan, channel_weights, four, heads_inside, kernels, rows_of, unit_rows, view

name = "native"
isolates = True

FEW_QUERIES = 4
"""Up to which the kernels for few queries serve (few_queries in native/dispatch/dispatch.hpp)."""
ROWS_PER_TASK = 192
"""Queries that share one transposition of the keys."""
KEYS_PER_TASK = 256
"""Keys of a share below which a backward pass is not cut further."""


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if engine.module is None:
        return engine.reason
    if not (request.q.is_cpu or request.q.is_meta):
        return f"it is for the CPU, not for {request.device.type}"
    if request.q.dtype not in NUMBERS:
        return f"it computes in float32, not in {str(request.q.dtype).removeprefix('torch.')}"
    return unfit(request)


def unfit(request: Request) -> str | None:
    """What the kernels do not know, whatever the device and the dtype."""
    if isinstance(request.similarity, Pairwise):
        return "it knows dot products and additive scores, not callables"
    if request.hard or request.dropout_p:
        return "it has no hard weighting" if request.hard else "it has no dropout"
    if transformed():
        return "torch.func sees PyTorch's own operators only"
    if isinstance(request.similarity, Additive) and torch.compiler.is_compiling():
        return "torch.compile sees its dot products only"
    return unserved(request) or (None if request.mask.open else _unfit_mask(request))


def _unfit_mask(request: Request) -> str | None:
    dense = request.mask.dense
    if dense is not None and dense.requires_grad and torch.is_grad_enabled():
        return "it gives a float mask no gradient"
    for number, what in ((request.mask.offset, "causal_offset"), (request.mask.lengths, "lengths")):
        per_head = len(request.lead) > 1 or request.groups > 1
        if isinstance(number, Tensor) and per_head and number.shape[len(request.lead) - 1] != 1:
            return f"it takes one number of {what} per batch entry, not per head"
    return None


def context(request: Request) -> tuple[Tensor, Statistic | Tensor]:
    """The context of a reduced request, and the statistic of its rows (`Statistic.unpack`)."""
    through = _through_dispatcher(request) and isinstance(request.similarity, Dot)
    found, statistic = traced(request) if through else _eager(request)
    return (found, statistic) if request.value.dtype == torch.float32 else (found.to(request.value.dtype), statistic)


def _eager(request: Request) -> tuple[Tensor, Statistic | Tensor]:
    """In float32. A masked number that is not finite shows as a context that is not: only then are such taken out."""
    found, statistic, finite = _serve(request)
    if finite or request.mask.open:
        return found, statistic
    return isolated(request, lambda clean: _serve(clean)[:2])  # type: ignore[return-value]


def scores_as_viewed(request: Request) -> bool:
    """Whether its scores are those of the views of a map (`native.views`), bit for bit.

    Both add up the products of a pair one by one; but the kernels for few queries do so lane by lane.
    """
    return isinstance(request.similarity, Additive) or request.queries > FEW_QUERIES


def _through_dispatcher(request: Request) -> bool:
    """Whether somebody traces or wraps tensors, and has to see an operator of torch in place of pointers."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    return not (type(request.q) in PLAIN and type(request.k) in PLAIN and type(request.v) in PLAIN)


def _serve(request: Request) -> tuple[Tensor, Statistic | Tensor, bool]:
    """Context, the statistic of its rows, and whether every context is finite."""
    plan = Plan.of(request)
    lead, finite = request.lead, True
    if isinstance(request.similarity, Additive):
        found, softmax, served = _additive(request, plan)
        if not served:  # |x| > 43, or not finite: rare, and then the explicit tanh
            return *isolated(request, blocked.context), True  # type: ignore[return-value]
    else:
        q = four(request.q, request)  # (B, H, Tq, D)
        k, v = four(request.k, request, request.groups), four(request.value, request, request.groups)
        found, softmax, finite = attention(q, k, v, plan, request.mask, lead)
    if len(lead) == 2:
        return found, softmax, finite
    return found.reshape(*lead, *found.shape[-2:]), softmax.reshape(2, *lead, request.queries), finite


def _additive(request: Request, plan: Plan) -> tuple[Tensor, Tensor, bool]:
    """Context, softmax (2, B, H, Tq), and whether the kernels could serve."""
    assert isinstance(request.similarity, Additive)
    prepared = request.similarity.prepared
    prepared = prepared if prepared is not None and prepared.serves(request.k) else None
    q = four(widen(request.q), request)  # (B, H, Tq, D)
    k, v = (four(widen(x), request, request.groups) for x in (request.k, request.value))  # (B, H / groups, Tk, ·)
    w = channel_weights(request, plan)
    if not _wants_gradient(q, k, v, w):
        return additive.forward(q, k, v, w, plan, prepared, keep=False)[:3]
    return additive.AdditiveAttention.apply(q, k, v, w, plan, prepared, request.mask, request.lead)


def _wants_gradient(*tensors: Tensor) -> bool:
    """Whether autograd has to know of the call."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def attention(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, mask: Mask, lead: tuple[int, ...]
) -> tuple[Tensor, Tensor, bool]:
    """Dot-product attention: context (…, H, Tq, Dv), softmax (2, …, H, Tq), and whether every context is finite.

    q, k and v are (B, H, T, ·), or (H, N, ·) if they are packed.
    """
    if _wants_gradient(q, k, v):
        return _Dot.apply(q, k, v, plan, mask, lead)
    return _forward(q, k, v, plan)


def _forward(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor, bool]:
    *lead, heads, queries, width = q.shape
    inside = plan.layout is not None or heads_inside(q)  # the context lies as q does, or as packed tokens do
    found = q.new_empty(*lead, *((queries, heads) if inside else (heads, queries)), v.shape[-1], dtype=torch.float32)
    found = found.transpose(-3, -2) if inside else found
    softmax = q.new_empty(2, *lead, heads, queries, dtype=torch.float32)
    if not softmax.numel():
        return found, softmax, True
    threads, (_, longest, _) = torch.get_num_threads(), plan.counts(q, k)
    rows = plan.rows_per_task(longest, threads, ROWS_PER_TASK)
    problem = plan.problem(q, k, v, width)
    finite = kernels().dot_forward(problem, plan.lengths, view(found), rows_of(softmax), rows, threads)
    return found, softmax, finite


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan, mask: Mask, lead: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, bool]:
        found, softmax, finite = _forward(q, k, v, plan)
        ctx.plan, ctx.mask, ctx.lead = plan, mask, lead
        ctx.save_for_backward(q, k, v, found, softmax)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(softmax)
        return found, softmax, finite

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        q, k, v, found, softmax = ctx.saved_tensors
        if torch.is_grad_enabled():  # only under create_graph=True
            plan, wanted = ctx.plan, ctx.needs_input_grad[:3]
            numbers = (Dot(plan.scale), ctx.mask, plan.softcap, plan.groups, ctx.lead)
            return *gradients_by_head((q, k, v), wanted, grad, *numbers, plan.layout), None, None, None
        dq, dk, dv, finite = _backward(ctx.plan, q, k, v, found, softmax, grad)
        if ctx.plan.masked and not finite:
            q, k, v = (torch.where(x.isfinite(), x, 0) for x in (q, k, v))  # masked out, or lost in any case
            dq, dk, dv, _ = _backward(ctx.plan, q, k, v, found, softmax, grad)
        return dq, dk, dv, None, None, None


def _backward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, found: Tensor, softmax: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, bool]:
    finite, grad, threads = True, unit_rows(grad), torch.get_num_threads()
    parts = plan.shares(plan.counts(q, k)[-1], threads, KEYS_PER_TASK)
    room = Gradients.room(plan, q, k, v, parts)
    if not grad.numel() or (plan.layout is not None and not plan.layout.queries.all()):
        room.zero()  # the kernel writes no gradient of keys without queries
    if grad.numel():
        outcome = view(grad), view(found), rows_of(softmax)
        problem = plan.problem(q, k, v, q.shape[-1])
        finite = kernels().dot_backward(problem, plan.lengths, *outcome, parts, room.arguments(), threads)
    return *room.of(plan, q, k, v), finite


@torch.library.impl("regard::dot", "CPU")
@torch.no_grad()
def _dot(*plan: Any) -> tuple[Tensor, Tensor]:
    found, statistic = _eager(request_of(*plan))
    rows = statistic if isinstance(statistic, Tensor) else torch.stack((statistic.highest, statistic.total))
    return found.contiguous(), rows  # as was foretold


@torch.library.impl("regard::dot_backward", "CPU")
@torch.no_grad()
def _dot_backward(grad: Tensor, found: Tensor, softmax: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    request = request_of(*arguments)
    plan = Plan.of(request)
    q, k, v, found = (unit_rows(x) for x in (request.q, request.k, request.value, found))
    dq, dk, dv, finite = _backward(plan, q, k, v, found, softmax.contiguous(), grad)
    if finite or not plan.masked:
        return dq.contiguous(), dk.contiguous(), dv.contiguous()
    apart = Apart.of(request)  # as `isolated` and its gradient do in an eager call
    q, k, v = (unit_rows(x) for x in (apart.clean.q, apart.clean.k, apart.clean.value))
    found, softmax, _ = _forward(q, k, v, plan)
    dq, dk, dv, _ = _backward(plan, q, k, v, found, softmax, torch.where(apart.lost(), 0, grad))
    dv = torch.where(request.value.isfinite(), dv, 0)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()  # a query or key taken out weighs nothing any more
