"""Fast inference: `Bert` and the decoder of a `Transformer` with fewer calls and less memory traffic.

Results equal those of the model up to rounding. Weights are taken when the fast form is built, and some are copied, so
later changes of the model have no effect. Dropout is never applied, even in training mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import attend, attend_packed
from ..attention.packed import token_positions
from ..core.tensors import operators_are_observed
from ..layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..layers.cache import BeamCache
from ..layers.learned_similarity import resolve_similarity
from ..layers.residual import Residual, add_norm_
from .bert import Bert
from .encoder_decoder import Memory
from .fast_linear import FastLinear
from .transformer import Transformer


class FastEncoder:
    """Encode texts that are concatenated without padding.

        a a a a b b b b c c d d e        lengths 4 4 2 2 1

    Linear layers and norms process all tokens as one matrix (N, W); attention is computed per text (`attend_packed`).
    One product computes queries, keys and values. With `packed`, all weights are copied to the memory order in which
    products are fastest (`FastLinear`), which is worth its time from a few thousand tokens on. An object may be used by
    several threads.

    >>> from .bert import BertConfig
    >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)).eval()
    >>> ids = torch.randint(1, 50, (13,))
    >>> hidden = FastEncoder(bert)(ids, [4, 4, 2, 2, 1])                  # (13, 12)
    >>> torch.allclose(hidden[4:8], bert(ids[None, 4:8])[0], atol=1e-6)
    True
    """

    @torch.inference_mode()
    def __init__(self, bert: Bert, *, packed: bool = False) -> None:
        self.bert = bert
        # all texts are first segments
        self._position_table = bert.positions.weight + bert.segments.weight[0]
        self._blocks = [_EncoderBlock(block, packed) for block in bert.blocks if isinstance(block, EncoderBlock)]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return hidden (N, W) for the ids (N,) of texts of these lengths, which add up to N."""
        assert sum(lengths) == len(ids), f"{sum(lengths)} tokens in lengths, {len(ids)} ids"
        texts = torch.tensor(lengths, dtype=torch.int64)  # (B,)
        bert, width = self.bert, self.bert.config.width
        positions = token_positions(texts, len(ids)).to(ids.device)  # (N,)
        x = F.embedding(ids, bert.tokens.weight).add_(F.embedding(positions, self._position_table))  # (N, W)
        x = F.layer_norm(x, (width,), bert.norm.weight, bert.norm.bias, bert.norm.eps)
        for block in self._blocks:
            x = block(x, texts)  # (N, W)
        return x


class FastDecoder:
    """Decode step by step, with the methods of a translator that a search needs.

    One product computes queries, keys and values of the target, and another one keys and values of the source. The last
    product of each sublayer is added to its input in place. Keys and values of a position are stored and reordered
    together.

    With `packed` all weights are copied to the memory order in which products are fastest (`FastLinear`). Products of a
    few dozen rows then take two thirds of the time. The copy takes as long as a few steps of a single sentence.

    >>> from .transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(11, 13, width=8, heads=2, hidden=16)).eval()
    >>> source, lengths, begin = torch.randint(4, 11, (2, 7)), torch.tensor([7, 4]), torch.tensor([2, 2])
    >>> steps = []
    >>> with torch.no_grad():
    ...     for one in (model, FastDecoder(model)):
    ...         state = one.begin(one.encode(source, lengths))
    ...         steps.append(one.step(begin, state)[0])                     # (2, 13)
    >>> torch.allclose(*steps, atol=1e-6)
    True
    """

    training = False

    @torch.no_grad()
    def __init__(self, model: Transformer, *, packed: bool = False) -> None:
        self.model, self.longest = model, model.longest
        self._blocks = [_DecoderBlock(block, packed) for block in model.decoder if isinstance(block, DecoderBlock)]
        self._vocabulary = FastLinear(model.vocabulary, packed=packed)

    def eval(self) -> FastDecoder:
        return self

    def train(self, mode: bool) -> None:
        assert not mode, "supports inference only"

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        return self.model.encode(source, lengths)

    def begin(self, memory: Memory) -> BeamCache:
        return BeamCache(memory.lengths, [block.source_keys_and_values(memory.states) for block in self._blocks])

    def step(self, tokens: Tensor, state: BeamCache) -> tuple[Tensor, BeamCache]:
        """Return the logits (B·K, V) of the next tokens and the next state, from tokens (B·K,)."""
        model = self.model
        x = model._embed(model.target, model.target_position, tokens[:, None], state.length).squeeze(1)  # (B·K, W)
        state.extend(x, self._blocks[0].heads)
        for block, target_kv, source_kv in zip(self._blocks, state.target_kv, state.source_kv, strict=True):
            x = block(x, target_kv, source_kv, state)
        state.length += 1
        return self._vocabulary(model.decoder_norm(x)), state


