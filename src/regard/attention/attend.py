"""The operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..core.tensors import autocast_dtype
from .attention_map import AttentionMap
from .backends import Backend, choose
from .native import backend as native
from .nonfinite import isolated
from .request import Request, Weighting, outside_autocast
from .statistic import Statistic
from .tensor_types import is_causal_bias


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    similarity: Any = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    causal_offset: int | Tensor | Sequence[int] = 0,
    lengths: int | Tensor | Sequence[int] | None = None,
    return_map: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention: compare queries with keys, weigh, and sum the values.

        scores  = softcap(similarity(query, key))           (*lead, Tq, Tk), never stored
        weights = weighting(scores + mask)                  (*lead, Tq, Tk), never stored
        context = dropout(weights) · value                  (*lead, Tq, Dv)

    The positional arguments are those of `torch.nn.functional.scaled_dot_product_attention`: a drop-in replacement.

    Args:
        query: (*lead, Tq, D); the leading dimensions are free (none, B, B×H, …) and broadcast as SDPA's do.
        key: (*lead, Tk, D).
        value: (*lead, Tk, Dv).
        attn_mask: boolean (True = may attend) or float (added to the scores), broadcasting to (*lead, Tq, Tk), or a
            `torch.nn.attention.bias.CausalBias`. Other polarities: `regard.masks`.
        dropout_p: share of weights dropped, whenever it is not 0.
        is_causal: query i, at position i + causal_offset, attends to no key after it. Joins any other mask.
        scale: multiplies dot, cosine and bilinear scores; default 1/√D for scaled_dot, 1 otherwise.
        enable_gqa: query heads (dimension −3) may be a multiple of key and value heads.
        similarity: "dot", "scaled_dot", "cosine", `Bilinear(W)`, `Additive(w)`, or a callable
            f(q_block, k_block) → scores that treats pairs independently.
        weighting: "softmax" (soft); "hard": the best key alone, ties go to the first, and the gradient is that of the
            soft weights (straight-through: biased, but a gradient); "uniform": the mean, the query ignored.
        softcap: scores ← softcap · tanh(scores / softcap), before the mask.
        window: (left, right): keys from position − left to position + right; None for an open side.
        causal_offset: a number, or one per batch entry: 0 aligns upper left, as SDPA does, Tk − Tq lower right.
        lengths: number of valid keys, or one per batch entry; keys beyond it cost nothing.
        return_map: also return an `AttentionMap`: the weights, computed where they are looked at.
        backend: "auto", "native", "torch", "blocked" or "reference".

    Returns:
        The context, or (context, map). A query that may attend to nothing gets zeros. What is masked out may hold NaN
        or ∞ without effect.

    Raises:
        ValueError: with the value and the remedy.

    >>> import regard, torch
    >>> desk = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]])   # book, cup, paper
    >>> wish = torch.tensor([[8.0, 0.0]])                           # to read
    >>> context, m = regard.attend(wish, desk, desk, return_map=True)
    >>> [[f"{w:.2f}" for w in row] for row in m.dense().tolist()]
    [['0.64', '0.00', '0.36']]
    """
    options = {
        "similarity": similarity,
        "weighting": weighting,
        "softcap": softcap,
        "window": window,
        "causal_offset": causal_offset,
        "lengths": lengths,
    }
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    # a CausalBias knows SDPA alone: asked about another function, it would pass its own type on to the result
    overriding = (query, key, value, None if is_causal_bias(attn_mask) else attn_mask)
    if has_torch_function_variadic(*overriding):  # a subclass, or a mode such as that of `regard.watch`
        options.update(return_map=return_map, backend=backend)
        return handle_torch_function(attend, overriding, *given, **options)
    request = Request.of(*given, **options)
    chosen = choose(request, backend).backend
    if autocast_dtype(request.device) is None:
        return serve(request, chosen, return_map)
    with outside_autocast(request):
        return serve(request, chosen, return_map)


def serve(request: Request, backend: Backend, return_map: bool) -> Any:
    statistic: Statistic | Tensor | None = None
    if request.q.is_meta:
        context = request.value.new_empty(*request.lead, request.queries, request.value.shape[-1])
    elif backend.isolates:
        request = request.reduced()  # once, for the context and for the map
        context, statistic = backend.context(request)
    elif request.mask.open:
        context, statistic = backend.context(request)
    else:
        context, statistic = isolated(request, backend.context)
    if not return_map:
        return context
    same = backend.name == "native" and native.scores_as_viewed(request)
    return context, AttentionMap.of(request.kept(), Statistic.unpack(statistic), same=same)
