"""The native backend: C++ kernels for the CPU, float32, forward and backward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import engine
from .isolate import isolated
from .masks import Mask, transformed
from .request import Request
from .similarity import Additive, Dot, Pairwise

name = "native"
isolates = True

OPEN = 2**40
"""A window's side that is open: farther than any sequence is long."""
ROWS_PER_TASK = 192
"""Queries that share one transposition of the keys."""
FEWEST_ROWS = 48
SMALLEST = 2**21
"""Multiplications of one matrix product below which `auto` leaves a request to SDPA."""


def refusal(request: Request) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if engine.module is None:
        return engine.reason
    if request.device.type not in ("cpu", "meta"):
        return f"it is for the CPU, not for {request.device.type}"
    if request.q.dtype != torch.float32:
        return f"it computes in float32, not in {str(request.q.dtype).removeprefix('torch.')}"
    if isinstance(request.similarity, Additive | Pairwise):
        return "it compares by dot products only"
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
    return request.entries * request.queries * request.keys * request.q.shape[-1] >= SMALLEST


def context(request: Request) -> tuple[Tensor, Tensor]:
    """The context and each row's log-sum-exp.

    A masked key or value that is not finite shows as a context that is not: then, and only then, it is taken out.
    """
    found, lse = _serve(request)
    if request.mask.open or bool(found.detach().sum().isfinite()):
        return found, lse
    return isolated(request, _serve)  # type: ignore[return-value]