def fast_decoder(model: Any, *, packed: bool = False) -> Any:
    """Return a `FastDecoder` of `model`, or `model` itself under autocast or if custom code has to run.

    Custom code is: hooks, subclasses, quantized or replaced submodules, and `TorchDispatchMode`s, which observe single
    operators. `regard.watch` is not: it records the calls of `FastDecoder` without changing them.
    """
    return model if operators_are_observed(model) or not _is_supported(model) else FastDecoder(model, packed=packed)


class _Residual:
    """A `Residual` around a sublayer that ends with a linear layer."""

    def __init__(self, around: Residual, last: nn.Linear, packed: bool) -> None:
        self.norm, self.norm_first = around.norm, around.norm_first
        self.last = FastLinear(last, packed=packed)

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer."""
        return self.norm(x) if self.norm_first else x

    def after(self, x: Tensor, inner: Tensor) -> Tensor:
        """Return the new x, (N, W), from the input of the last layer. x may be overwritten."""
        if self.norm_first:
            return self.last.add_to(x, inner)
        assert self.last.bias is not None
        return add_norm_(x, self.last.without_bias(inner), self.last.bias, self.norm)


class _EncoderBlock:
    """An encoder block over packed texts."""

    def __init__(self, block: EncoderBlock, packed: bool) -> None:
        attention, feedforward = block.attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        self.attention, self.activation = attention, feedforward.activation
        self.qkv = FastLinear(attention.query, attention.key, attention.value, packed=packed)
        self.up = FastLinear(feedforward.up, packed=packed)
        self.around_attention = _Residual(block.around_attention, attention.out, packed)
        self.around_feedforward = _Residual(block.around_feedforward, feedforward.down, packed)

    def __call__(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Compute x (N, W), which is overwritten → (N, W)."""
        around = self.around_attention
        qkv = self.qkv(around.before(x))  # (N, 3·W)
        x = around.after(x, _packed_context(self.attention, qkv, lengths))  # (N, W)
        around = self.around_feedforward
        return around.after(x, self.up(around.before(x), self.activation))  # (N, W)


