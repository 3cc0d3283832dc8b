"""Attention with sinks: each head has an extra score that belongs to no key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import masks
from .attend import attend
from .attention_map import AttentionMap
from .request import Request
from .statistic import Statistic


def attend_with_sink(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any
) -> tuple[Tensor, AttentionMap]:
    """Compute attention in which each head has an extra score that belongs to no key. Its weight is discarded.

        weightᵢⱼ = exp(scoreᵢⱼ) / (exp(sink) + Σⱼ exp(scoreᵢⱼ))

    sink (H,). Paper: Xiao et al. 2024, "Efficient streaming language models with attention sinks"; learned in gpt-oss.
    """
    if has_torch_function_variadic(query, key, value):
        return handle_torch_function(attend_with_sink, (query, key, value), query, key, value, sink, **options)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, sink)):
        request = Request.of(query, key, value, **options).kept()
        return _with_sink_key(query, key, value, sink, **options), SinkMap(request, sink.detach()[:, None]).guarded()
    context, m = attend(query, key, value, **options, return_map=True)
    rows = (
        m.backend_statistic if m.backend_statistic is not None else m.statistic
    )  # the statistic of the context itself
    shared = sink.detach()[:, None]  # (H, 1), the same for every query of a head
    share = rows.with_sink(shared).weights(rows.highest.unsqueeze(-1)) * rows.total.unsqueeze(-1)  # (B, H, Tq, 1)
    return context * share.to(context.dtype), SinkMap(m.request, shared, m).guarded()


def _with_sink_key(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, **options: Any) -> Tensor:
    """Compute `attend_with_sink` with gradients: one more dimension adds a key whose score is the sink and value 0."""
    if options["softcap"] is not None:
        raise ValueError(
            f"huggingface: softcap ({options['softcap']}) must be None if attention sinks (s_aux) have gradients; "
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


class SinkMap(AttentionMap):
    """A map whose rows sum to less than one, because a score that belongs to no key takes part of the weight.

    sink: broadcasts to (*lead, Tq). without: the map of the same request without the sink, if it exists.
    """

    def __init__(self, request: Request, sink: Tensor, without: AttentionMap | None = None) -> None:
        super().__init__(request)
        self.sink = sink
        self.without = AttentionMap(request) if without is None else without

    def _compute_statistic(self) -> Statistic:
        return self.without.statistic.with_sink(self.sink)

    @property
    def known(self) -> Statistic:
        """The statistic. It is always computed for all rows, because it includes the sink."""
        return self.statistic

    def _with(self, request: Request) -> Any:
        return self._plain()._with(request)

    def _plain(self) -> AttentionMap:
        plain = AttentionMap(self.request, self.statistic)
        return plain.tokens(query=self.query_tokens, key=self.key_tokens)
