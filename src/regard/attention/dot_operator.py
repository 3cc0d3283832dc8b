"""Native dot-product attention as custom operators: `regard::dot` and `regard::dot_backward`.

torch.compile, torch.export and other tracers see one operator with its shapes and its gradient, instead of Python code
that reads pointers. An eager call bypasses it: the dispatcher costs twice the Python time of the direct
`autograd.Function` of `native`, and four times that of a call without gradients (`docs/performance.md`).

The arguments use the types of an operator schema: heads as (B, H, T, D), the mask as numbers and tensors. The operator
itself checks whether results are finite, so that nothing here depends on the values of tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .derivatives import differentiable_gradients, needs_operators
from .masks import Mask
from .request import Request, by_head, entries, mask_by_head, per_batch
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


def dot_through_operator(request: Request) -> tuple[Tensor, Tensor]:
    """Compute context and softmax (2, *lead, Tq) of a `Dot` request through the operator, in float32."""
    mask, lead = request.mask, request.lead
    batches, _ = entries(request)
    q = by_head(request.q, request)  # (B, H, Tq, D)
    k, v = (by_head(x, request, request.groups) for x in (request.k, request.value))  # (B, H / groups, Tk, ·)
    dense = None if mask.dense is None else mask_by_head(mask.dense, request)
    offset = per_batch(mask.offset, request, batches) if isinstance(mask.offset, Tensor) or mask.offset else None
    lengths = None if mask.lengths is None else per_batch(mask.lengths, request, batches)
    context, softmax = torch.ops.regard.dot.default(q, k, v, dense, offset, lengths, *numbers_of(request))
    if len(lead) == 2:
        return context, softmax
    return context.reshape(*lead, *context.shape[-2:]), softmax.reshape(2, *lead, request.queries)


def numbers_of(request: Request) -> tuple[int | None, int | None, int, float, float | None]:
    """Return the non-tensor arguments of an operator, in the order of `request_of`."""
    assert isinstance(request.similarity, Dot)
    mask = request.mask
    return mask.left, mask.right, request.groups, request.similarity.scale, request.softcap


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
    """Return the request for the arguments of an operator. The kernels clamp lengths to the number of keys."""
    leads = ((*x.shape[:-3], x.shape[-3] * share) for x, share in ((q, 1), (k, groups), (v, groups)))
    lead, by_entry = tuple(torch.broadcast_shapes(*leads)), (-1, 1, 1, 1)
    first = 0 if offset is None else offset.reshape(by_entry)
    mask = Mask(dense, left, right, first, None if lengths is None else lengths.reshape(by_entry))
    return Request.of_parts(q, k, v, Dot(scale), lead=lead, mask=mask, softcap=softcap, groups=groups)


@torch.library.register_fake("regard::dot")  # type: ignore[untyped-decorator]  # torch's decorator has no types
def _(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, Tensor]:
    wide = torch.float32
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=wide), q.new_empty(2, *q.shape[:-1], dtype=wide)


@torch.library.register_fake("regard::dot_backward")  # type: ignore[untyped-decorator]  # torch's decorator has no types
def _(
    grad: Tensor, context: Tensor, softmax: Tensor, q: Tensor, k: Tensor, v: Tensor, *plan: Any
) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    context, softmax = output
    q, k, v, dense, offset, lengths, *ctx.numbers = inputs
    ctx.save_for_backward(context, softmax, q, k, v, dense, offset, lengths)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(softmax)


def _backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 11
    if needs_operators(grad):
        request = request_of(*ctx.saved_tensors[2:], *ctx.numbers)
        *gradients, _ = differentiable_gradients(request, (*ctx.needs_input_grad[:3], False), grad)
        return *gradients, *(None,) * 8
    gradients = torch.ops.regard.dot_backward.default(grad, *ctx.saved_tensors, *ctx.numbers)
    return *gradients, *(None,) * 8


def _no_second_derivative(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError(
        "attend: backend (native) has first derivatives only; got create_graph=True. "
        "Try backend='reference' for second ones."
    )


torch.library.register_autograd("regard::dot", _backward, setup_context=_setup_context)
torch.library.register_autograd("regard::dot_backward", _no_second_derivative)