class _DecoderBlock:
    """A decoder block that computes one position of each hypothesis."""

    def __init__(self, block: DecoderBlock, packed: bool) -> None:
        self_attention, cross_attention, feedforward = block.attention, block.cross_attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        self.heads, self.position, self.activation = (
            self_attention.heads,
            self_attention.position,
            feedforward.activation,
        )
        self.attention, self.cross_attention = self_attention, cross_attention
        self.similarities = (
            resolve_similarity(self_attention.similarity),
            resolve_similarity(cross_attention.similarity),
        )
        self.qkv = FastLinear(self_attention.query, self_attention.key, self_attention.value, packed=packed)
        self.query = FastLinear(cross_attention.query, packed=packed)
        self.kv = FastLinear(cross_attention.key, cross_attention.value, packed=packed)
        self.up = FastLinear(feedforward.up, packed=packed)
        self.around_attention = _Residual(block.around_attention, self_attention.out, packed)
        self.around_cross_attention = _Residual(block.around_cross_attention, cross_attention.out, packed)
        self.around_feedforward = _Residual(block.around_feedforward, feedforward.down, packed)

    def source_keys_and_values(self, states: Tensor) -> Tensor:
        """Compute keys and values of the source: (B, Ts, W) → (B, Ts, 2, H, D)."""
        return self.kv(states.flatten(0, 1)).view(*states.shape[:2], 2, self.heads, -1)

    def __call__(self, x: Tensor, target_kv: Tensor, source_kv: Tensor, state: BeamCache) -> Tensor:
        """Compute one step: x (B·K, W), which is overwritten → (B·K, W)."""
        around = self.around_attention
        x = around.after(x, self._own(around.before(x), target_kv, state.length))
        around = self.around_cross_attention
        x = around.after(x, self._cross(around.before(x), source_kv, state.lengths))
        around = self.around_feedforward
        return around.after(x, self.up(around.before(x), self.activation))

    def _own(self, x: Tensor, target_kv: Tensor, last: int) -> Tensor:
        """Return the self-attention context (B·K, W). Keys and values of this position are written at `last`."""
        qkv = self.qkv(x).view(len(x), 3, self.heads, -1)  # (B·K, 3, H, D)
        if self.position is not None:
            rotated = self.position(qkv[:, :2].unsqueeze(3), last).squeeze(3)  # (B·K, 2, H, D)
            q, target_kv[:, last, 0], target_kv[:, last, 1] = rotated[:, 0], rotated[:, 1], qkv[:, 2]
        else:
            q, target_kv[:, last] = qkv[:, 0], qkv[:, 1:]
        k, v = (y.transpose(1, 2) for y in target_kv[:, : last + 1].unbind(2))  # (B·K, H, length, D) each
        context = _context(self.attention, q.unsqueeze(2), k, v, similarity=self.similarities[0])
        return context.reshape(len(x), -1)

    def _cross(self, x: Tensor, source_kv: Tensor, lengths: Tensor) -> Tensor:
        """Return the cross-attention context (B·K, W). All hypotheses of a sentence share its keys."""
        q = self.query(x).view(len(source_kv), -1, self.heads, source_kv.shape[-1]).transpose(1, 2)  # (B, H, K, D)
        k, v = (y.transpose(1, 2) for y in source_kv.unbind(2))  # (B, H, Ts, D) each
        context = _context(self.cross_attention, q, k, v, similarity=self.similarities[1], lengths=lengths)
        return context.transpose(1, 2).reshape(len(x), -1)


def _context(attention: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Call `attend` for `attention`. `regard.watch` reads the module from this frame to name the map."""
    context: Tensor = attend(q, k, v, **options)
    return context


def _packed_context(attention: MultiHeadAttention, qkv: Tensor, lengths: Tensor) -> Tensor:
    """Call `attend_packed` for `attention`, (N, 3·W) → (N, W); see `_context`."""
    q, k, v = qkv.view(len(qkv), 3, attention.heads, -1).unbind(1)  # (N, H, D) each
    context: Tensor = attend_packed(q, k, v, lengths)
    return context.flatten(1)


def _is_supported(model: Any) -> bool:
    """Return whether the decoder consists of known modules: no subclasses, hooks or missing biases.

    The last layer must not have a bias.
    """
    if type(model) is not Transformer:
        return False
    known = (DecoderBlock, MultiHeadAttention, FeedForward, Residual, nn.Linear, nn.LayerNorm)
    inside = [part for block in model.decoder for part in block.modules()]
    parts, last = [*inside, model.vocabulary], model.vocabulary
    attentions = [part for part in parts if isinstance(part, MultiHeadAttention)]
    return (
        all(type(block) is DecoderBlock and type(block.feedforward) is FeedForward for block in model.decoder)
        and all(type(part) in known for part in parts if isinstance(part, known))
        and all(attention.attend is attend and attention.kv_heads == attention.heads for attention in attentions)
        and not any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        and not any(isinstance(part, nn.Linear) and part.bias is None for part in inside)
        and type(last) is nn.Linear
        and last.bias is None
    )
