"""The native backend: C++ kernels for the CPU, forward and backward, computing in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.tensors import transformed, widen
from .. import blocked
from ..derivatives import gradients_by_head, needs_operators, unsupported_derivative
from ..dot_operator import dot_through_operator, request_of
from ..masks import Mask
from ..nonfinite import FiniteRequest, serve_without_nonfinite
from ..request import Request
from ..similarity import Additive, Dot
from ..statistic import Statistic
from ..validation import PLAIN
from . import additive, engine
from .plan import (
    DTYPE_CODES,
    Gradients,
    Plan,
    channel_weights,
    heads_in_rows,
    kernels,
    rows_of,
    unit_rows,
    unit_rows_by_head,
    view,
)

name = "native"
handles_nonfinite = True

FEW_QUERIES = 4
"""Most queries for which the few-queries kernels are used (few_queries in native/dispatch/dispatch.hpp)."""
ROWS_PER_TASK = 192
"""Number of queries that share one transposition of the keys."""
KEYS_PER_TASK = 256
"""Fewest keys per task: a backward pass is not divided further."""


def refusal(request: Request) -> str | None:
    """Return why this backend cannot serve a request, or None if it can."""
    if engine.module is None:
        return engine.reason
    if not (request.q.is_cpu or request.q.is_meta):
        return f"it supports only the CPU, not {request.device.type}"
    if request.q.dtype not in DTYPE_CODES:
        return f"it computes in float32, not in {str(request.q.dtype).removeprefix('torch.')}"
    return unsupported_feature(request)


def unsupported_feature(request: Request) -> str | None:
    """Return which feature of a request the kernels do not support, apart from device and dtype, or None."""
    if not (request.similarity.reduces_to_dot or isinstance(request.similarity, Additive)):
        return "it supports only dot products and additive scores, not callables"
    if request.hard or request.dropout_p:
        return "it has no hard weighting" if request.hard else "it has no dropout"
    if transformed():
        return "torch.func can transform only PyTorch's own operators"
    if isinstance(request.similarity, Additive) and torch.compiler.is_compiling():
        return "torch.compile can trace only its dot products"
    return unsupported_derivative(request) or (None if request.mask.open else _unsupported_mask(request))


def _unsupported_mask(request: Request) -> str | None:
    dense = request.mask.dense
    if dense is not None and dense.requires_grad and torch.is_grad_enabled():
        return "it does not compute the gradient of a float mask"
    for number, what in ((request.mask.offset, "causal_offset"), (request.mask.lengths, "lengths")):
        per_head = len(request.lead) > 1 or request.groups > 1
        # (..., H, Tq, 1); picked rows without a batch have (rows, 1)
        if isinstance(number, Tensor) and per_head and number.ndim > 2 and number.shape[-3] != 1:
            return f"it supports one number of {what} per batch entry, not one per head"
    return None


def context(request: Request) -> tuple[Tensor, Statistic | Tensor]:
    """Return the context of a reduced request, and the statistic of its rows (see `Statistic.unpack`)."""
    through_operator = _through_dispatcher(request) and isinstance(request.similarity, Dot)
    out, statistic = dot_through_operator(request) if through_operator else _eager(request)
    return (out, statistic) if request.value.dtype == torch.float32 else (out.to(request.value.dtype), statistic)


def _eager(request: Request) -> tuple[Tensor, Statistic | Tensor]:
    """Compute in float32. If the context is not finite, compute it again without non-finite masked numbers."""
    out, statistic, finite = _serve(request)
    if finite or request.mask.open:
        return out, statistic
    return serve_without_nonfinite(request, lambda clean: _serve(clean)[:2])  # type: ignore[return-value]  # these backends always return a statistic


def scores_as_viewed(request: Request) -> bool:
    """Return whether its scores are bit-identical to those of the views of a map (`native.views`).

    Both add the products of a pair in order, except the few-queries kernels, which add them per SIMD lane.
    """
    return isinstance(request.similarity, Additive) or request.queries > FEW_QUERIES


def _through_dispatcher(request: Request) -> bool:
    """Return whether a tracer, mode or tensor subclass must see a PyTorch operator instead of pointers."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    return not (type(request.q) in PLAIN and type(request.k) in PLAIN and type(request.v) in PLAIN)


def _serve(request: Request) -> tuple[Tensor, Statistic | Tensor, bool]:
    """Return the context, the statistic of its rows, and whether the context is finite."""
    plan = Plan.of(request)
    lead, finite = request.lead, True
    if isinstance(request.similarity, Additive):
        out, softmax, succeeded = _additive(request, plan)
        if not succeeded:  # |x| > 43 or not finite: rare, computed with tanh instead
            return *serve_without_nonfinite(request, blocked.context), True  # type: ignore[return-value]  # these backends always return a statistic
    else:
        q = unit_rows_by_head(request.q, request)  # (B, H, Tq, D)
        k, v = (
            unit_rows_by_head(request.k, request, request.groups),
            unit_rows_by_head(request.value, request, request.groups),
        )
        out, softmax, finite = attention(q, k, v, plan, request.mask, lead)
    if len(lead) == 2:
        return out, softmax, finite
    return out.reshape(*lead, *out.shape[-2:]), softmax.reshape(2, *lead, request.queries), finite


