"""Recorders: convert a call of an attention function to a `Request`.

Each recorder takes the arguments of the function it is named after and stores references to them. Computation is
deferred until the map is accessed. To support another function, add a recorder for it to `RECORDERS`, and let the
function call `torch.overrides.handle_torch_function` as PyTorch's functions do.
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
from ..attention.dot_operator import request_of
from ..attention.masks import OPEN, Mask, from_ignore, merge, padding
from ..attention.packed import attend_packed, maps_of
from ..attention.packed_layout import layout_of
from ..attention.packed_maps import PackedMaps
from ..attention.request import Request
from ..attention.similarity import Dot
from ..attention.sink import attend_with_sink
from ..attention.tensor_types import is_causal_bias
from ..core.tensors import autocast_dtype
from .recorded_call import Record, StoredRequest, with_batch_and_heads

CAUSAL = Mask(right=0)


def stored_request(request: Request) -> StoredRequest:
    """Return the request as a source. Offsets and lengths are copied, because a decoder may increment them in place."""
    request = with_batch_and_heads(request.kept())
    mask = request.mask
    if isinstance(mask.offset, Tensor):
        mask = replace(mask, offset=mask.offset.clone())
    if isinstance(mask.lengths, Tensor):
        mask = replace(mask, lengths=mask.lengths.clone())
    return StoredRequest(request if mask is request.mask else replace(request, mask=mask))


def plain_tensor(name: str, x: Tensor) -> Tensor:
    """Return `x` as a plain tensor. Raise ValueError for tensor subclasses and transforms without own storage."""
    kind = type(x)
    if kind is not Tensor and kind is not nn.Parameter:
        if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise ValueError(f"{name} is a {kind.__name__}, which has no data of its own in memory")
        x = x.as_subclass(Tensor)
    if is_functorch_wrapped_tensor(x):
        raise ValueError(f"{name} is transformed by torch.func, which hides its data")
    return x


def plain_mask(mask: Tensor | None) -> Tensor | None:
    """Return `mask` as a plain tensor or `CausalBias`. Raise ValueError for other subclasses."""
    if mask is None or is_causal_bias(mask):
        return mask
    if type(mask) not in (Tensor, nn.Parameter):
        raise ValueError(f"attn_mask is a {type(mask).__name__}, which is not supported; pass a tensor")
    return plain_tensor("attn_mask", mask)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> Record:
    """Record `F.scaled_dot_product_attention`. In a boolean mask, True means may attend. Kernels have more options."""
    if query.is_nested:
        raise ValueError("nested tensors have no single shape; pad them with torch.nested.to_padded_tensor")
    query, key, attn_mask = plain_tensor("query", query), plain_tensor("key", key), plain_mask(attn_mask)
    common = attn_mask is None and query.ndim == key.ndim == 4 and query.shape[:2] == key.shape[:2]
    if common and query.shape[-1] and autocast_dtype(query.device) is None:
        # the common case: PyTorch validated the inputs; `Request.of_parts` would more than double the recording time
        similarity = Dot(1 / math.sqrt(query.shape[-1]) if scale is None else float(scale))
        mask, lead = CAUSAL if is_causal else OPEN, tuple(query.shape[:2])
        return Record(StoredRequest(Request(query.detach(), key.detach(), None, similarity, lead=lead, mask=mask)))
    value = plain_tensor("value", value)
    return Record(stored_request(Request.of(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)))


def by_name(recorder: Callable[..., Record], operator: Any) -> Callable[..., Record]:
    """Return a recorder that takes the arguments of an operator, by position or by name, and passes them by name."""
    names = [argument.name for argument in operator._schema.arguments]
    return lambda *args, **kwargs: recorder(**dict(zip(names, args, strict=False)), **kwargs)


def regard_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    return_map: bool = False,
    backend: str = "auto",
    **kwargs: Any,
) -> Record:
    """Record `regard.attend`."""
    query, key, value = plain_tensor("query", query), plain_tensor("key", key), plain_tensor("value", value)
    return Record(stored_request(Request.of(query, key, value, plain_mask(attn_mask), *args, **kwargs)))


def regard_attend_packed(*args: Any, return_maps: bool = False, backend: str = "auto", **kwargs: Any) -> Record:
    """Record `attend_packed` as one map of a padded batch, (B, H, Tq, Tk), with weight 0 in the padding."""
    other_keys = len(args) > 4 and args[4] is not None and not kwargs.get("is_causal")
    return Record(StoredRequest(maps_of(*args, **kwargs).padded().request), cross=other_keys or None)


def regard_dot(*args: Any) -> Record:
    """Record `regard::dot`, which a program of `torch.export` calls in place of `regard.attend`."""
    return Record(stored_request(request_of(*args)))


def regard_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    key_lengths: Tensor,
    left: int | None,
    right: int | None,
    groups: int,
    scale: float,
    softcap: float | None,
    backend: str,
    causal_offset: Tensor | None = None,
) -> Record:
    """Record `regard::packed`, which a program of `torch.export` calls in place of `regard.attend_packed`."""
    layout = layout_of(q.transpose(0, 1), k.transpose(0, 1), lengths, key_lengths, causal_offset)
    request = request_of(q, k, v, None, None, None, left, right, groups, scale, softcap)
    return Record(StoredRequest(PackedMaps(request, layout).padded().request))


@dataclass(frozen=True)
class Projected:
    """Attention whose inputs are projected inside a fused function. Queries and keys are computed when needed.

    Shapes: query and key (B, T, width); weights (width, width) and biases (width,) of queries and of keys.
    """

    query: Tensor
    key: Tensor
    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor | None, Tensor | None]
    heads: int
    masks: tuple[Tensor | None, ...] = ()
    """Boolean (True = may attend) or additive masks, broadcasting to (B, H, Tq, Tk)."""
    is_causal: bool = False
    norm: tuple[Tensor, Tensor, float] | None = None
    """Weight, bias and ε of a layer norm applied before the projection."""
    extra: tuple[Tensor, ...] = ()
    """Additional keys without a token, (width,) each, appended to the others."""
    dtype: torch.dtype | None = None
    """The autocast dtype of inputs and weights."""

    def __post_init__(self) -> None:
        for x in self.tensors():
            if not x.is_nested:
                plain_tensor("an input or weight", x)
        if self.dtype is None and self.query.dtype != self.weights[0].dtype:
            raise ValueError(f"inputs are {self.query.dtype} and weights {self.weights[0].dtype}")

    def tensors(self) -> Sequence[Tensor]:
        values = (self.query, self.key, *self.weights, *self.biases, *self.masks, *(self.norm or ()), *self.extra)
        return [x for x in values if isinstance(x, Tensor)]

    def copy_storage(self, storage: int) -> StoredRequest:
        return StoredRequest(self.request())

    def request(self) -> Request:
        with torch.autocast(
            self.query.device.type, enabled=False
        ):  # use the autocast dtype of the call, not the current one
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
            additional = torch.stack(self.extra).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, extra, D)
            k = torch.cat([k, additional.to(k).expand(len(k), -1, -1, -1)], -2)
            masks = [_extend_mask(mask, len(self.extra), key.shape[1]) for mask in masks]
        request = Request.of(q, k, k, merge(*masks), is_causal=self.is_causal, lengths=lengths)
        return with_batch_and_heads(request.kept())

    def _split(self, x: Tensor, at: int) -> Tensor:
        weight, bias = self.weights[at], self.biases[at]
        if self.dtype is not None:
            x, weight = x.to(self.dtype), weight.to(self.dtype)
            bias = None if bias is None else bias.to(self.dtype)
        result: Tensor = F.linear(x, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2).detach()
        return result


def _extend_mask(mask: Tensor | None, extra: int, keys: int) -> Tensor | None:
    """Extend a mask to additional keys, which all queries may attend to."""
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
    need_weights: bool = True,
    **_: Any,
) -> Record:
    """Record `F.multi_head_attention_forward`: inputs (T, B, width); in boolean masks, True means ignore."""
    hinted = is_causal and key_padding_mask is None and not need_weights  # PyTorch then ignores attn_mask
    if static_k is not None:
        raise ValueError("static_k has no projection to recompute; pass it to scaled_dot_product_attention instead")
    batched = query.ndim == 3
    if use_separate_proj_weight:
        assert q_proj_weight is not None and k_proj_weight is not None
        weights = (q_proj_weight.detach(), k_proj_weight.detach())
    else:
        assert in_proj_weight is not None
        weights = _query_and_key_parts(in_proj_weight)
    biases = (None, None) if in_proj_bias is None else _query_and_key_parts(in_proj_bias)
    extra = [] if bias_k is None else [bias_k.detach().flatten()]
    if add_zero_attn:
        extra.append(weights[0].new_zeros(embed_dim_to_check))
    source = Projected(
        _batch_first(query, batched),
        _batch_first(key, batched),
        weights,
        biases,
        num_heads,
        (None if hinted else _mask(attn_mask, num_heads), _padding(key_padding_mask)),
        hinted,
        extra=tuple(extra),
        dtype=autocast_dtype(query.device),
    )
    return Record(source, cross=query.data_ptr() != key.data_ptr() or query.shape != key.shape)


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None,
    **_: Any,
) -> Record:
    """Record the fast path of nn.MultiheadAttention."""
    source = Projected(
        query.detach(),
        key.detach(),
        _query_and_key_parts(qkv_weight),
        _query_and_key_parts(qkv_bias),
        num_head,
        (_fast_path_mask(mask, mask_type),),
        norm=norm,
        dtype=autocast_dtype(query.device),
    )
    return Record(source)


def transformer_encoder_layer_fwd(
    src: Tensor,
    num_heads: int,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    **options: Any,
) -> Record:
    """Record the fast path of nn.TransformerEncoderLayer. Its attention belongs to the submodule `self_attn`."""
    norm = (norm_weight_1.detach(), norm_bias_1.detach(), eps) if norm_first else None
    return replace(native_multi_head_attention(src, src, num_heads, norm=norm, **options), submodule="self_attn")


def regard_attend_with_sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any) -> Record:
    """Record `attend_with_sink`."""
    return Record(stored_request(Request.of(query, key, value, **options)), sink.detach()[:, None])


def _query_and_key_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the query part and the key part of a fused QKV parameter."""
    query, key, _ = x.detach().chunk(3)
    return query, key


