"""A block of a `FastGPT`: its fused weights, and the calls that read prompts and single tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention.native.few_rows import Rotation, RowNorm, bind_attention, bind_linear, bind_rotate_append
from ..layers import EncoderBlock, FeedForward, GatedFeedForward
from .fast_inference import _context
from .fast_linear import concatenated
from .gpt_state import BoundBlock, GPTState


class FastBlock:
    """A block of the model: its fused weights, and its calls."""

    def __init__(self, block: EncoderBlock) -> None:
        attention, feedforward = block.attention, block.feedforward
        assert isinstance(feedforward, FeedForward | GatedFeedForward)
        self.attention, self.activation = attention, feedforward.activation
        self.heads, self.kv_heads, self.width = attention.heads, attention.kv_heads, attention.width // attention.heads
        self.window: tuple[int, int] | None = getattr(attention.attend, "keywords", {}).get("window")
        self.options: dict[str, Any] = {"enable_gqa": self.heads != self.kv_heads, "window": self.window}
        self.norms = row_norm(block.around_attention.norm), row_norm(block.around_feedforward.norm)
        self.qkv = concatenated(attention.query, attention.key, attention.value)
        self.out, self.down = concatenated(attention.out), concatenated(feedforward.down)
        gate = [feedforward.gate] if isinstance(feedforward, GatedFeedForward) else []
        self.gated, self.up = bool(gate), concatenated(*gate, feedforward.up)

    def read(self, x: Tensor, state: GPTState, rotation: Rotation | None, last: Tensor | None) -> Tensor:
        """Read prompts: x (B·T, W), which is overwritten → (B·T, W), or the rows `last` (B,) of it."""
        qkv = self._qkv(x, state)  # (B, T, heads + 2·kv_heads, D)
        self._bind_qkv(x, qkv)()
        key, value = state.caches[self.attention]
        bind_rotate_append(qkv, self.heads, rotation, state.lengths, (key, value))()
        q, tokens = qkv[:, :, : self.heads].transpose(1, 2), qkv.shape[1]  # (B, heads, T, D)
        k, v = key[:, :, :tokens], value[:, :, :tokens]
        context = _context(self.attention, q, k, v, is_causal=True, **self.options)  # (B, heads, T, D)
        context = context.transpose(1, 2).reshape(len(x), -1)  # (B·T, W)
        if last is not None:
            x, context = x[last], context[last]  # (B, W) each
        for call in self._bind_rest(x, context):
            call()
        return x

    def bind_step(self, x: Tensor, state: GPTState, rotation: Rotation | None, observed: bool) -> BoundBlock:
        """Return the calls that read one token: x (B, W) → (B, W) in place."""
        qkv, caches = self._qkv(x, state), state.caches[self.attention]  # (B, 1, heads + 2·kv_heads, D)
        q = qkv[:, 0, : self.heads].unsqueeze(2)  # (B, heads, 1, D)
        context = x.new_empty(len(x), self.heads, 1, self.width)
        masked = state.ragged or self.window is not None
        offsets, left = (state.lengths, self.window and self.window[0]) if masked else (None, None)
        direct = None if observed else bind_attention(q, *caches, context, offsets=offsets, left=left)

        def attention(state: GPTState) -> None:
            if observed:
                state.append(self.attention, qkv[:, :, self.heads :])
            if direct is None or not direct(state.length + 1):
                context.copy_(self._attend(q, state))

        rotate = bind_rotate_append(qkv, self.heads, rotation, state.lengths, None if observed else caches)
        rest = self._bind_rest(x, context.view(len(x), -1))
        return BoundBlock((self._bind_qkv(x, qkv), rotate), attention, rest, q)

    def _attend(self, q: Tensor, state: GPTState) -> Tensor:
        k, v = (cache[:, :, : state.length + 1] for cache in state.caches[self.attention])  # (B, kv_heads, keys, D)
        # the newest token may attend to all keys: no mask is needed unless shorter texts have fewer
        offset = state.lengths.clone() if state.ragged else state.length
        return _context(self.attention, q, k, v, is_causal=state.ragged, causal_offset=offset, **self.options)

    def _qkv(self, x: Tensor, state: GPTState) -> Tensor:
        batch = len(state.lengths)
        return x.new_empty(batch, len(x) // batch, self.heads + 2 * self.kv_heads, self.width)

    def _bind_qkv(self, x: Tensor, qkv: Tensor) -> Callable[[], None]:
        return bind_linear(x, *self.qkv, qkv.view(len(x), -1), norm=self.norms[0])

    def _bind_rest(self, x: Tensor, context: Tensor) -> list[Callable[[], None]]:
        """Return the calls after attention: x (N, W) and context (N, W) → x."""
        inner = x.new_empty(len(x), self.down[0].shape[1])  # (N, hidden)
        first = bind_linear(context, *self.out, x, epilogue="add")
        last = bind_linear(inner, *self.down, x, epilogue="add")
        if self.gated and self.activation is F.silu:
            return [first, bind_linear(x, *self.up, inner, norm=self.norms[1], epilogue="gate"), last]
        wide = x.new_empty(len(x), len(self.up[0])) if self.gated else inner  # (N, 2·hidden) or (N, hidden)

        def activate() -> None:
            if self.gated:
                gate, up = wide.tensor_split(2, -1)  # (N, hidden) each
                torch.mul(self.activation(gate), up, out=inner)
            else:
                inner.copy_(self.activation(inner))

        return [first, bind_linear(x, *self.up, wide, norm=self.norms[1]), activate, last]


def row_norm(norm: nn.Module) -> RowNorm:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.eps is not None
    shift = norm.bias.detach() if isinstance(norm, nn.LayerNorm) and norm.bias is not None else None
    return RowNorm(norm.weight.detach(), shift, norm.eps, isinstance(norm, nn.LayerNorm))
