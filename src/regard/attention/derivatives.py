"""Derivatives beyond the first in reverse mode. The fused kernels have none of them; `reference` has them all.

Forward mode (`torch.func.jvp`, `torch.autograd.forward_ad`) and nested transformations (`torch.func.hessian`) are known
when attention is called: `unserved` names them, the other backends refuse, and `auto` takes `reference`.

A second derivative in reverse mode is known in the backward pass only: there grad mode is enabled under
`create_graph=True`. The gradients are then computed through `reference` (`differentiable_gradients`), as a graph that
has derivatives of any order. It stores all weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..core.tensors import transformed
from . import reference
from .masks import Mask
from .nonfinite import isolated
from .packed_layout import Layout, pad, padded, positions, unpad
from .request import Request, shared_lead
from .similarity import Similarity, reachable_leaves


def unserved(request: Request) -> str | None:
    """Why a backend with first derivatives in reverse mode alone cannot serve a request; None when it can."""
    if transformed():
        return _unserved_transformation(request.tensors)
    if forward_ad._current_level < 0:
        return None
    dual = any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in request.tensors)
    return "it has no forward-mode derivatives" if dual else None


def _unserved_transformation(tensors: Sequence[Tensor | None]) -> str | None:
    functorch = torch._C._functorch
    if torch.compiler.is_compiling():  # the stack below cannot be read while tracing
        return "it has first derivatives only, and torch.func may ask for others"
    kinds = [level.key() for level in functorch.get_interpreter_stack() or ()]
    if functorch.TransformType.Jvp in kinds:
        return "it has no forward-mode derivatives"
    gradients = kinds.count(functorch.TransformType.Grad)
    again = gradients and any(x is not None and _unwrapped(x).requires_grad for x in tensors)
    return "it has first derivatives only" if gradients > 1 or again else None


def _unwrapped(x: Tensor) -> Tensor:
    """The tensor outside all transformations of torch.func."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def differentiable_gradients(
    request: Request, wanted: Sequence[bool], grad: Tensor, kept: Tensor | None = None
) -> list[Tensor | None]:
    """The gradients of `request.tensors`, one for each that is wanted, themselves differentiable.

    `grad` is the gradient of the context; `kept` what dropout multiplied the weights by.

    Raises:
        RuntimeError: if queries, keys or values depend on the parameters of a callable similarity. The graph of the
            gradients could not be told from the graph that made them.
    """
    own = 4 if not request.separable else len(request.tensors)  # a callable reads its own parameters, not copies
    _require_separate_graphs(request)
    with torch.enable_grad():
        # a view of each input, so that no input is part of the graph of another
        inputs = [
            x.view_as(x) if x is not None and want and i < own else x
            for i, (x, want) in enumerate(zip(request.tensors, wanted, strict=True))
        ]
        context, _ = isolated(request.with_tensors(inputs), lambda clean: reference.context(clean, kept))
        chosen = [x for x, want in zip(inputs, wanted, strict=True) if x is not None and want]
        if not context.requires_grad:
            return [None] * len(inputs)
        gradients = iter(
            torch.autograd.grad(context, chosen, grad.to(context.dtype), create_graph=True, allow_unused=True)
        )
    return [next(gradients) if x is not None and want else None for x, want in zip(inputs, wanted, strict=True)]


def _require_separate_graphs(request: Request) -> None:
    if request.separable or not request.similarity.parameters:
        return
    parameters = {id(p) for p in request.similarity.parameters}
    for x in request.tensors[:4]:
        if x is not None and any(id(leaf) in parameters for leaf in reachable_leaves(x)):
            raise RuntimeError(
                "attend: create_graph=True must not meet a callable similarity whose parameters also produce query, "
                "key, value or attn_mask, unless backend is 'reference'. Try backend='reference'."
            )


def gradients_by_head(
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    grad: Tensor,
    similarity: Similarity,
    mask: Mask,
    softcap: float,
    groups: int,
    lead: tuple[int, ...],
    layout: Layout | None = None,
) -> list[Tensor | None]:
    """The same for the tensors of a kernel: q (B, H, Tq, D), k, v (B, H / groups, Tk, ·), parameters (B, H, ·).

    They are reshaped to the leading dimensions of the mask; a softcap of 0 is none. Packed: (H, N, ·) each.
    """
    shared = shared_lead(lead, groups)
    q, k, v, *parameters = tensors
    request = Request.of_parts(
        q.reshape(*lead, *q.shape[-2:]),
        k.reshape(*shared, *k.shape[-2:]),
        v.reshape(*shared, *v.shape[-2:]),
        similarity.with_parameters(tuple(p.reshape(*lead, *p.shape[2:]) for p in parameters)),
        lead=lead,
        mask=mask,
        softcap=softcap or None,
        groups=groups,
    )
    if layout is not None:
        return gradients_of_packed(request, layout, wanted, grad)
    of_dense = (*wanted[:3], False, *wanted[3:])
    q_grad, k_grad, v_grad, _, *others = differentiable_gradients(
        request, of_dense, grad.reshape(*lead, *grad.shape[2:])
    )
    found = (q_grad, k_grad, v_grad, *others)
    return [None if g is None else g.reshape(x.shape) for g, x in zip(found, tensors, strict=True)]


def gradients_of_packed(request: Request, layout: Layout, wanted: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
    """The same for the q, k and v of packed sequences, (H, N, ·) each, by way of a padded batch.

    `grad` is the gradient of the context, (H, Nq, Dv). The similarity has no parameters.
    """
    at_queries, at_keys = positions(request, layout)
    with torch.enable_grad():
        batch = padded(request, layout)
        grad = pad(grad, at_queries, layout.sequences, layout.most_queries)  # (B, H, Tq, Dv)
        gradients = differentiable_gradients(batch, (*wanted, False), grad)[:3]
        return [
            None if g is None else unpad(g, at).transpose(0, 1)  # (B, H, T, ·) → (H, N, ·)
            for g, at in zip(gradients, (at_queries, at_keys, at_keys), strict=True)
        ]


class Rerouted(torch.autograd.Function):
    """Passes a context on whose own graph has first derivatives only.

    In a plain backward pass the gradient goes to that graph. Under create_graph=True it goes around it, straight to
    query, key, value and mask.
    """

    @staticmethod
    def forward(
        ctx: Any, context: Tensor, q: Tensor, k: Tensor, v: Tensor, dense: Tensor | None, rest: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, dense)
        ctx.rest = rest
        ctx.set_materialize_grads(False)
        return context

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None or not torch.is_grad_enabled():
            return grad, *(None,) * 5
        q, k, v, dense = ctx.saved_tensors
        similarity, mask, softcap, groups, lead = ctx.rest
        mask = replace(mask, dense=dense)
        request = Request.of_parts(q, k, v, similarity, lead=lead, mask=mask, softcap=softcap, groups=groups)
        return None, *differentiable_gradients(request, ctx.needs_input_grad[1:5], grad), None


def rerouted(context: Tensor, request: Request) -> Tensor:
    """The context of a dot-product request with derivatives of any order, if its own graph may have the first alone."""
    if not context.requires_grad or torch.compiler.is_compiling() or transformed():
        return context
    rest = (request.similarity, request.mask, request.softcap, request.groups, request.lead)
    result: Tensor = Rerouted.apply(context, *request.tensors, rest)
    return result
