"""The native dot products as operators of torch: `regard::dot` and `regard::dot_backward`.

torch.compile, torch.export and whatever else traces see one operator with its shapes and its gradient, instead of
Python that reads pointers. An eager call goes around it: through the dispatcher it costs twice the Python of the direct
`autograd.Function` of `native`, and four times that of a call without gradients (`docs/performance.md`).

What the kernels are told is spelled in the types of a schema: heads as (B, H, T, D), the mask as numbers and tensors.
Whether a result is finite, and what follows from it, is decided inside: nothing here depends on the numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .derivatives import differentiable_gradients
from .masks import Mask
from .request import Request, entries, per_batch
from .similarity import Dot

_PLAN = (
    "Tensor q, Tensor k, Tensor v, Tensor? dense, Tensor? offset, Tensor? lengths, SymInt? left, SymInt? right, "
    "SymInt groups, float scale, float? softcap"
)
torch.library.define("regard::dot", f"({_PLAN}) -> (Tensor context, Tensor softmax)")
torch.library.define(
    "regard::dot_backward",
    f"(Tensor grad, Tensor context, Tensor softmax, {_PLAN}) -> (Tensor dq, Tensor dk, Tensor dv)",
)


def traced(request: Request) -> tuple[Tensor, Tensor]:
    """Context and softmax (2, *lead, Tq) of a request by the operator, in float32; its similarity is `Dot`."""
    assert isinstance(request.similarity, Dot)
    mask, lead = request.mask, request.lead
    batches, heads = entries(request)
    q = _four(request.q, lead, batches, heads)  # (B, H, Tq, D)
    shared = (*lead[:-1], lead[-1] // request.groups) if request.groups > 1 else lead
    k, v = (_four(x, shared, batches, heads // request.groups) for x in (request.k, request.value))
    dense = None if mask.dense is None else _four_or_broadcast(mask.dense, request, batches, heads)
    offset = per_batch(mask.offset, request, batches) if isinstance(mask.offset, Tensor) or mask.offset else None
    lengths = None if mask.lengths is None else per_batch(mask.lengths, request, batches)
    context, softmax = torch.ops.regard.dot.default(
        q,
        k,
        v,
        dense,
        offset,
        lengths,
        mask.left,
        mask.right,
        request.groups,
        request.similarity.scale,
        request.softcap,
    )
    if len(lead) == 2:
        return context, softmax
    return context.reshape(*lead, *context.shape[-2:]), softmax.reshape(2, *lead, request.queries)


def request_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dense: Tensor | None,
    offset: Tensor | None,
    lengths: Tensor | None,
    left: int | None,
    right: int | None,
    groups: int,
    scale: float,
    softcap: float | None,
) -> Request:
    """The request that the arguments of the operator spell. Lengths were not read: the kernels cut them to the keys."""
    mask = Mask(
        dense,
        left,
        right,
        0 if offset is None else offset.reshape(-1, 1, 1, 1),
        None if lengths is None else lengths.reshape(-1, 1, 1, 1),
    )
    return Request.of_parts(q, k, v, Dot(scale), lead=tuple(q.shape[:2]), mask=mask, softcap=softcap, groups=groups)


def _four(x: Tensor, lead: tuple[int, ...], batches: int, heads: int) -> Tensor:
    if x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
    return x if len(lead) == 2 else x.reshape(batches, heads, *x.shape[-2:])


def _four_or_broadcast(dense: Tensor, request: Request, batches: int, heads: int) -> Tensor:
    """A mask that broadcasts to (B, H, Tq, Tk)."""
    if len(request.lead) == 2 or dense.ndim == 2:
        return dense[(None,) * (4 - dense.ndim)]
    return _four(dense, request.lead, batches, heads)


@torch.library.register_fake("regard::dot")
def _(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, Tensor]:
    wide = torch.float32
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=wide), q.new_empty(2, *q.shape[:-1], dtype=wide)


@torch.library.register_fake("regard::dot_backward")
def _(
    grad: Tensor, context: Tensor, softmax: Tensor, q: Tensor, k: Tensor, v: Tensor, *plan: Any
) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    context, softmax = output
    q, k, v, dense, offset, lengths, *ctx.numbers = inputs
    ctx.save_for_backward(context, softmax, q, k, v, dense, offset, lengths)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(softmax)


def _differentiate(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 11
    if torch.is_grad_enabled():  # only under create_graph=True
        request = request_of(*ctx.saved_tensors[2:], *ctx.numbers)
        *gradients, _ = differentiable_gradients(request, (*ctx.needs_input_grad[:3], False), grad)
        return *gradients, *(None,) * 8
    gradients = torch.ops.regard.dot_backward.default(grad, *ctx.saved_tensors, *ctx.numbers)
    return *gradients, *(None,) * 8


def _refuse(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError(
        "attend: backend (native) has first derivatives only; got create_graph=True. "
        "Try backend='reference' for second ones."
    )


torch.library.register_autograd("regard::dot", _differentiate, setup_context=_keep)
torch.library.register_autograd("regard::dot_backward", _refuse)
