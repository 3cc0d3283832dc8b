"""Recorders: from somebody's call of an attention function to the request behind it.

Each takes the arguments of the function it is named after and keeps references; arithmetic is left for the moment at
which somebody looks. To make another function visible, give it a recorder in `RECORDERS`, and have it call
`torch.overrides.handle_torch_function` as PyTorch's own functions do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from ..attention.attend import attend
from ..attention.masks import OPEN, Mask, from_ignore, merge, padding
from ..attention.packed import attend_packed, maps_of
from ..attention.request import Request
from ..attention.similarity import Dot
from ..attention.sink import attend_with_sink
from ..attention.tensor_types import is_causal_bias
from ..core.tensors import autocast_dtype
from .recorded_call import Found, Plain, four

CAUSAL = Mask(right=0)


def _casts(x: Tensor) -> bool:
    return autocast_dtype(x.device) is not None


def kept(request: Request) -> Plain:
    """The request as a source. Numbers per batch entry are copied: a decoder may count them up in place."""
    request = four(request.kept())
    mask = request.mask
    if isinstance(mask.offset, Tensor):
        mask = replace(mask, offset=mask.offset.clone())
    if isinstance(mask.lengths, Tensor):
        mask = replace(mask, lengths=mask.lengths.clone())
    return Plain(request if mask is request.mask else replace(request, mask=mask))


def plain(name: str, x: Tensor) -> Tensor:
    """A tensor whose numbers lie in plain memory; raises ValueError for one that only stands for others."""
    kind = type(x)
    if kind is not Tensor and kind is not nn.Parameter:
        if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise ValueError(f"{name} is a {kind.__name__}, which has no numbers in memory of its own")
        x = x.as_subclass(Tensor)
    if is_functorch_wrapped_tensor(x):
        raise ValueError(f"{name} is transformed by torch.func, which hides its numbers")
    return x


def plain_mask(mask: Tensor | None) -> Tensor | None:
    """The same for a mask. The request understands a `CausalBias`; other subclasses are refused."""
    if mask is None or is_causal_bias(mask):
        return mask
    if type(mask) not in (Tensor, nn.Parameter):
        raise ValueError(f"attn_mask is a {type(mask).__name__}, whose meaning is not known; pass a tensor")
    return plain("attn_mask", mask)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Found:
    """As PyTorch's: a boolean mask has True = may attend."""
    if query.is_nested:
        raise ValueError("nested tensors have no one shape; pad them, torch.nested.to_padded_tensor")
    query, key, attn_mask = plain("query", query), plain("key", key), plain_mask(attn_mask)
    common = attn_mask is None and query.ndim == key.ndim == 4 and query.shape[:2] == key.shape[:2]
    if common and query.shape[-1] and not _casts(query):
        # most calls: PyTorch has checked what `Request.of_parts` would, which more than doubles the time to record one
        similarity = Dot(1 / math.sqrt(query.shape[-1]) if scale is None else float(scale))
        mask, lead = CAUSAL if is_causal else OPEN, tuple(query.shape[:2])
        return Found(Plain(Request(query.detach(), key.detach(), None, similarity, lead=lead, mask=mask)))
    value = plain("value", value)
    return Found(kept(Request.of(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)))


def regard_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    return_map: bool = False,
    backend: str = "auto",
    **kwargs: Any,
) -> Found:
    """Our own."""
    query, key, value = plain("query", query), plain("key", key), plain("value", value)
    return Found(kept(Request.of(query, key, value, plain_mask(attn_mask), *args, **kwargs)))


def regard_attend_packed(*args: Any, return_maps: bool = False, backend: str = "auto", **kwargs: Any) -> Found:
    """Our own, for packed sequences: one map of them as a padded batch, (B, H, Tq, Tk), 0 in padding."""
    other_keys = len(args) > 4 and args[4] is not None and not kwargs.get("is_causal")
    return Found(Plain(maps_of(*args, **kwargs).padded().request), cross=other_keys or None)


@dataclass(frozen=True)
class Projected:
    """Attention over inputs that are projected inside one function: their queries and keys are found when needed.

    query, key (B, T, width); weight (2 of width × width), bias (2 of width) of queries and keys.
    """

    query: Tensor
    key: Tensor
    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor | None, Tensor | None]
    heads: int
    masks: tuple[Tensor | None, ...] = ()
    """True = may attend or added, broadcasting to (B, H, Tq, Tk)."""
    is_causal: bool = False
    norm: tuple[Tensor, Tensor, float] | None = None
    """Weight, bias and ε of a normalisation that comes first."""
    extra: tuple[Tensor, ...] = ()
    """Keys without a token, (width,) each, after the others."""
    dtype: torch.dtype | None = None
    """What autocast made of inputs and weights."""

    def __post_init__(self) -> None:
        for x in self.tensors():
            if not x.is_nested:
                plain("an input or weight", x)
        if self.dtype is None and self.query.dtype != self.weights[0].dtype:
            raise ValueError(f"inputs are {self.query.dtype} and weights {self.weights[0].dtype}")

    def tensors(self) -> Sequence[Tensor]:
        given = (self.query, self.key, *self.weights, *self.biases, *self.masks, *(self.norm or ()), *self.extra)
        return [x for x in given if isinstance(x, Tensor)]

    def own(self, storage: int) -> Plain:
        return Plain(self.request())

    def request(self) -> Request:
        with torch.autocast(self.query.device.type, enabled=False):  # `dtype` is that of the call, not of this moment
            return self._request()

    def _request(self) -> Request:
        lengths, masks = None, [*self.masks]
        query, key = self.query, self.key
        if query.is_nested:
            lengths = [len(x) for x in query.unbind()]
            query = key = torch.nested.to_padded_tensor(query, 0.0)
            masks.append(padding(torch.tensor(lengths, device=query.device), query.shape[1])[:, None, :, None])
        if self.norm is not None:
            weight, bias, eps = self.norm
            query = key = F.layer_norm(query, query.shape[-1:], weight, bias, eps)
        q = self._split(query, 0)  # (B, H, Tq, D)
        k = self._split(key, 1)  # (B, H, Tk, D)
        if self.extra:
            more = torch.stack(self.extra).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, extra, D)
            k = torch.cat([k, more.to(k).expand(len(k), -1, -1, -1)], -2)
            masks = [_widened(mask, len(self.extra), key.shape[1]) for mask in masks]
        request = Request.of(q, k, k, merge(*masks), is_causal=self.is_causal, lengths=lengths)
        return four(request.kept())

    def _split(self, x: Tensor, at: int) -> Tensor:
        weight, bias = self.weights[at], self.biases[at]
        if self.dtype is not None:
            x, weight = x.to(self.dtype), weight.to(self.dtype)
            bias = None if bias is None else bias.to(self.dtype)
        return F.linear(x, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2).detach()


