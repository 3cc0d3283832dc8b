"""Packed dot-product attention as custom operators: `regard::packed` and `regard::packed_backward`.

The lengths of sequences are values of a tensor, which tracing cannot read. So torch.compile sees one operator whose
shapes do not depend on them; the operator reads them at run time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .derivatives import gradients_of_packed, needs_operators
from .dot_operator import numbers_of, request_of
from .packed_layout import layout_of
from .request import Request
from .similarity import Dot

_PLAN = (
    "Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor key_lengths, SymInt? left, SymInt? right, SymInt groups, "
    "float scale, float? softcap, str backend, Tensor? causal_offset=None"
)
"""The last argument has a default, because programs exported before it was added call the operator without it."""
torch.library.define("regard::packed", f"({_PLAN}) -> Tensor")
torch.library.define("regard::packed_backward", f"(Tensor grad, {_PLAN}) -> (Tensor dq, Tensor dk, Tensor dv)")


def traceable(request: Request) -> bool:
    """Return whether the operator supports the request: a dot product, soft weights, no dropout."""
    return isinstance(request.similarity, Dot) and not request.hard and not request.dropout_p


def packed_through_operator(
    request: Request, lengths: Tensor, key_lengths: Tensor, backend: str, causal_offset: Tensor | None = None
) -> Tensor:
    """Compute the context (Nq, H, Dv) of a `traceable` request (H, N, ·). Lengths and offsets are (B,)."""
    tensors = request.q, request.k, request.value, lengths, key_lengths
    result: Tensor = torch.ops.regard.packed.default(*tensors, *numbers_of(request), backend, causal_offset)
    return result


@torch.library.register_fake("regard::packed")  # type: ignore[untyped-decorator]  # torch's decorator has no types
def _(q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> Tensor:
    return v.new_empty(q.shape[1], max(q.shape[0], k.shape[0], v.shape[0]), v.shape[-1])


@torch.library.register_fake("regard::packed_backward")  # type: ignore[untyped-decorator]  # torch's decorator has no types
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, left, right, groups, scale, softcap, backend, causal_offset = inputs
    ctx.save_for_backward(*tensors, causal_offset)
    ctx.numbers = left, right, groups, scale, softcap, backend


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, causal_offset = ctx.saved_tensors
    if needs_operators(grad):
        q, k, v, lengths, key_lengths = tensors
        layout = layout_of(q.transpose(0, 1), k.transpose(0, 1), lengths, key_lengths, causal_offset)
        request = request_of(q, k, v, None, None, None, *ctx.numbers[:-1])
        return *gradients_of_packed(request, layout, ctx.needs_input_grad[:3], grad.transpose(0, 1)), *(None,) * 9
    gradients = torch.ops.regard.packed_backward.default(grad, *tensors, *ctx.numbers, causal_offset)
    return *gradients, *(None,) * 9


torch.library.register_autograd("regard::packed", _backward, setup_context=_setup_context)
