"""Attention from one query per sequence, as in a classifier, without projecting the keys and values of all tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import AttentionMap, PackedMaps, attend
from ..attention.packed import maps_of
from ..attention.packing import unpack
from ..attention.request import Request
from ..core.tensors import is_unmodified, traced
from .learned_similarity import resolve_similarity
from .multihead import MultiHeadAttention, split_heads
from .packed_attention import apply_position, packed_operator


def attend_first(attention: MultiHeadAttention, query: Tensor, x: Tensor, packed: Tensor | None = None) -> Tensor:
    """Compute attention(query, x) for one query per sequence.

        q·(Wₖ·x + bₖ) = (Wₖᵀ·q)·x + q·bₖ        Σⱼ αⱼ·(Wᵥ·xⱼ + bᵥ) = Wᵥ·(Σⱼ αⱼ·xⱼ) + bᵥ

    The key and value weights are applied to the query and the context, of which there is one per head, instead of to
    all tokens. q·bₖ is the same for every key, so softmax cancels it.

    Shapes: query (B, W), x (B, T, W), or packed (N, W) of sequences of lengths (B,), each at least 1 → (B, W).

    >>> attention, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    >>> torch.allclose(attend_first(attention, x[:, 0], x), attention(x[:, :1], x)[:, 0], atol=1e-6)
    True
    """
    if not _is_plain(attention):
        if packed is None:
            return attention(query.unsqueeze(1), x).squeeze(1)
        return attention(query, x, packed=(torch.ones_like(packed), packed))
    heads, width = attention.heads, attention.width
    tokens = (x if packed is None else unpack(x, packed)).unsqueeze(1)  # (B, 1, T, W): shared by all heads
    key, value = (layer.weight.view(heads, -1, width) for layer in (attention.key, attention.value))  # (H, D, W)
    q = attention.query(query).view(len(query), *key.shape[:2])  # (B, H, D)
    q = torch.einsum("bhd,hdw->bhw", q, key).unsqueeze(2)  # (B, H, 1, W)
    lengths = None if packed is None else packed.to(x.device)
    scale = key.shape[1] ** -0.5
    mean_tokens = attend(
        q, tokens, tokens, scale=scale, enable_gqa=True, lengths=lengths, backend="torch"
    )  # (B, H, 1, W)
    context = torch.einsum("bhw,hdw->bhd", mean_tokens.squeeze(2), value).flatten(1)  # (B, W)
    if attention.value.bias is not None:
        context = context + attention.value.bias
    if attention.key.bias is not None:
        context = context + 0 * attention.key.bias.sum()  # the gradient of this bias is 0, not None
    output: Tensor = attention.out(context)
    return output


@torch.no_grad()
def self_attention_map(
    attention: MultiHeadAttention, x: Tensor, packed: Tensor | None = None
) -> AttentionMap | PackedMaps:
    """Return the map of attention(x, return_map=True), of all queries, without computing the output.

    `attend_first` computes one row of it. This function adds the map for callers that request it. The output is
    computed by the same calls with and without the map, and the map draws no random numbers.

    Shapes: x (B, T, W) → a map (B, H, T, T); or packed (N, W) of sequences of lengths (B,) → `PackedMaps`.

    >>> attention, x = MultiHeadAttention(12, 3).eval(), torch.randn(2, 5, 12)
    >>> torch.allclose(self_attention_map(attention, x).dense(), attention(x, return_map=True)[1].dense(), atol=1e-6)
    True
    """
    q, k, v = attention.query(x), attention.key(x), attention.value(x)
    options: dict[str, Any] = {
        "enable_gqa": attention.kv_heads != attention.heads,
        "similarity": resolve_similarity(attention.similarity),
    }
    if packed is not None:
        bound = _bound(packed_operator("multihead", attention.attend))
        q, k, v = (y.unflatten(-1, (-1, attention.width // attention.heads)) for y in (q, k, v))  # (N, H, D)
        q, k = (apply_position(attention.position, y, packed) for y in (q, k))
        return maps_of(q, k, v, packed, **bound, **options)
    heads, shared = attention.heads, attention.kv_heads
    q, k, v = split_heads(q, heads), split_heads(k, shared), split_heads(v, shared)  # (B, H, T, D)
    if attention.position is not None:
        q, k = attention.position(q, 0), attention.position(k, 0)
    function = attention.attend
    if function is attend or (isinstance(function, partial) and function.func is attend and not function.args):
        return AttentionMap(Request.of(q, k, v, **_bound(function), **options).kept())
    result: Any = function(q, k, v, **options, return_map=True)  # a custom operator has to run
    attention_map: AttentionMap = result[1]
    return attention_map


def _bound(operator: Any) -> dict[str, Any]:
    """Return the options bound to an operator, except the backend, which does not affect the map."""
    bound = operator.keywords if isinstance(operator, partial) else {}
    return {name: value for name, value in bound.items() if name != "backend"}


def _is_plain(attention: MultiHeadAttention) -> bool:
    """Return whether `attention` is plain: scaled dot products of unmodified projections, soft weights, not traced."""
    layers = (attention.key, attention.value)
    plain = attention.similarity == "scaled_dot" and attention.position is None and attention.attend is attend
    same = attention.kv_heads == attention.heads and all(layer.in_features == attention.width for layer in layers)
    drops = attention.training and attention.dropout > 0
    return plain and same and not drops and all(is_unmodified(layer, nn.Linear) for layer in layers) and not traced()