def _additive(request: Request, plan: Plan) -> tuple[Tensor, Tensor, bool]:
    """Return context, softmax (2, B, H, Tq), and whether the kernels succeeded."""
    assert isinstance(request.similarity, Additive)
    prepared = request.similarity.prepared
    prepared = prepared if prepared is not None and prepared.serves(request.k) else None
    q = unit_rows_by_head(widen(request.q), request)  # (B, H, Tq, D)
    k, v = (
        unit_rows_by_head(widen(x), request, request.groups) for x in (request.k, request.value)
    )  # (B, H / groups, Tk, ·)
    w = channel_weights(request, plan)
    if not _needs_gradient(q, k, v, w):
        return additive.forward(q, k, v, w, plan, prepared, keep=False)[:3]
    result: tuple[Tensor, Tensor, bool] = additive.AdditiveAttention.apply(  # type: ignore[no-untyped-call]  # torch declares no types
        q, k, v, w, plan, prepared, request.mask, request.lead
    )
    return result


def _needs_gradient(*tensors: Tensor) -> bool:
    """Return whether autograd must record the call."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def attention(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, mask: Mask, lead: tuple[int, ...]
) -> tuple[Tensor, Tensor, bool]:
    """Compute dot-product attention: context (…, H, Tq, Dv), softmax (2, …, H, Tq), and whether the context is finite.

    q, k and v are (B, H, T, ·), or (H, N, ·) if packed.
    """
    if _needs_gradient(q, k, v):
        result: tuple[Tensor, Tensor, bool] = _Dot.apply(q, k, v, plan, mask, lead)  # type: ignore[no-untyped-call]  # torch declares no types
        return result
    return _forward(q, k, v, plan)


def _forward(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor, bool]:
    *lead, heads, queries, width = q.shape
    heads_last = plan.layout is not None or heads_in_rows(
        q
    )  # the context has the memory layout of q, or of packed tokens
    out = q.new_empty(*lead, *((queries, heads) if heads_last else (heads, queries)), v.shape[-1], dtype=torch.float32)
    out = out.transpose(-3, -2) if heads_last else out
    softmax = q.new_empty(2, *lead, heads, queries, dtype=torch.float32)
    if not softmax.numel():
        return out, softmax, True
    threads, (_, longest, _) = torch.get_num_threads(), plan.counts(q, k)
    rows = plan.rows_per_task(longest, threads, ROWS_PER_TASK)
    problem = plan.problem(q, k, v, width)
    finite = kernels().dot_forward(problem, plan.lengths, view(out), rows_of(softmax), rows, threads)
    return out, softmax, finite


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan, mask: Mask, lead: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, bool]:
        out, softmax, finite = _forward(q, k, v, plan)
        ctx.plan, ctx.mask, ctx.lead = plan, mask, lead
        ctx.save_for_backward(q, k, v, out, softmax)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(softmax)
        return out, softmax, finite

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        q, k, v, out, softmax = ctx.saved_tensors
        if needs_operators(grad):
            plan, needed_grads = ctx.plan, ctx.needs_input_grad[:3]
            numbers = (Dot(plan.scale), ctx.mask, plan.softcap, plan.groups, ctx.lead)
            return *gradients_by_head((q, k, v), needed_grads, grad, *numbers, plan.layout), None, None, None
        dq, dk, dv, finite = _backward(ctx.plan, q, k, v, out, softmax, grad)
        if ctx.plan.masked and not finite:
            q, k, v = (torch.where(x.isfinite(), x, 0) for x in (q, k, v))  # masked, or its gradient is NaN in any case
            dq, dk, dv, _ = _backward(ctx.plan, q, k, v, out, softmax, grad)
        return dq, dk, dv, None, None, None


def _backward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, bool]:
    finite, grad, threads = True, unit_rows(grad), torch.get_num_threads()
    parts = plan.key_parts(plan.counts(q, k)[-1], threads, KEYS_PER_TASK)
    gradients = Gradients.allocate(plan, q, k, v, parts)
    if not grad.numel() or (plan.layout is not None and not plan.layout.queries.all()):
        gradients.zero()  # the kernel does not write gradients of keys without queries
    if grad.numel():
        forward_results = view(grad), view(out), rows_of(softmax)
        problem = plan.problem(q, k, v, q.shape[-1])
        finite = kernels().dot_backward(problem, plan.lengths, *forward_results, parts, gradients.arguments(), threads)
    return *gradients.finish(plan, q, k, v), finite


@torch.library.impl("regard::dot", "CPU")
@torch.no_grad()
def _dot(*plan: Any) -> tuple[Tensor, Tensor]:
    out, statistic = _eager(request_of(*plan))
    rows = statistic if isinstance(statistic, Tensor) else torch.stack((statistic.highest, statistic.total))
    return out.contiguous(), rows  # as `register_fake` declares


@torch.library.impl("regard::dot_backward", "CPU")
@torch.no_grad()
def _dot_backward(grad: Tensor, out: Tensor, softmax: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    request = request_of(*arguments)
    plan = Plan.of(request)
    q, k, v, out = (unit_rows(x) for x in (request.q, request.k, request.value, out))
    dq, dk, dv, finite = _backward(plan, q, k, v, out, softmax.contiguous(), grad)
    if finite or not plan.masked:
        return dq.contiguous(), dk.contiguous(), dv.contiguous()
    finite_request = FiniteRequest.of(request)  # like `serve_without_nonfinite` and its gradient in an eager call
    q, k, v = (unit_rows(x) for x in (finite_request.clean.q, finite_request.clean.k, finite_request.clean.value))
    out, softmax, _ = _forward(q, k, v, plan)
    dq, dk, dv, _ = _backward(plan, q, k, v, out, softmax, torch.where(finite_request.affected_queries(), 0, grad))
    dv = torch.where(request.value.isfinite(), dv, 0)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()  # replaced queries and keys have gradient 0