def _serve(request: Request) -> tuple[Tensor, Tensor]:
    request = request.reduced()
    assert isinstance(request.similarity, Dot)
    plan = _Plan.of(request)
    shared = (*request.lead[:-1], request.lead[-1] // request.groups) if request.groups > 1 else request.lead
    q = _four(request.q, request.lead, plan)  # (B, H, Tq, D)
    k, v = (_four(x, shared, plan) for x in (request.k, request.value))  # (B, H / groups, Tk, ·)
    found, lse = _Dot.apply(q, k, v, plan)
    return found.reshape(*request.lead, *found.shape[-2:]), lse.reshape(*request.lead, request.queries)


def _kernels() -> Any:
    assert engine.module is not None, "refusal comes first"
    return engine.module


def _four(x: Tensor, lead: tuple[int, ...], plan: _Plan) -> Tensor:
    """Free leading dimensions as (batch, heads), the last dimension with unit stride."""
    if len(lead) != 2 or x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
        heads = math.prod(lead) // plan.batches if plan.batches else 0
        x = x.reshape(plan.batches, heads, *x.shape[-2:])
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@dataclass(frozen=True)
class _Plan:
    """What the kernel is told besides q, k and v."""

    batches: int
    heads: int
    groups: int
    scale: float
    softcap: float
    mask: tuple[int, ...] | None
    held: tuple[Tensor, ...]
    """Tensors that the numbers of the mask point into."""
    masked: bool

    @classmethod
    def of(cls, request: Request) -> _Plan:
        lead = request.lead
        alone = len(lead) == 1 and request.groups == 1  # a batch without heads: lengths and offsets count its entries
        batches = lead[0] if alone else math.prod(lead[:-1])
        heads = 1 if alone or not lead else lead[-1]
        assert isinstance(request.similarity, Dot)
        mask, held = _mask_numbers(request, batches, heads)
        softcap = 0.0 if request.softcap is None else request.softcap
        scale = request.similarity.scale
        return cls(batches, heads, request.groups, scale, softcap, mask, held, not request.mask.open)

    def arguments(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
        sizes = (self.batches, self.heads, self.groups, q.shape[2], k.shape[2], q.shape[3], v.shape[3])
        return sizes, _view(q), _view(k), _view(v), (self.scale, self.softcap), self.mask

    def rows_per_task(self, queries: int, threads: int) -> int:
        """As many as share a transposition, but fewer where some threads would get nothing."""
        wanted = -(-4 * threads // max(1, self.batches * self.heads))  # parts of each head
        even = -(-queries // max(wanted, -(-queries // ROWS_PER_TASK)))
        return max(1, min(queries, max(even, FEWEST_ROWS)))


def _view(x: Tensor) -> tuple[int, int, int, int]:
    return x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)


def _mask_numbers(request: Request, batches: int, heads: int) -> tuple[tuple[int, ...] | None, tuple[Tensor, ...]]:
    mask = request.mask
    if mask.open:
        return None, ()
    held: list[Tensor] = []

    def pointer(number: int | Tensor) -> int:
        held.append(_per_batch(number, request, batches))
        return held[-1].data_ptr()

    left = OPEN if mask.left is None else mask.left
    right = OPEN if mask.right is None else mask.right
    offset = pointer(mask.offset) if isinstance(mask.offset, Tensor) or mask.offset else 0
    length = 0 if mask.lengths is None else pointer(mask.lengths)
    if mask.dense is None:
        return (left, right, offset, length, 0, 0, 0, 0, 0, 0), tuple(held)
    dense, kind = _dense(mask, request, batches, heads)
    held.append(dense)
    return (left, right, offset, length, kind, dense.data_ptr(), *dense.stride()), tuple(held)


def _per_batch(number: int | Tensor, request: Request, batches: int) -> Tensor:
    """One int64 per batch entry."""
    if isinstance(number, int):
        return torch.full((batches,), number)
    inner = request.lead if batches == math.prod(request.lead) else request.lead[:-1]
    lead = number.reshape(number.shape[: len(request.lead)])  # without the dimensions of rows and columns
    lead = lead.expand(*request.lead) if len(inner) == len(request.lead) else lead[..., 0].expand(*inner)
    return lead.reshape(batches).to(torch.int64).contiguous()


def _dense(mask: Mask, request: Request, batches: int, heads: int) -> tuple[Tensor, int]:
    """The dense part (B, H, Tq, Tk), broadcast by strides, and its kind: 1 boolean, 2 added."""
    assert mask.dense is not None
    dense = mask.dense.detach()
    dense, kind = (dense.view(torch.uint8), 1) if dense.dtype == torch.bool else (dense.to(torch.float32), 2)
    dense = dense.expand(*request.lead, request.queries, request.keys)
    return dense.reshape(batches, heads, request.queries, request.keys), kind


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> tuple[Tensor, Tensor]:
        found = q.new_empty(*q.shape[:-1], v.shape[-1])  # (B, H, Tq, Dv)
        lse = q.new_empty(q.shape[:-1])  # (B, H, Tq)
        threads = torch.get_num_threads()
        if found.numel() or lse.numel():
            rows = plan.rows_per_task(q.shape[2], threads)
            _kernels().dot_forward(*plan.arguments(q, k, v), found.data_ptr(), lse.data_ptr(), rows, threads)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, found, lse)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(lse)
        return found, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only under create_graph=True
            raise RuntimeError(
                "attend: backend (native) has first derivatives only; got create_graph=True. "
                "Try backend='reference' for second ones."
            )
        if grad is None:
            return None, None, None, None
        q, k, v, found, lse = ctx.saved_tensors
        grads = _backward(ctx.plan, q, k, v, found, lse, grad)
        if ctx.plan.masked and not all(bool(x.sum().isfinite()) for x in grads):
            q, k, v = (torch.where(x.isfinite(), x, 0) for x in (q, k, v))  # masked out, or lost in any case
            grads = _backward(ctx.plan, q, k, v, found, lse, grad)
        return *grads, None


def _backward(
    plan: _Plan, q: Tensor, k: Tensor, v: Tensor, found: Tensor, lse: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    heads = q.shape[:2]
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = (x.new_empty(*heads, *x.shape[2:]) for x in (k, v))  # one per query head
    if grad.numel():
        _kernels().dot_backward(
            *plan.arguments(q, k, v),
            _view(grad),
            _view(found),
            lse.data_ptr(),
            dq.data_ptr(),
            dk.data_ptr(),
            dv.data_ptr(),
            torch.get_num_threads(),
        )
    else:
        dq, dk, dv = dq.zero_(), dk.zero_(), dv.zero_()
    if plan.groups > 1:
        dk, dv = (x.unflatten(1, (-1, plan.groups)).sum(2) for x in (dk, dv))  # (B, H / groups, Tk, ·)
    return dq, dk, dv
