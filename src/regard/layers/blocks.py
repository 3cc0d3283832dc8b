"""Transformer blocks: attention and feed-forward, each with a residual connection.

    norm_first=False, "after"              norm_first=True, "before"
    x ─┬─ part ─ dropout ─ + ─ norm ─      x ─┬─ norm ─ part ─ dropout ─ + ─
       └───────────────────┘                  └──────────────────────────┘

Attention, feed-forward and normalization are passed in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, overload

from torch import Tensor, nn

from ..attention import AttentionMap, PackedMaps
from ..attention.packed_layout import Lengths
from ..core.tensors import is_unmodified, traced
from ..core.trace import trace_step
from ..core.typed_call import same_type
from .cache import Cache, DecoderCache
from .feedforward import FeedForward
from .first_token import attend_first, self_attention_map
from .multihead import MultiHeadAttention, SelfAttentionOptions
from .packed_attention import Packing, length_pair
from .residual import Residual, add_and_norm, part_result

Norm = Callable[[int], nn.Module]
"""Function from a width to a normalization: `nn.LayerNorm`, `nn.RMSNorm`, `partial(nn.LayerNorm, eps=1e-12)`."""


class DecoderOptions(TypedDict, total=False):
    """Keyword arguments of a call of `DecoderBlock` that do not change the type of its result."""

    attn_mask: Tensor | None
    is_causal: bool
    lengths: int | Lengths | None
    memory_mask: Tensor | None
    memory_lengths: int | Lengths | None
    cache: DecoderCache | None
    packed: Packing | None


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward. With `is_causal` and a cache it is a block of a language model.

    Shapes: (B, T, W) → (B, T, W); the map is (B, H, T, Tk).
    Paper: Vaswani et al. 2017, section 3.1. Differs from `nn.TransformerEncoderLayer`: batch first; True = may attend;
    `is_causal` is applied, not only a hint.

    >>> import torch
    >>> block = EncoderBlock(MultiHeadAttention(12, 3), FeedForward(12, 48), dropout=0.1)
    >>> y, m = block(torch.randn(2, 5, 12), lengths=[5, 4], return_map=True)
    >>> tuple(y.shape), m.shape
    ((2, 5, 12), (2, 3, 5, 5))
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feedforward: nn.Module,
        *,
        norm_first: bool = False,
        dropout: float = 0.0,
        norm: Norm = nn.LayerNorm,
    ) -> None:
        super().__init__()
        width = attention.width
        self.attention = attention
        self.feedforward = feedforward
        self.around_attention = Residual(norm(width), norm_first=norm_first, dropout=dropout)
        self.around_feedforward = Residual(norm(width), norm_first=norm_first, dropout=dropout)

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        packed: Packing | None = None,
        return_map: Literal[False] = False,
        **options: Unpack[SelfAttentionOptions],
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, *, packed: None = None, return_map: Literal[True], **options: Unpack[SelfAttentionOptions]
    ) -> tuple[Tensor, AttentionMap]: ...
    @overload
    def forward(
        self, x: Tensor, *, packed: Packing, return_map: Literal[True], **options: Unpack[SelfAttentionOptions]
    ) -> tuple[Tensor, PackedMaps]: ...
    @overload
    def forward(
        self, x: Tensor, *, packed: Packing | None = None, return_map: bool, **options: Unpack[SelfAttentionOptions]
    ) -> Tensor | tuple[Tensor, AttentionMap | PackedMaps]: ...
    def forward(
        self,
        x: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        lengths: int | Lengths | None = None,
        cache: Cache | None = None,
        packed: Packing | None = None,
        return_map: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMap | PackedMaps]:
        """Return the output, or (output, map). See `MultiHeadAttention.forward` for the options."""
        options: dict[str, Any] = {"lengths": lengths, "cache": cache, "packed": packed, "return_map": return_map}
        options |= {"attn_mask": attn_mask, "is_causal": is_causal}
        around, last = self.around_attention, self.around_feedforward
        if traced() or not all(
            residual.norm_first and is_unmodified(residual, Residual) for residual in (around, last)
        ):
            x, weights = around(x, self.attention, **options)
            x, _ = last(x, self.feedforward)
        else:  # one kernel adds the attention output and normalizes the input of the feed-forward layer
            y, weights = part_result(self.attention(around.norm(x), **options))
            x, y = add_and_norm(x, y, around.dropout, last.norm)
            x = x + last.dropout(part_result(self.feedforward(y))[0])
        if not return_map:
            return x
        assert weights is not None
        return x, weights

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    @overload
    def first(self, x: Tensor, *, packed: Tensor | None = None, return_map: Literal[False] = False) -> Tensor: ...
    @overload
    def first(self, x: Tensor, *, packed: None = None, return_map: Literal[True]) -> tuple[Tensor, AttentionMap]: ...
    @overload
    def first(self, x: Tensor, *, packed: Tensor, return_map: Literal[True]) -> tuple[Tensor, PackedMaps]: ...
    @overload
    def first(
        self, x: Tensor, *, packed: Tensor | None = None, return_map: bool
    ) -> Tensor | tuple[Tensor, AttentionMap | PackedMaps]: ...
    def first(
        self, x: Tensor, *, packed: Tensor | None = None, return_map: bool = False
    ) -> Tensor | tuple[Tensor, AttentionMap | PackedMaps]:
        """Compute the output of the first token of each sequence only. It attends to all tokens.

        Classifiers use this as their last block, because they read nothing else.
        Shapes: (B, T, W) → (B, W); or packed (N, W) of sequences of lengths (B,), each at least 1 → (B, W).
        With return_map, also return the map of all queries as in `forward`. The output is computed in the same way.

        >>> import torch
        >>> block, x = EncoderBlock(MultiHeadAttention(12, 3), FeedForward(12, 48)), torch.randn(2, 5, 12)
        >>> torch.allclose(block.first(x), block(x)[:, 0], atol=1e-5)
        True
        """
        around = self.around_attention
        with trace_step("block", self):
            y = around.before(x)
            if packed is None:
                query, residual = y[:, 0], x[:, 0]  # (B, W)
            else:
                starts = (packed.cumsum(0) - packed).to(x.device)  # (B,)
                query, residual = y.index_select(0, starts), x.index_select(0, starts)  # (B, W)
            # one row per sequence: too few for a fused kernel to pay off
            x = around.after(residual, attend_first(self.attention, query, y, packed), fuse=False)
            output = self.around_feedforward(x, self.feedforward)[0]
            return (output, self_attention_map(self.attention, y, packed)) if return_map else output

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> EncoderBlock:
        """Return a block with a copy of the weights of an `nn.TransformerEncoderLayer`.

        Inputs of a layer with batch_first=False are (T, B, W). Transpose them to (B, T, W).

        >>> import torch
        >>> theirs = nn.TransformerEncoderLayer(12, 3, 48, batch_first=True).eval()
        >>> x = torch.randn(2, 5, 12)
        >>> torch.allclose(EncoderBlock.from_torch(theirs)(x), theirs(x), atol=1e-5)
        True
        """
        _check_kind(layer, nn.TransformerEncoderLayer)
        block = cls(MultiHeadAttention.from_torch(layer.self_attn), _feedforward(layer), norm=nn.Identity)
        block.around_attention = _residual(layer, layer.norm1, layer.dropout1)
        block.around_feedforward = _residual(layer, layer.norm2, layer.dropout2)
        return block.train(layer.training)


class DecoderMaps(NamedTuple):
    """The attention maps of a decoder block."""

    attention: AttentionMap | PackedMaps
    """(B, H, Tq, number of decoded positions); for packed sequences, one map for each"""
    cross_attention: AttentionMap | PackedMaps
    """(B, H, Tq, Tk of the memory); for packed sequences, one map for each"""


class DecoderBlock(nn.Module):
    """Self-attention to the decoded positions, cross-attention to the memory (the encoder output), then feed-forward.

    Shapes: x (B, T, W), memory (B, Tm, its width) → (B, T, W).
    Paper: Vaswani et al. 2017, section 3.1. Differs from `nn.TransformerDecoderLayer`: batch first; True = may attend;
    causal by default.

    >>> import torch
    >>> block = DecoderBlock(MultiHeadAttention(12, 3), MultiHeadAttention(12, 3), FeedForward(12, 48))
    >>> x, memory, cache = torch.randn(2, 5, 12), torch.randn(2, 7, 12), DecoderCache()
    >>> steps = [block(x[:, t : t + 1], memory, cache=cache) for t in range(5)]
    >>> torch.allclose(torch.cat(steps, 1), block(x, memory), atol=1e-5)
    True
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feedforward: nn.Module,
        *,
        norm_first: bool = False,
        dropout: float = 0.0,
        norm: Norm = nn.LayerNorm,
    ) -> None:
        super().__init__()
        width = attention.width
        if cross_attention.width != width:
            raise ValueError(
                f"decoder block: the width of cross_attention ({cross_attention.width}) must be that of attention "
                f"({width}). A memory of another width is MultiHeadAttention({width}, …, key_width=…, value_width=…)."
            )
        self.attention = attention
        self.cross_attention = cross_attention
        self.feedforward = feedforward
        self.around_attention = Residual(norm(width), norm_first=norm_first, dropout=dropout)
        self.around_cross_attention = Residual(norm(width), norm_first=norm_first, dropout=dropout)
        self.around_feedforward = Residual(norm(width), norm_first=norm_first, dropout=dropout)

    @overload
    def forward(
        self, x: Tensor, memory: Tensor, *, return_maps: Literal[False] = False, **options: Unpack[DecoderOptions]
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, memory: Tensor, *, return_maps: Literal[True], **options: Unpack[DecoderOptions]
    ) -> tuple[Tensor, DecoderMaps]: ...
    @overload
    def forward(
        self, x: Tensor, memory: Tensor, *, return_maps: bool, **options: Unpack[DecoderOptions]
    ) -> Tensor | tuple[Tensor, DecoderMaps]: ...
    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = True,
        lengths: int | Lengths | None = None,
        memory_mask: Tensor | None = None,
        memory_lengths: int | Lengths | None = None,
        cache: DecoderCache | None = None,
        packed: Packing | None = None,
        return_maps: bool = False,
    ) -> Tensor | tuple[Tensor, DecoderMaps]:
        """Return the output, or (output, `DecoderMaps`).

        attn_mask, is_causal and lengths apply to x and the cached positions; memory_mask and memory_lengths apply to
        the memory. With a cache, the memory must not change: it is only read at the first step.
        packed: (lengths, memory lengths), if x is (N, W) and memory (Nm, its width). Maps are then `PackedMaps`.
        """
        self_packed = None if packed is None else length_pair("decoder block", packed)[0]
        start = 0 if cache is None else cache.length
        x, self_map = self.around_attention(
            x,
            self.attention,
            attn_mask=attn_mask,
            is_causal=is_causal,
            lengths=lengths,
            cache=None if cache is None else cache.attention,
            packed=self_packed,
            return_map=return_maps,
        )
        x, cross_map = self.around_cross_attention(
            x,
            self.cross_attention,
            memory,
            attn_mask=memory_mask,
            lengths=memory_lengths,
            offset=None if cache is None else start,
            cache=None if cache is None else cache.cross_attention,
            packed=packed,
            return_map=return_maps,
        )
        x, _ = self.around_feedforward(x, self.feedforward)
        if not return_maps:
            return x
        assert self_map is not None and cross_map is not None
        return x, DecoderMaps(self_map, cross_map)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer) -> DecoderBlock:
        """Return a block with a copy of the weights of an `nn.TransformerDecoderLayer`. See `EncoderBlock.from_torch`.

        >>> import torch
        >>> theirs = nn.TransformerDecoderLayer(12, 3, 48, batch_first=True).eval()
        >>> x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        >>> ours = DecoderBlock.from_torch(theirs)
        >>> torch.allclose(ours(x, memory, is_causal=False), theirs(x, memory), atol=1e-5)
        True
        """
        _check_kind(layer, nn.TransformerDecoderLayer)
        attention, cross = (MultiHeadAttention.from_torch(a) for a in (layer.self_attn, layer.multihead_attn))
        block = cls(attention, cross, _feedforward(layer), norm=nn.Identity)
        block.around_attention = _residual(layer, layer.norm1, layer.dropout1)
        block.around_cross_attention = _residual(layer, layer.norm2, layer.dropout2)
        block.around_feedforward = _residual(layer, layer.norm3, layer.dropout3)
        return block.train(layer.training)


def _residual(layer: Any, norm: nn.Module, dropout: nn.Dropout) -> Residual:
    return Residual(copy.deepcopy(norm), norm_first=layer.norm_first, dropout=dropout.p)


def _feedforward(layer: Any) -> FeedForward:
    up = layer.linear1
    feedforward = FeedForward(up.in_features, up.out_features, activation=layer.activation, dropout=layer.dropout.p)
    feedforward.up, feedforward.down = copy.deepcopy(up), copy.deepcopy(layer.linear2)
    return feedforward


def _check_kind(layer: Any, kind: type) -> None:
    if not isinstance(layer, kind):
        raise ValueError(f"block: layer must be an nn.{kind.__name__}; got {type(layer).__name__}.")