def _batch_first(x: Tensor, batched: bool) -> Tensor:
    return x.detach().transpose(0, 1) if batched else x.detach().unsqueeze(0)


def _mask(mask: Tensor | None, heads: int) -> Tensor | None:
    """Convert an ignore mask (Tq, Tk) or (B · H, Tq, Tk) to one that broadcasts to (B, H, Tq, Tk)."""
    if mask is None:
        return None
    mask = from_ignore(mask.detach())
    return mask.unflatten(0, (-1, heads)) if mask.ndim == 3 else mask


def _padding(mask: Tensor | None) -> Tensor | None:
    """Convert a padding mask (B, Tk) to (B, 1, 1, Tk)."""
    if mask is None:
        return None
    mask = from_ignore(mask.detach())
    return mask.reshape(-1, 1, 1, mask.shape[-1])


def _fast_path_mask(mask: Tensor | None, kind: int | None) -> Tensor | None:
    """Convert the mask of a fast path. Kind 0 masks pairs, 1 masks keys, 2 both."""
    if mask is None:
        return None
    return _padding(mask) if kind == 1 else from_ignore(mask.detach())


_aten = torch.ops.aten
_math, _flash = _aten._scaled_dot_product_attention_math, _aten._scaled_dot_product_flash_attention_for_cpu
_multi_head, _layer = _aten._native_multi_head_attention, _aten._transformer_encoder_layer_fwd
KERNELS = (
    ((torch._scaled_dot_product_attention_math, _math, _math.default), _math.default),
    ((_flash, _flash.default), _flash.default),
)
"""Names under which a kernel of scaled dot product attention can be called, and the operator with its schema."""
FAST_PATHS: tuple[tuple[tuple[Any, ...], Callable[..., Record]], ...] = (
    ((torch._native_multi_head_attention, _multi_head, _multi_head.default), native_multi_head_attention),
    ((torch._transformer_encoder_layer_fwd, _layer, _layer.default), transformer_encoder_layer_fwd),
)
"""Names of the fast paths of modules, the operator last, with their recorders."""

RECORDERS: dict[Any, Callable[..., Record]] = {
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention: scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    **{
        function: by_name(scaled_dot_product_attention, operator)
        for functions, operator in KERNELS
        for function in functions
    },
    **{function: by_name(recorder, names[-1]) for names, recorder in FAST_PATHS for function in names},
    F.multi_head_attention_forward: multi_head_attention_forward,
    torch.ops.regard.dot.default: regard_dot,
    torch.ops.regard.packed.default: regard_packed,
    attend: regard_attend,
    attend_packed: regard_attend_packed,
    attend_with_sink: regard_attend_with_sink,
}