def _widened(mask: Tensor | None, extra: int, keys: int) -> Tensor | None:
    """A mask for further keys, to which all may attend."""
    if mask is None or mask.shape[-1] != keys:
        return mask
    return F.pad(mask, (0, extra), value=True if mask.dtype == torch.bool else 0.0)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    is_causal: bool = False,
    **_: Any,
) -> Found:
    """As PyTorch's, which passes the options by name: length first, (T, B, width), and boolean masks, True = ignore."""
    if static_k is not None:
        raise ValueError("static_k has no projection to rebuild; call scaled_dot_product_attention with it")
    batched = query.ndim == 3
    if use_separate_proj_weight:
        assert q_proj_weight is not None and k_proj_weight is not None
        weights = (q_proj_weight.detach(), k_proj_weight.detach())
    else:
        assert in_proj_weight is not None
        weights = _two(in_proj_weight)
    biases = (None, None) if in_proj_bias is None else _two(in_proj_bias)
    extra = [] if bias_k is None else [bias_k.detach().flatten()]
    if add_zero_attn:
        extra.append(weights[0].new_zeros(embed_dim_to_check))
    source = Projected(
        _batch_first(query, batched),
        _batch_first(key, batched),
        weights,
        biases,
        num_heads,
        (_mask(attn_mask, num_heads), _padding(key_padding_mask)),
        is_causal and attn_mask is None,
        extra=tuple(extra),
        dtype=autocast_dtype(query.device),
    )
    return Found(source, cross=query.data_ptr() != key.data_ptr() or query.shape != key.shape)


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Found:
    """The fast path of nn.MultiheadAttention."""
    source = Projected(
        query.detach(),
        key.detach(),
        _two(qkv_weight),
        _two(qkv_bias),
        num_head,
        (_typed(mask, mask_type),),
        dtype=autocast_dtype(query.device),
    )
    return Found(source)


def transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Found:
    """The fast path of nn.TransformerEncoderLayer, whose attention is the module `self_attn` below it."""
    norm = (norm_weight_1.detach(), norm_bias_1.detach(), eps) if norm_first else None
    src = src.detach()
    masks, dtype = (_typed(mask, mask_type),), autocast_dtype(src.device)
    source = Projected(src, src, _two(qkv_weight), _two(qkv_bias), num_heads, masks, norm=norm, dtype=dtype)
    return Found(source, below="self_attn")


def regard_attend_with_sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any) -> Found:
    return Found(kept(Request.of(query, key, value, **options)), sink.detach()[:, None])


def _two(x: Tensor) -> tuple[Tensor, Tensor]:
    """The part of queries and that of keys."""
    query, key, _ = x.detach().chunk(3)
    return query, key


def _batch_first(x: Tensor, batched: bool) -> Tensor:
    return x.detach().transpose(0, 1) if batched else x.detach().unsqueeze(0)


def _mask(mask: Tensor | None, heads: int) -> Tensor | None:
    """(Tq, Tk), or (B · H, Tq, Tk) → (B, H, Tq, Tk)."""
    if mask is None:
        return None
    mask = from_ignore(mask.detach())
    return mask.unflatten(0, (-1, heads)) if mask.ndim == 3 else mask


def _padding(mask: Tensor | None) -> Tensor | None:
    """(B, Tk) → (B, 1, 1, Tk)."""
    if mask is None:
        return None
    mask = from_ignore(mask.detach())
    return mask.reshape(-1, 1, 1, mask.shape[-1])


def _typed(mask: Tensor | None, kind: int | None) -> Tensor | None:
    """The one mask of a fast path: 0 over pairs, 1 over keys, 2 over both."""
    if mask is None:
        return None
    return _padding(mask) if kind == 1 else from_ignore(mask.detach())


RECORDERS: dict[Any, Callable[..., Found]] = {
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    F.multi_head_attention_forward: multi_head_attention_forward,
    torch._native_multi_head_attention: native_multi_head_attention,
    torch._transformer_encoder_layer_fwd: transformer_encoder_layer_fwd,
    attend: regard_attend,
    attend_packed: regard_attend_packed,
    attend_with_sink: regard_attend_with_sink,
}
