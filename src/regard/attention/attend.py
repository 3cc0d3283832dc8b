"""`attend`, the attention operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..core.tensors import autocast_dtype
from .attention_map import AttentionMap
from .backends import Backend, choose
from .native import backend as native
from .nonfinite import serve_without_nonfinite
from .request import Request, Weighting, outside_autocast
from .similarity import SimilarityArgument
from .statistic import Statistic
from .tensor_types import is_causal_bias


@overload
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
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    causal_offset: int | Tensor | Sequence[int] = 0,
    lengths: int | Tensor | Sequence[int] | None = None,
    return_map: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...
@overload
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
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    causal_offset: int | Tensor | Sequence[int] = 0,
    lengths: int | Tensor | Sequence[int] | None = None,
    return_map: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, AttentionMap]: ...
@overload
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
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    causal_offset: int | Tensor | Sequence[int] = 0,
    lengths: int | Tensor | Sequence[int] | None = None,
    return_map: bool,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, AttentionMap]: ...
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
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    causal_offset: int | Tensor | Sequence[int] = 0,
    lengths: int | Tensor | Sequence[int] | None = None,
    return_map: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, AttentionMap]:
    """Compute attention: compare queries with keys, normalize the scores, and sum the weighted values.

        scores  = softcap(similarity(query, key))           (*lead, Tq, Tk), never stored
        weights = weighting(scores + mask)                  (*lead, Tq, Tk), never stored
        context = dropout(weights) · value                  (*lead, Tq, Dv)

    The positional arguments are those of `torch.nn.functional.scaled_dot_product_attention`, so this is a drop-in
    replacement.

    Args:
        query: (*lead, Tq, D). Any number of leading dimensions (none, B, B×H, …); they broadcast as in SDPA.
        key: (*lead, Tk, D).
        value: (*lead, Tk, Dv).
        attn_mask: boolean (True = may attend) or float (added to the scores), broadcasting to (*lead, Tq, Tk), or a
            `torch.nn.attention.bias.CausalBias`. Other polarities: `regard.masks`.
        dropout_p: probability of dropping a weight. Dropout is applied whenever it is not 0.
        is_causal: query i is at position i + causal_offset and attends to no later key. Combines with any other mask.
        scale: multiplies dot, cosine and bilinear scores; default 1/√D for scaled_dot, 1 otherwise.
        enable_gqa: query heads (dimension −3) may be a multiple of key and value heads.
        similarity: "dot", "scaled_dot", "cosine", `Bilinear(W)`, `Additive(w)`, or a callable
            f(q_block, k_block) → scores that treats pairs independently.
        weighting: "softmax"; "hard": weight 1 for the best key (the first one on ties), with the gradient of the soft
            weights (the biased straight-through estimator); "uniform": the mean of the values.
        softcap: scores ← softcap · tanh(scores / softcap), before the mask.
        window: (left, right): keys from position − left to position + right; None for an open side.
        causal_offset: an integer, or one per batch entry. 0 aligns the mask at the upper left, as SDPA does; Tk − Tq at
            the lower right.
        lengths: number of valid keys, or one number per batch entry. Keys past it are skipped.
        return_map: also return an `AttentionMap`, which computes weights on access.
        backend: "auto", "native", "torch", "blocked" or "reference".

    Returns:
        The context, or (context, map). The context of a query that may attend to no key is zero. NaN and ∞ in masked
        positions have no effect.

    Raises:
        ValueError: if an argument is invalid. The message names the value and a remedy.

    >>> import regard, torch
    >>> desk = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]])   # book, cup, paper
    >>> wish = torch.tensor([[8.0, 0.0]])                           # to read
    >>> context, m = regard.attend(wish, desk, desk, return_map=True)
    >>> [[f"{w:.2f}" for w in row] for row in m.dense().tolist()]
    [['0.64', '0.00', '0.36']]
    """
    options: dict[str, Any] = {
        "similarity": similarity,
        "weighting": weighting,
        "softcap": softcap,
        "window": window,
        "causal_offset": causal_offset,
        "lengths": lengths,
    }
    arguments = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    # CausalBias supports only SDPA: for another function its __torch_function__ would return a CausalBias
    overriding = (query, key, value, None if is_causal_bias(attn_mask) else attn_mask)
    if has_torch_function_variadic(*overriding):  # a subclass, or a mode such as the one of `regard.watch`
        options.update(return_map=return_map, backend=backend)
        overridden: Callable[..., Tensor | tuple[Tensor, AttentionMap]] = handle_torch_function
        return overridden(attend, overriding, *arguments, **options)
    request = Request.of(*arguments, **options)
    chosen = choose(request, backend).backend
    if autocast_dtype(request.device) is None:
        return serve(request, chosen, return_map)
    with outside_autocast(request):
        return serve(request, chosen, return_map)


@overload
def serve(request: Request, backend: Backend, return_map: Literal[False]) -> Tensor: ...
@overload
def serve(request: Request, backend: Backend, return_map: bool) -> Tensor | tuple[Tensor, AttentionMap]: ...
def serve(request: Request, backend: Backend, return_map: bool) -> Tensor | tuple[Tensor, AttentionMap]:
    """Compute a validated request with one backend."""
    statistic: Statistic | Tensor | None = None
    if request.q.is_meta:
        context = request.value.new_empty(*request.lead, request.queries, request.value.shape[-1])
    elif backend.handles_nonfinite:
        request = request.reduced()  # once, for the context and for the map
        context, statistic = backend.context(request)
    elif request.mask.open:
        context, statistic = backend.context(request)
    else:
        context, statistic = serve_without_nonfinite(request, backend.context)
    if not return_map:
        return context
    same_scores = backend.name == "native" and native.scores_as_viewed(request)
    return context, AttentionMap.of(request.kept(), Statistic.unpack(statistic), same_scores=same_scores)
