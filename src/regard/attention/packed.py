"""Attention over packed sequences: a batch of different lengths in one token dimension, without padding.

padded (B, T)        packed (N,)                  lengths
a b c ·
d e · ·        →     a b c d e f g h i            3 2 4
f g h i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..core import tensors
from ..core.tensors import transformed
from .attend import serve
from .backends import choose
from .dot_operator import request_of
from .native import packed_dot
from .packed_layout import Layout, Lengths, as_tensor, layout_of, padded, positions, unpad
from .packed_layout import token_positions as token_positions
from .packed_maps import PackedMaps
from .packed_operator import packed_through_operator, traceable
from .request import Request, Weighting, outside_autocast
from .similarity import SimilarityArgument
from .tensor_types import require_supported


@overload
def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    dropout_p: float = 0.0,
    causal_offset: int | Lengths = 0,
    return_maps: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...
@overload
def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    dropout_p: float = 0.0,
    causal_offset: int | Lengths = 0,
    return_maps: Literal[True],
    backend: str = "auto",
) -> tuple[Tensor, PackedMaps]: ...
@overload
def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    dropout_p: float = 0.0,
    causal_offset: int | Lengths = 0,
    return_maps: bool,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, PackedMaps]: ...
def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    similarity: SimilarityArgument = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    dropout_p: float = 0.0,
    causal_offset: int | Lengths = 0,
    return_maps: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, PackedMaps]:
    """Compute attention within each of several sequences that are concatenated without padding.

        contextᵦ = attend(queryᵦ, keyᵦ, valueᵦ)      queryᵦ = the rows of sequence b, heads first

    The native kernels read and write the packed sequences in place, so the cost of a batch depends only on its pairs of
    tokens. Requests that they do not support (callables, additive scores, hard weights, dropout, other devices) are
    padded, computed by `attend` with `lengths`, and unpadded: the same result, at the cost of padding.

    Args:
        query: (Nq, H, D), the tokens of all sequences in one dimension.
        key: (Nk, H, D); with `enable_gqa`, a divisor of H heads.
        value: (Nk, heads of key, Dv).
        lengths: (B,) number of queries of each sequence. They add up to Nq, and may be 0.
        key_lengths: (B,) number of keys of each sequence; default `lengths`.
        is_causal, window: relative to positions within the sequence: key j is at j, query i at i + causal_offset.
        causal_offset: an integer, or one per sequence (B,). 0 aligns the mask at the upper left,
            `key_lengths - lengths` at the lower right.
        return_maps: also return `PackedMaps`: one `AttentionMap` (H, Tq, Tk) per sequence.
        scale, enable_gqa, similarity, weighting, softcap, dropout_p, backend: as in `attend`.

    Returns:
        The context (Nq, H, Dv), or (context, maps). It is zero for a sequence without keys.

    Raises:
        ValueError: if an argument is invalid. The message names the value and a remedy.

    Differs from `attend`: there is no attn_mask, whose rows and columns would be those of a padded batch. Under
    torch.compile the dot products are one operator (`regard::packed`). Other similarities, hard weights, dropout and
    maps cause a graph break.

    >>> import regard
    >>> x = torch.randn(9, 4, 8)                                                   # three sentences, four heads
    >>> context, maps = regard.attend_packed(x, x, x, [3, 2, 4], return_maps=True)
    >>> tuple(context.shape), [m.shape for m in maps]
    ((9, 4, 8), [(4, 3, 3), (4, 2, 2), (4, 4, 4)])

    Decode with a cache: align the last query of each sequence with its last key.

    >>> new, all = torch.tensor([1, 2, 1]), torch.tensor([4, 2, 3])
    >>> context = regard.attend_packed(x[:4], x, x, new, all, is_causal=True, causal_offset=all - new)
    >>> tuple(context.shape)
    (4, 4, 8)
    """
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "similarity": similarity,
        "weighting": weighting,
        "softcap": softcap,
        "window": window,
        "causal_offset": causal_offset,
    }
    arguments = (query, key, value, lengths, key_lengths)
    if has_torch_function_variadic(query, key, value):  # a subclass, or a mode such as the one of `regard.watch`
        options.update(return_maps=return_maps, backend=backend)
        overridden: Callable[..., Tensor | tuple[Tensor, PackedMaps]] = handle_torch_function
        return overridden(attend_packed, (query, key, value), *arguments, **options)
    return attend_packed_impl(*arguments, return_maps=return_maps, backend=backend, **options)


def attend_packed_impl(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    causal_offset: int | Lengths = 0,
    return_maps: bool = False,
    backend: str = "auto",
    **options: Any,
) -> Tensor | tuple[Tensor, PackedMaps]:
    """Run `attend_packed` without `__torch_function__` overrides. `return_maps` does not change the context."""
    request = _request(query, key, value, options)
    if torch.compiler.is_compiling() and not transformed() and traceable(request.reduced()):
        query_lengths = as_tensor(lengths)
        keys = query_lengths if key_lengths is None else as_tensor(key_lengths)
        context = packed_through_operator(
            request.reduced(), query_lengths, keys, backend, _traced_offsets(causal_offset, query_lengths)
        )
        if not return_maps:
            return context
        return context, PackedMaps(request, layout_of(query, key, lengths, key_lengths, causal_offset))
    layout = layout_of(query, key, lengths, key_lengths, causal_offset)
    with outside_autocast(request):
        context = _serve(request, layout, backend)
    return (context, PackedMaps(request, layout)) if return_maps else context


def maps_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    causal_offset: int | Lengths = 0,
    **options: Any,
) -> PackedMaps:
    """Return the maps that `attend_packed` returns for these arguments, without computing the context."""
    layout = layout_of(query, key, lengths, key_lengths, causal_offset)
    return PackedMaps(_request(query, key, value, options), layout)


def _request(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Request:
    """Return one request for all tokens, heads first: (H, N, ·). Each sequence is a slice of it."""
    _check(query, key, value)
    return Request.of(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), **options)


def _serve(request: Request, layout: Layout, backend: str) -> Tensor:
    if backend in ("auto", "native") and packed_dot.refusal(request) is None:
        context = packed_dot.context(request, layout)
        if context is not None:
            return context
    return _padded(request, layout, backend)


def _padded(request: Request, layout: Layout, backend: str) -> Tensor:
    """Compute the context in a batch that is padded to its longest sequence."""
    batch = padded(request, layout)
    context = serve(batch, choose(batch, backend).backend, False)  # (B, H, T, Dv)
    return unpad(context, positions(request, layout)[0])  # (N, H, Dv)


def _traced_offsets(offset: int | Lengths, lengths: Tensor) -> Tensor | None:
    """Return the offsets as the operator takes them, without reading tensors: values are unknown during tracing."""
    if isinstance(offset, bool):
        return torch.as_tensor(offset)  # `_offsets` raises an error for it
    if isinstance(offset, int):
        return None if offset == 0 else torch.full_like(lengths, offset)
    return as_tensor(offset)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or (x.ndim != 3 and not x.is_nested):
            got = tensors.shape(x) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"attend_packed: {name} must be a tensor (tokens, heads, width); got {got}. For one head use "
                "x[:, None]; regard.data.pack packs a padded batch."
            )
        require_supported("attend_packed", name, x)


def _run_operator(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, key_lengths: Tensor, *rest: Any) -> Tensor:
    """Compute the context from the arguments of the operator.

    `rest`: the numbers of `request_of`, the backend and, in newer programs, the offset.
    """
    *numbers, backend, causal_offset = rest if len(rest) == 7 else (*rest, None)
    layout = layout_of(q.transpose(0, 1), k.transpose(0, 1), lengths, key_lengths, causal_offset)
    return _serve(request_of(q, k, v, None, None, None, *numbers), layout, backend)


@torch.library.impl("regard::packed", "CompositeExplicitAutograd")
@torch.no_grad()
def _operator(*plan: Any) -> Tensor:
    return _run_operator(*plan).contiguous()


@torch.library.impl("regard::packed_backward", "CompositeExplicitAutograd")
def _operator_backward(grad: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in plan[:3]]
        gradients = torch.autograd.grad(_run_operator(*leaves, *plan[3:]), leaves, grad)
    return tuple(gradient.contiguous() for gradient in gradients)
