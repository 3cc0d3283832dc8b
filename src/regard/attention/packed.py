"""Attention over packed sequences: a batch of different lengths as one run of tokens, without padding.

padded (B, T)        packed (N,)                  lengths
a b c ·
d e · ·        →     a b c d e f g h i            3 2 4
f g h i
"""

from __future__ import annotations

from typing import Any

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
from .packed_layout import places as places
from .packed_maps import PackedMaps
from .packed_operator import traceable, traced
from .request import Request, Weighting, outside_autocast
from .tensor_types import require_supported


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
    similarity: Any = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    dropout_p: float = 0.0,
    causal_offset: int | Lengths = 0,
    return_maps: bool = False,
    backend: str = "auto",
) -> Any:
    """`attend` for sequences of different lengths, each to itself, that lie one after the other without padding.

        contextᵦ = attend(queryᵦ, keyᵦ, valueᵦ)      queryᵦ = the rows of sequence b, heads first

    The native kernels read and write every sequence where it lies: a batch costs what its pairs of tokens cost. What
    they do not serve (`attend`: callables, additive scores, hard weights, dropout, other devices) is padded, attended
    to with `lengths`, and cut again: the same numbers, at the cost of padding.

    Args:
        query: (Nq, H, D), the tokens of all sequences in one dimension, heads inside.
        key: (Nk, H or a divisor under `enable_gqa`, D).
        value: (Nk, as key, Dv).
        lengths: (B,) queries of each sequence, which add up to Nq; 0 is a length.
        key_lengths: (B,) keys of each; default `lengths`.
        is_causal, window: by the position within the sequence: key j stands at j, query i at i + causal_offset.
        causal_offset: a number, or one per sequence (B,): 0 aligns upper left, `key_lengths - lengths` lower right.
        return_maps: also return the maps (`PackedMaps`): B `AttentionMap`s, (H, Tq, Tk) each.
        scale, enable_gqa, similarity, weighting, softcap, dropout_p, backend: as in `attend`.

    Returns:
        The context (Nq, H, Dv), or (context, maps). Queries of a sequence without keys get zeros.

    Raises:
        ValueError: with the value and the remedy.

    Differs from `attend`: no attn_mask, whose rows and columns would be those of a padded batch. Under torch.compile
    the dot products are one operator (`regard::packed`); other similarities, hard weights, dropout and maps break the
    graph.

    >>> import regard
    >>> x = torch.randn(9, 4, 8)                                                   # three sentences, four heads
    >>> context, maps = regard.attend_packed(x, x, x, [3, 2, 4], return_maps=True)
    >>> tuple(context.shape), [m.shape for m in maps]
    ((9, 4, 8), [(4, 3, 3), (4, 2, 2), (4, 4, 4)])

    New tokens after those of a cache: the last query of each sequence stands at its last key.

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
    given = (query, key, value, lengths, key_lengths)
    if has_torch_function_variadic(query, key, value):  # a mode or a subclass sees calls, as `regard.watch` does
        options.update(return_maps=return_maps, backend=backend)
        return handle_torch_function(attend_packed, (query, key, value), *given, **options)
    return attend_now(*given, return_maps=return_maps, backend=backend, **options)


def attend_now(
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
) -> Any:
    """`attend_packed` itself, after modes and subclasses have seen the call. The context does not depend on maps."""
    request = _request(query, key, value, options)
    if torch.compiler.is_compiling() and not transformed() and traceable(request.reduced()):
        cut = as_tensor(lengths)
        keys = cut if key_lengths is None else as_tensor(key_lengths)
        context = traced(request.reduced(), cut, keys, backend, _traced_offsets(causal_offset, cut))
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
    """The maps that `attend_packed` returns for the same arguments, without its context."""
    layout = layout_of(query, key, lengths, key_lengths, causal_offset)
    return PackedMaps(_request(query, key, value, options), layout)


def _request(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Request:
    """One request for all tokens, heads first: (H, N, ·). A sequence is a stretch of it."""
    _check(query, key, value)
    return Request.of(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), **options)


def _serve(request: Request, layout: Layout, backend: str) -> Tensor:
    if backend in ("auto", "native") and packed_dot.refusal(request) is None:
        context = packed_dot.context(request, layout)
        if context is not None:
            return context
    return _padded(request, layout, backend)


def _padded(request: Request, layout: Layout, backend: str) -> Tensor:
    """By a batch padded to its longest sequence."""
    batch = padded(request, layout)
    context = serve(batch, choose(batch, backend).backend, False)  # (B, H, T, Dv)
    return unpad(context, positions(request, layout)[0])  # (N, H, Dv)


def _traced_offsets(given: int | Lengths, lengths: Tensor) -> Tensor | None:
    """The same as the operator takes them, unread: while tracing, numbers of tensors are not known."""
    if isinstance(given, bool):
        return torch.as_tensor(given)  # for `_offsets` to refuse
    if isinstance(given, int):
        return None if given == 0 else torch.full_like(lengths, given)
    return as_tensor(given)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or (x.ndim != 3 and not x.is_nested):
            got = tensors.shape(x) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"attend_packed: {name} must be a tensor (tokens, heads, width); got {got}. For one head use "
                "x[:, None]; regard.data.pack packs a padded batch."
            )
        require_supported("attend_packed", name, x)


def _told(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, key_lengths: Tensor, *rest: Any) -> Tensor:
    """`rest`: the numbers of `request_of`, the backend and, unless it is None, the offset."""
    *numbers, backend, causal_offset = rest if len(rest) == 7 else (*rest, None)
    layout = layout_of(q.transpose(0, 1), k.transpose(0, 1), lengths, key_lengths, causal_offset)
    return _serve(request_of(q, k, v, None, None, None, *numbers), layout, backend)


@torch.library.impl("regard::packed", "CompositeExplicitAutograd")
@torch.no_grad()
def _operator(*plan: Any) -> Tensor:
    return _told(*plan).contiguous()


@torch.library.impl("regard::packed_backward", "CompositeExplicitAutograd")
def _operator_backward(grad: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in plan[:3]]
        gradients = torch.autograd.grad(_told(*leaves, *plan[3:]), leaves, grad)
    return tuple(gradient.contiguous() for gradient in gradients)
