"""regard as an attention implementation of Hugging Face transformers.

    import regard.huggingface                                  # `import regard` does it where transformers is imported
    model.set_attn_implementation("regard")                    # or from_pretrained(…, attn_implementation="regard")
    model(**inputs, output_attentions=True).attentions         # a tuple of AttentionMaps (B, H, Tq, Tk), nothing dense

Encoders, decoders, cross-attention, grouped heads, sliding windows, soft caps, position biases and attention sinks are
computed by `regard.attend`. What a model asks beyond that is refused by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.overrides import handle_torch_function, has_torch_function_variadic
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from .attention import AttentionMap, attend, masks
from .attention.request import Request
from .view.call import Found, SinkMap
from .view.record import RECORDERS, kept

NAME = "regard"

REFUSED = {
    "indices": "sparse attention to chosen keys",
    "block_indices": "sparse attention to chosen blocks",
    "cache": "a paged cache of continuous batching",
    "head_mask": "weights that are multiplied after the softmax",
}
"""Arguments that change the weights in ways that `regard.attend` does not serve."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, AttentionMap | None]:
    """Attention as transformers calls it: query (B, H, Tq, D) → context (B, Tq, H, Dv) and its map (B, H, Tq, Tk)."""
    _check(module, kwargs)
    queries, keys = query.shape[-2], key.shape[-2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and queries > 1
    if causal and keys > queries:  # the first step into a buffer that is still empty beyond the queries
        key, value, keys = key[..., :queries, :], value[..., :queries, :], queries
        position_bias = None if position_bias is None else position_bias[..., :queries]
    if attention_mask is not None and attention_mask.shape[-1] > keys:
        attention_mask = attention_mask[..., :keys]
    options: dict[str, Any] = {
        "attn_mask": masks.merge(attention_mask, position_bias),
        "dropout_p": dropout,
        "is_causal": causal,
        "scale": scaling,
        "enable_gqa": query.shape[-3] != key.shape[-3],
        "softcap": softcap,
        "window": (sliding_window - 1, None) if causal and sliding_window is not None else None,
    }
    watched = not torch.compiler.is_compiling()  # a map is no tensor: compiled code has no use for it
    if s_aux is not None:
        context, found = attend_with_sink(query, key, value, s_aux, **options)
    elif watched:
        context, found = attend(query, key, value, **options, return_map=True)
    else:
        context, found = attend(query, key, value, **options), None
    return context.transpose(1, 2).contiguous(), found if watched else None


def attend_with_sink(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any
) -> tuple[Tensor, AttentionMap]:
    """Attention in which each head has a further score that belongs to no key: its weight is lost.

        weightᵢⱼ = exp(scoreᵢⱼ) / (exp(sink) + Σⱼ exp(scoreᵢⱼ))

    sink (H,). Paper: Xiao et al. 2024, "Efficient streaming language models with attention sinks"; learned in gpt-oss.
    """
    if has_torch_function_variadic(query, key, value):
        return handle_torch_function(attend_with_sink, (query, key, value), query, key, value, sink, **options)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, sink)):
        request = Request.of(query, key, value, **options).kept()
        return _with_sink_key(query, key, value, sink, **options), SinkMap(request, sink.detach()[:, None])
    context, m = attend(query, key, value, **options, return_map=True)
    rows = m.given if m.given is not None else m.statistic  # that of the context itself
    shared = sink.detach()[:, None]  # (H, 1), for every query of a head
    kept = rows.with_sink(shared).weights(rows.highest.unsqueeze(-1)) * rows.total.unsqueeze(-1)  # (B, H, Tq, 1)
    return context * kept.to(context.dtype), SinkMap(m.request, shared, m)


def _with_sink_key(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any) -> Tensor:
    """The same with gradients: a key whose score is the sink, by one more dimension, and whose value is zero."""
    if options["softcap"] is not None:
        raise ValueError(
            f"huggingface: softcap ({options['softcap']}) must be None where attention sinks (s_aux) have gradients; "
            "run under torch.no_grad()."
        )
    scale = query.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
    queries, keys = query.shape[-2], key.shape[-2]
    scores = (sink / scale).to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
    query = torch.cat([query, scores], -1)  # (B, H, Tq, D + 1)
    last = torch.ones_like(key[..., :1, :1])
    key = torch.cat([pad(key, (0, 1)), pad(last, (key.shape[-1], 0))], -2)  # (B, Hk, Tk + 1, D + 1)
    mask, window = options["attn_mask"], options["window"] or (None, None)
    allowed = masks.sliding(queries, keys, left=window[0], right=0 if options["is_causal"] else None).to(key.device)
    mask = masks.merge(mask, allowed)
    assert mask is not None
    mask = pad(mask, (0, 1), value=True if mask.dtype == torch.bool else 0.0)
    options.update(attn_mask=mask, is_causal=False, window=None, scale=scale)
    context: Tensor = attend(query, key, pad(value, (0, 0, 0, 1)), **options)
    return context


def _record_sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any) -> Found:
    return Found(kept(Request.of(query, key, value, **options)), sink.detach()[:, None])


def _check(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for name, words in REFUSED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"huggingface: {name} of {type(module).__name__} must be None under attn_implementation='regard': it "
                f"means {words}. Use model.set_attn_implementation('eager')."
            )


def register() -> None:
    """Make "regard" an attention implementation of transformers; once is enough, twice does no harm."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    RECORDERS[attend_with_sink] = _record_sink


register()
