"""Derivatives other than first-order reverse mode. The fused kernels have none of them; `reference` has all.

Forward mode (`torch.func.jvp`, `torch.autograd.forward_ad`) and nested transformations (`torch.func.hessian`) can be
detected when attention is called: `unsupported_derivative` names them, the other backends refuse, and `auto` selects
`reference`.

A second derivative in reverse mode can be detected only in the backward pass, where grad mode is enabled under
`create_graph=True`. The gradients are then computed through `reference` (`differentiable_gradients`), whose graph has
derivatives of any order. It stores all weights. A batch of gradients for one context (`is_grads_batched=True`, or
`torch.vmap` of `torch.autograd.grad`) is detected in the backward pass, too, and takes the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..core.tensors import batched, transformed
from . import reference
from .masks import Mask
from .nonfinite import serve_without_nonfinite
from .packed_layout import Layout, pad, padded, positions, unpad
from .request import Request, shared_lead
from .similarity import Similarity, reachable_leaves


def unsupported_derivative(request: Request) -> str | None:
    """Return why a backend with only first-order reverse-mode derivatives cannot serve a request, or None if it can."""
    if transformed():
        return _unsupported_transformation(request.tensors)
    if forward_ad._current_level < 0:
        return None
    dual = any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in request.tensors)
    return "it has no forward-mode derivatives" if dual else None


def _unsupported_transformation(tensors: Sequence[Tensor | None]) -> str | None:
    functorch = torch._C._functorch
    if torch.compiler.is_compiling():  # the stack below cannot be read while tracing
        return "it has only first derivatives, and torch.func may request others"
    kinds = [level.key() for level in functorch.get_interpreter_stack() or ()]
    if functorch.TransformType.Jvp in kinds:
        return "it has no forward-mode derivatives"
    gradients = kinds.count(functorch.TransformType.Grad)
    differentiated = gradients and any(x is not None and unwrapped(x).requires_grad for x in tensors)
    return "it has first derivatives only" if gradients > 1 or differentiated else None


def unwrapped(x: Tensor) -> Tensor:
    """Return the tensor without the wrappers of torch.func transformations."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def needs_operators(*grads: Tensor) -> bool:
    """Return whether a backward pass must consist of PyTorch operators.

    This is the case under create_graph=True, and for a batch of gradients, whose memory kernels cannot read.
    """
    return torch.is_grad_enabled() or any(map(batched, grads))


def differentiable_gradients(
    request: Request, needed_grads: Sequence[bool], grad: Tensor, dropout_factors: Tensor | None = None
) -> list[Tensor | None]:
    """Return gradients of those `request.tensors` that need one, and None for the others.

    They are differentiable if gradients are enabled. `grad` is the gradient of the context; `dropout_factors` multiply
    the weights.

    Raises:
        RuntimeError: if queries, keys or values depend on the parameters of a callable similarity. The graph of the
            gradients could not be separated from the graph that computed them.
    """
    copied = 4 if not request.separable else len(request.tensors)  # a callable reads its own parameters, not copies
    differentiable = torch.is_grad_enabled()
    if differentiable:
        _require_separate_graphs(request)
    with torch.enable_grad():
        # a view of each input, so that no input is part of the graph of another
        inputs = [
            x.view_as(x) if x is not None and needed and i < copied else x
            for i, (x, needed) in enumerate(zip(request.tensors, needed_grads, strict=True))
        ]
        context, _ = serve_without_nonfinite(
            request.with_tensors(inputs), lambda clean: reference.context(clean, dropout_factors)
        )
        chosen = [x for x, needed in zip(inputs, needed_grads, strict=True) if x is not None and needed]
        if not context.requires_grad:
            return [None] * len(inputs)
        gradients = iter(
            torch.autograd.grad(context, chosen, grad.to(context.dtype), create_graph=differentiable, allow_unused=True)
        )
    return [
        next(gradients) if x is not None and needed else None for x, needed in zip(inputs, needed_grads, strict=True)
    ]


def _require_separate_graphs(request: Request) -> None:
    if request.separable or not request.similarity.parameters:
        return
    parameters = {id(p) for p in request.similarity.parameters}
    for x in request.tensors[:4]:
        if x is not None and any(id(leaf) in parameters for leaf in reachable_leaves(x)):
            raise RuntimeError(
                "attend: create_graph=True does not support a callable similarity whose parameters also produce query, "
                "key, value or attn_mask, unless backend is 'reference'. Try backend='reference'."
            )


def gradients_by_head(
    tensors: Sequence[Tensor],
    needed_grads: Sequence[bool],
    grad: Tensor,
    similarity: Similarity,
    mask: Mask,
    softcap: float,
    groups: int,
    lead: tuple[int, ...],
    layout: Layout | None = None,
) -> list[Tensor | None]:
    """Return differentiable gradients of the tensors of a kernel.

    They are q (B, H, Tq, D), k and v (B, H / groups, Tk, ·), and parameters (B, H, ·); packed, (H, N, ·) each. They are
    reshaped to the leading dimensions of the mask. A softcap of 0 means none.
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
        return gradients_of_packed(request, layout, needed_grads, grad)
    with_mask = (*needed_grads[:3], False, *needed_grads[3:])
    q_grad, k_grad, v_grad, _, *others = differentiable_gradients(
        request, with_mask, grad.reshape(*lead, *grad.shape[2:])
    )
    gradients = (q_grad, k_grad, v_grad, *others)
    return [None if g is None else g.reshape(x.shape) for g, x in zip(gradients, tensors, strict=True)]


def gradients_of_packed(
    request: Request, layout: Layout, needed_grads: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return differentiable gradients of q, k and v of packed sequences, (H, N, ·) each, through a padded batch.

    `grad` is the gradient of the context, (H, Nq, Dv). The similarity has no parameters.
    """
    query_index, key_index = positions(request, layout)
    with torch.enable_grad():  # a backward pass without create_graph=True disables it
        batch = padded(request, layout)
    grad = pad(grad, query_index, layout.sequences, layout.most_queries)  # (B, H, Tq, Dv)
    gradients = differentiable_gradients(batch, (*needed_grads, False), grad)[:3]
    return [
        None if g is None else unpad(g, index).transpose(0, 1)  # (B, H, T, ·) → (H, N, ·)
        for g, index in zip(gradients, (query_index, key_index, key_index), strict=True)
    ]


class HigherOrder(torch.autograd.Function):
    """Identity for a context whose own graph has only first derivatives.

    A plain backward pass uses that graph, also for a batch of gradients. Under create_graph=True the gradients of
    query, key, value and mask come from `differentiable_gradients` instead.
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


def with_higher_order(context: Tensor, request: Request) -> Tensor:
    """Return the context of a dot-product request with derivatives of any order instead of only the first."""
    if not context.requires_grad or torch.compiler.is_compiling() or transformed():
        return context
    rest = (request.similarity, request.mask, request.softcap, request.groups, request.lead)
    result: Tensor = HigherOrder.apply(context, *request.tensors, rest)  # type: ignore[no-untyped-call]  # torch declares no types
    return result
