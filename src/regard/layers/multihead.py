"""Multi-head attention: project, split, attend, merge, project."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap, PackedMaps
from ..attention import attend as plain_attend
from ..attention.packed_layout import Lengths
from ..attention.tensor_types import is_causal_bias
from ..core.messages import check_sizes, nearest
from ..core.tensors import shape
from ..core.typed_call import same_type
from .cache import Cache
from .learned_similarity import Similarity, StoredSimilarity, resolve_similarity, stored_similarity
from .packed_attention import Packing, apply_position, length_pair, packed_operator, require_none

Position = Callable[[Tensor, int | Tensor], Tensor]
"""Function from queries or keys (..., H, T, D) and the position of the first one to the same with positions applied."""

AttentionFunction: TypeAlias = Callable[..., Tensor | tuple[Tensor, AttentionMap]]
"""`regard.attend`, with or without bound options, or a function that is called in the same way."""


class SelfAttentionOptions(TypedDict, total=False):
    """Keyword arguments of a call of an `EncoderBlock` that do not change the type of its result."""

    attn_mask: Tensor | None
    is_causal: bool
    lengths: int | Lengths | None
    cache: Cache | None


class AttentionOptions(SelfAttentionOptions, total=False):
    """Keyword arguments of a call of `MultiHeadAttention` that do not change the type of its result."""

    offset: int | Tensor | None


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the last dimension into heads: (..., T, H·D) → (..., H, T, D).

    >>> tuple(split_heads(torch.randn(2, 5, 12), heads=3).shape)
    (2, 3, 5, 4)
    """
    split: Tensor = x.unflatten(-1, (heads, -1))  # (..., T, H, D)
    return split.transpose(-3, -2)  # (..., H, T, D)


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (..., H, T, D) → (..., T, H·D). The inverse of `split_heads`.

    >>> x = torch.randn(2, 5, 12)
    >>> torch.equal(merge_heads(split_heads(x, heads=3)), x)
    True
    """
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """Several attentions in parallel, each over its own projection of queries, keys and values.

        headₕ  = attend(Wqₕ·query, Wkₕ·key, Wvₕ·value)              (B, T, width / heads)
        output = Wo · concat(head₁ … head_H)                        (B, T, width)

    Paper: Vaswani et al. 2017, section 3.2.2. Grouped heads: Ainslie et al. 2023, section 2.2.

    Args:
        width: width of queries and output, divisible by heads; each head has width / heads.
        heads: number of query heads.
        kv_heads: number of key and value heads, each shared by heads / kv_heads query heads; default heads.
        key_width, value_width: widths of the keys and values of a cross-attention, before projection; default width.
        bias: whether the four projections have a bias.
        dropout: share of weights dropped in training.
        similarity: a name ("additive" and "bilinear" learn a tensor per head), a `regard.Additive` or
            `regard.Bilinear`, or a callable f(q, k) → scores, such as a module.
        position: applied to the split queries and keys: `RotaryPosition()`.
        attend: the operator, optionally with options: `partial(regard.attend, window=(127, 0), softcap=50.0)`.

    Differs from `nn.MultiheadAttention`: batch first only; in boolean masks True = may attend
    (`regard.masks.from_ignore` converts its masks); a query that may attend to nothing gets zeros, not NaN; it returns
    only the output unless `return_map` is set. Masked inputs may contain NaN without affecting the output. But the
    projections multiply them, so padding must be finite for finite gradients of the weights.

    >>> attention = MultiHeadAttention(12, 3)
    >>> x = torch.randn(2, 5, 12)
    >>> output, m = attention(x, is_causal=True, lengths=[5, 4], return_map=True)
    >>> tuple(output.shape), m.shape
    ((2, 5, 12), (2, 3, 5, 5))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        similarity: Similarity = "scaled_dot",
        position: Position | None = None,
        attend: AttentionFunction = plain_attend,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check_sizes(width, heads, kv_heads, dropout)
        self.width, self.heads, self.kv_heads, self.dropout = width, heads, kv_heads, dropout
        head_width = width // heads
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(key_width or width, kv_heads * head_width, bias)
        self.value = nn.Linear(value_width or width, kv_heads * head_width, bias)
        self.out = nn.Linear(width, width, bias)
        self.similarity: StoredSimilarity = stored_similarity("multihead", similarity, head_width, heads)
        self.position = position
        self.attend: AttentionFunction = attend
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        packed: Packing | None = None,
        return_map: Literal[False] = False,
        **options: Unpack[AttentionOptions],
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        packed: None = None,
        return_map: Literal[True],
        **options: Unpack[AttentionOptions],
    ) -> tuple[Tensor, AttentionMap]: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        packed: Packing,
        return_map: Literal[True],
    ) -> tuple[Tensor, PackedMaps]: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        packed: Packing | None = None,
        return_map: bool,
        **options: Unpack[AttentionOptions],
    ) -> Tensor | tuple[Tensor, AttentionMap | PackedMaps]: ...
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        lengths: int | Lengths | None = None,
        offset: int | Tensor | None = None,
        cache: Cache | None = None,
        packed: Packing | None = None,
        return_map: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMap | PackedMaps]:
        """Attend from query to key, or to the query itself if key is None.

        Args:
            query: (B, Tq, width); without a batch, (Tq, width).
            key: (B, Tk, key_width); None for self-attention.
            value: (B, Tk, value_width); None uses the key.
            attn_mask: boolean (True = may attend) or float (added to the scores): (Tq, Tk), or (B, H, Tq, Tk) with 1
                for shared dimensions. For a mask over keys (B, Tk), see `regard.masks.over_keys`. Tk includes cached
                positions.
            is_causal: no query attends to a later key. Combines with other masks.
            lengths: number of valid keys, or one per batch entry, including cached ones.
            offset: position of the first query, for `position`; default: cached length in self-attention, else 0.
            cache: in self-attention, the keys of earlier steps, to which this call adds its own. In cross-attention,
                the keys of the first step, which are not computed again.
            packed: lengths (B,) of the sequences concatenated in query (N, width); the output has the same layout. In
                cross-attention (lengths, lengths of the keys), with key (Nk, key_width). See `regard.attend_packed`.
            return_map: also return the `AttentionMap`; for packed sequences `PackedMaps`, (H, Tq, Tk) each.

        Returns:
            The output (B, Tq, width), or (output, map); the map is (B, H, Tq, Tk).

        Raises:
            ValueError: for invalid arguments. The message has the value and a remedy.
        """
        self._check(query, key, value, attn_mask)
        if packed is not None:
            require_none("multihead", attn_mask=attn_mask, lengths=lengths, offset=offset, cache=cache)
            return self._packed(query, key, value, packed, is_causal, return_map)
        is_self_attention = key is None
        cached = cache.start if is_self_attention and cache is not None else 0
        start = cached if offset is None else offset
        q = self.query(query)
        if key is None:
            k, v = self._keys(query, None, start)  # (B, Hkv, Tk, D) each
            k, v = (k, v) if cache is None else cache.append(k, v)
        elif cache is None:
            k, v = self._keys(key, value, 0)
        else:
            k, v = cache.once(partial(self._keys, key, value, 0), key.shape[-2])
        q = self._apply_position(split_heads(q, self.heads), start)  # (B, H, Tq, D)
        result: Any = self.attend(
            q,
            k,
            v,
            attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
            # the newest position may attend to all keys: no mask is needed when decoding step by step, unless the
            # lengths of batch entries differ
            is_causal=is_causal and not (is_self_attention and query.shape[-2] == 1 and isinstance(cached, int)),
            enable_gqa=self.kv_heads != self.heads,
            similarity=resolve_similarity(self.similarity),
            causal_offset=cached if is_self_attention else start,
            lengths=lengths,
            return_map=return_map,
        )
        output: Tensor = self.out(merge_heads(result[0] if return_map else result))  # (B, Tq, width)
        if return_map and cache is not None and isinstance(result[1], AttentionMap):
            cache.lent = True
            result[1].guarded(False)  # later steps write to the memory of the keys, but behind them
        return (output, result[1]) if return_map else output

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def _packed(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        packed: Packing,
        is_causal: bool,
        return_maps: bool,
    ) -> Tensor | tuple[Tensor, PackedMaps]:
        """Attend in packed sequences. Heads stay inside: (N, H, D)."""
        queries, keys = length_pair("multihead", packed, is_self_attention=key is None)
        source = query if key is None else key
        q, k, v = self.query(query), self.key(source), self.value(source if value is None else value)
        result: Any = packed_operator("multihead", self.attend)(
            apply_position(self.position, q.unflatten(-1, (self.heads, -1)), queries),
            apply_position(self.position, k.unflatten(-1, (self.kv_heads, -1)), keys),
            v.unflatten(-1, (self.kv_heads, -1)),
            queries,
            None if keys is queries else keys,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            enable_gqa=self.kv_heads != self.heads,
            similarity=resolve_similarity(self.similarity),
            return_maps=return_maps,
        )
        context: Tensor = result[0] if return_maps else result  # (N, H, D)
        output: Tensor = self.out(context.flatten(-2))  # (N, width)
        return (output, result[1]) if return_maps else output

    def _keys(self, key: Tensor, value: Tensor | None, start: int | Tensor) -> tuple[Tensor, Tensor]:
        """Return projected keys and values per head, with positions applied to the keys: (B, Hkv, Tk, D) each."""
        k, v = self.key(key), self.value(key if value is None else value)
        return self._apply_position(split_heads(k, self.kv_heads), start), split_heads(v, self.kv_heads)

    def _apply_position(self, x: Tensor, start: int | Tensor) -> Tensor:
        return x if self.position is None else self.position(x, start)

    def _check(self, query: Tensor, key: Tensor | None, value: Tensor | None, attn_mask: Tensor | None) -> None:
        if key is None and value is not None:
            raise ValueError(
                f"multihead: value ({shape(value)}) must come with a key; for self-attention pass neither."
            )
        if key is None and (self.key.in_features != self.width or self.value.in_features != self.width):
            raise ValueError(
                f"multihead: key must be given if key_width ({self.key.in_features}) and value_width "
                f"({self.value.in_features}) are not the width ({self.width}); got None."
            )
        value = key if value is None else value
        for name, x, layer in (("query", query, self.query), ("key", key, self.key), ("value", value, self.value)):
            if x is not None and (x.ndim < 2 or x.shape[-1] != layer.in_features):
                raise ValueError(f"multihead: {name} ({shape(x)}) must be (batch, length, {layer.in_features}).")
        if attn_mask is not None and not is_causal_bias(attn_mask) and 2 < attn_mask.ndim != query.ndim + 1:
            # (B, Tq, Tk) would broadcast as (H, Tq, Tk) and be silently wrong if B = H
            raise ValueError(
                f"multihead: attn_mask ({shape(attn_mask)}) must have 2 dimensions, (Tq, Tk), or {query.ndim + 1} with "
                f"heads; got {attn_mask.ndim}. A mask per batch entry is mask[:, None], the (B·H, Tq, Tk) mask of "
                f"nn.MultiheadAttention is mask.unflatten(0, (-1, {self.heads}))."
            )

    def extra_repr(self) -> str:
        shared = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        named = f", similarity={self.similarity!r}" if isinstance(self.similarity, str) else ""
        return f"{self.width}, {self.heads}{shared}, dropout={self.dropout}{named}"

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Return an attention with a copy of the weights of an `nn.MultiheadAttention`.

        Inputs of a module with batch_first=False are (T, B, width). Transpose them to (B, T, width).

        Raises:
            ValueError: for add_bias_kv and add_zero_attn, which have no counterpart here.

        >>> theirs = nn.MultiheadAttention(12, 3, batch_first=True)
        >>> ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(2, 5, 12)
        >>> torch.allclose(ours(x), theirs(x, x, x, need_weights=False)[0], atol=1e-6)
        True
        """
        _check_convertible(module)
        biased = module.in_proj_bias is not None
        attention = cls(
            module.embed_dim,
            module.num_heads,
            key_width=module.kdim,
            value_width=module.vdim,
            bias=biased,
            dropout=module.dropout,
        )
        attention.to(module.out_proj.weight)  # same dtype and device
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = separate if module.in_proj_weight is None else module.in_proj_weight.chunk(3)
        biases = module.in_proj_bias.chunk(3) if biased else (None,) * 3
        for layer, weight, bias in zip((attention.query, attention.key, attention.value), weights, biases, strict=True):
            _copy(layer, weight, bias)
        _copy(attention.out, module.out_proj.weight, module.out_proj.bias)
        return attention.train(module.training)


@torch.no_grad()
def _copy(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    linear.weight.copy_(weight)
    linear.weight.requires_grad_(weight.requires_grad)
    if bias is not None:
        linear.bias.copy_(bias)
        linear.bias.requires_grad_(bias.requires_grad)


def _check_convertible(module: Any) -> None:
    if not isinstance(module, nn.MultiheadAttention):
        raise ValueError(f"multihead: module must be an nn.MultiheadAttention; got {type(module).__name__}.")
    for name, is_set in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if is_set:
            raise ValueError(
                f"multihead: {name} (True) must be False in a module that is converted: it adds a key without a "
                "token. Retrain without it."
            )


def _check_sizes(width: int, heads: int, kv_heads: int, dropout: float) -> None:
    check_sizes("multihead", width=width, heads=heads, kv_heads=kv_heads)
    if width % heads:
        near = nearest(width, heads)
        raise ValueError(f"multihead: width ({width}) must be divisible by heads ({heads}); try {near}.")
    if heads % kv_heads:
        fit = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"multihead: heads ({heads}) must be divisible by kv_heads ({kv_heads}); try one of {fit}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"multihead: dropout ({dropout}) must lie in [0, 1): it is the share of weights dropped.")
