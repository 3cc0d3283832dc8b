"""Fast inference: a `Bert` and the decoder of a `Transformer` with fewer calls and fewer passes over memory.

The results are those of the model but for rounding. The weights are those of the model when the fast form was built, in
part copied; later changes are not seen. There is no dropout, whatever the mode of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import attend, attend_packed
from ..attention.native.fused import gelu_
from ..attention.packed import token_positions
from ..layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention
from ..layers.cache import BeamCache
from ..layers.learned_similarity import asked
from ..layers.residual import Residual, add_norm_
from .bert import Bert
from .encoder_decoder import Memory
from .transformer import Transformer


class FastEncoder:
    """Encodes texts that are stored one after the other, without padding.

        a a a a b b b b c c d d e        lengths 4 4 2 2 1

    Linear layers and norms see all tokens as one matrix (N, W), attention sees each text (`attend_packed`). Queries,
    keys and values are one product. Sums and products are written into the same few buffers in every block and every
    call, since new memory costs a page fault for each 4 KiB, up to a fifth of the time of a product here. So one object
    serves one thread.

    >>> from .bert import BertConfig
    >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)).eval()
    >>> ids = torch.randint(1, 50, (13,))
    >>> hidden = FastEncoder(bert)(ids, [4, 4, 2, 2, 1])                  # (13, 12)
    >>> torch.allclose(hidden[4:8], bert(ids[None, 4:8])[0], atol=1e-6)
    True
    """

    @torch.inference_mode()
    def __init__(self, bert: Bert) -> None:
        self.bert = bert
        # every text here is a first segment
        self._places = bert.positions.weight + bert.segments.weight[0]
        self._space = self._places.new_empty(0)
        self._blocks = [_EncoderBlock(block) for block in bert.blocks if isinstance(block, EncoderBlock)]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """ids (N,) of texts of `lengths`, which add up to N → hidden (N, W)."""
        assert sum(lengths) == len(ids), f"{sum(lengths)} tokens in lengths, {len(ids)} ids"
        texts = torch.tensor(lengths, dtype=torch.int64)  # (B,)
        bert, width = self.bert, self.bert.config.width
        place = token_positions(texts, len(ids)).to(ids.device)  # (N,)
        x = F.embedding(ids, bert.tokens.weight).add_(F.embedding(place, self._places))  # (N, W)
        x = F.layer_norm(x, (width,), bert.norm.weight, bert.norm.bias, bert.norm.eps)
        sizes = [len(ids) * n for n in (max(3 * width, bert.config.hidden), width, width)]
        if self._space.numel() < sum(sizes):
            self._space = x.new_empty(sum(sizes))
        wide, *narrow = self._space[: sum(sizes)].split(sizes)
        for block in self._blocks:
            x = block(x, texts, wide, [buffer.view_as(x) for buffer in narrow])
        return x.clone()  # the next call overwrites the buffers


class FastDecoder:
    """Decodes step by step: of a `Translator` what a search needs.

    Queries, keys and values of the target are one product, and so are keys and values of the source. A part's last
    product is added to its input in place. Keys and values of a position are stored together and reordered together.

    With `contiguous` all weights are copied, (in, out) in memory: products of a few dozen rows then take two thirds of
    their time, and the copy as long as some steps of a single sentence.

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
    def __init__(self, model: Transformer, *, contiguous: bool = False) -> None:
        self.model, self.longest = model, model.longest
        self._blocks = [_DecoderBlock(block, contiguous) for block in model.decoder if isinstance(block, DecoderBlock)]
        self._vocabulary = _transposed(model.vocabulary.weight, contiguous)

    def eval(self) -> FastDecoder:
        return self

    def train(self, mode: bool) -> None:
        assert not mode, "made for inference"

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        return self.model.encode(source, lengths)

    def begin(self, memory: Memory) -> BeamCache:
        return BeamCache(memory.lengths, [block.read(memory.states) for block in self._blocks])

    def step(self, tokens: Tensor, state: BeamCache) -> tuple[Tensor, BeamCache]:
        """tokens (B·K,) → logits (B·K, V) of the next, and the next state."""
        model = self.model
        x = model._embed(model.target, model.target_position, tokens[:, None], state.length).squeeze(1)  # (B·K, W)
        state.extend(x, self._blocks[0].heads)
        for block, written, read in zip(self._blocks, state.written, state.read, strict=True):
            x = block(x, written, read, state)
        state.length += 1
        return model.decoder_norm(x) @ self._vocabulary, state


def fast_decoder(model: Any, *, contiguous: bool = False) -> Any:
    """Return a `FastDecoder` of `model`, or `model` itself under autocast, or if code of the caller's has to run.

    That is: hooks, subclasses, quantized or otherwise exchanged parts, and modes that see single operators
    (`TorchDispatchMode`). `regard.watch` is none of these: it sees the calls of `FastDecoder`, and changes nothing.
    """
    if (
        torch._C._len_torch_dispatch_stack()
        or torch.is_autocast_enabled(next(model.parameters()).device.type)
        or not _plain(model)
    ):
        return model
    return FastDecoder(model, contiguous=contiguous)


class _Linear:
    """One linear layer, or several of the same input side by side: y = x·W + b, with W (in, out)."""

    def __init__(self, *layers: nn.Linear, contiguous: bool = False) -> None:
        weights: list[Tensor] = [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers]
        self.weight = _transposed(weights[0] if len(layers) == 1 else torch.cat(weights), contiguous)
        self.bias = biases[0] if len(layers) == 1 else torch.cat(biases)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def without_bias(self, x: Tensor, buffer: Tensor) -> Tensor:
        """x·W, (N, in) → (N, out), in the memory of `buffer`."""
        size = len(x), len(self.bias)
        return torch.mm(x, self.weight, out=buffer[: size[0] * size[1]].view(size))


class _Residual:
    """A `Residual` around a part that ends with a linear layer."""

    def __init__(self, around: Residual, last: nn.Linear, contiguous: bool = False) -> None:
        self.norm, self.norm_first = around.norm, around.norm_first
        self.last = _Linear(last, contiguous=contiguous)

    def before(self, x: Tensor) -> Tensor:
        """What the part reads."""
        return self.norm(x) if self.norm_first else x

    def after(self, x: Tensor, inner: Tensor, buffer: Tensor | None = None) -> Tensor:
        """The new x, (N, W), given what the last layer reads; x may be overwritten, and so may the buffer (N, W)."""
        if self.norm_first:
            return x.add_(self.last.bias).addmm_(inner, self.last.weight)
        return add_norm_(x, torch.mm(inner, self.last.weight, out=buffer), self.last.bias, self.norm)


class _EncoderBlock:
    """An encoder block over packed texts."""

    def __init__(self, block: EncoderBlock) -> None:
        attention, feedforward = block.attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        self.attention, self.activation = attention, feedforward.activation
        self.qkv = _Linear(attention.query, attention.key, attention.value)
        self.up = _Linear(feedforward.up)
        self.around_attention = _Residual(block.around_attention, attention.out)
        self.around_feedforward = _Residual(block.around_feedforward, feedforward.down)

    def __call__(self, x: Tensor, lengths: Tensor, wide: Tensor, narrow: Sequence[Tensor]) -> Tensor:
        """x (N, W) → (N, W), by way of a buffer of N times the widest, into the second of two (N, W)."""
        around = self.around_attention
        qkv = self.qkv.without_bias(around.before(x), wide).add_(self.qkv.bias)  # (N, 3·W)
        x = around.after(x, _packed_context(self.attention, qkv, lengths), narrow[0])  # (N, W)
        around = self.around_feedforward
        h = self.up.without_bias(around.before(x), wide)  # (N, hidden)
        h = gelu_(h, self.up.bias, h) if self.activation is F.gelu else self.activation(h.add_(self.up.bias))
        return around.after(x, h, narrow[1])  # (N, W)


class _DecoderBlock:
    """A decoder block that computes one position of each hypothesis."""

    def __init__(self, block: DecoderBlock, contiguous: bool) -> None:
        own, cross, feedforward = block.attention, block.cross_attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        self.heads, self.position, self.activation = own.heads, own.position, feedforward.activation
        self.attention, self.cross_attention = own, cross
        self.similarities = asked(own.similarity), asked(cross.similarity)
        self.qkv = _Linear(own.query, own.key, own.value, contiguous=contiguous)
        self.query = _Linear(cross.query, contiguous=contiguous)
        self.kv = _Linear(cross.key, cross.value, contiguous=contiguous)
        self.up = _Linear(feedforward.up, contiguous=contiguous)
        self.around_attention = _Residual(block.around_attention, own.out, contiguous)
        self.around_cross_attention = _Residual(block.around_cross_attention, cross.out, contiguous)
        self.around_feedforward = _Residual(block.around_feedforward, feedforward.down, contiguous)

    def read(self, states: Tensor) -> Tensor:
        """Keys and values of the source: (B, Ts, W) → (B, Ts, 2, H, D)."""
        return self.kv(states.flatten(0, 1)).view(*states.shape[:2], 2, self.heads, -1)

    def __call__(self, x: Tensor, written: Tensor, read: Tensor, state: BeamCache) -> Tensor:
        """x (B·K, W), which is overwritten → (B·K, W)."""
        around = self.around_attention
        x = around.after(x, self._own(around.before(x), written, state.length))
        around = self.around_cross_attention
        x = around.after(x, self._cross(around.before(x), read, state.lengths))
        around = self.around_feedforward
        inner = self.up(around.before(x))  # (B·K, hidden)
        return around.after(x, inner.relu_() if self.activation is F.relu else self.activation(inner))

    def _own(self, x: Tensor, written: Tensor, last: int) -> Tensor:
        """The context of self-attention, (B·K, W); keys and values of this position are written at `last`."""
        qkv = self.qkv(x).view(len(x), 3, self.heads, -1)  # (B·K, 3, H, D)
        if self.position is not None:
            placed = self.position(qkv[:, :2].unsqueeze(3), last).squeeze(3)  # (B·K, 2, H, D)
            q, written[:, last, 0], written[:, last, 1] = placed[:, 0], placed[:, 1], qkv[:, 2]
        else:
            q, written[:, last] = qkv[:, 0], qkv[:, 1:]
        k, v = (y.transpose(1, 2) for y in written[:, : last + 1].unbind(2))  # (B·K, H, length, D) each
        context = _context(self.attention, q.unsqueeze(2), k, v, similarity=self.similarities[0])
        return context.reshape(len(x), -1)

    def _cross(self, x: Tensor, read: Tensor, lengths: Tensor) -> Tensor:
        """The context of cross-attention, (B·K, W); a sentence's keys serve all its hypotheses."""
        q = self.query(x).view(len(read), -1, self.heads, read.shape[-1]).transpose(1, 2)  # (B, H, K, D)
        k, v = (y.transpose(1, 2) for y in read.unbind(2))  # (B, H, Ts, D) each
        context = _context(self.cross_attention, q, k, v, similarity=self.similarities[1], lengths=lengths)
        return context.transpose(1, 2).reshape(len(x), -1)


def _context(attention: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`attend` on behalf of `attention`: `regard.watch` finds the module in this frame, and names it."""
    context: Tensor = attend(q, k, v, **options)
    return context


def _packed_context(attention: MultiHeadAttention, qkv: Tensor, lengths: Tensor) -> Tensor:
    """`attend_packed` on behalf of `attention`, (N, 3·W) → (N, W); see `_context`."""
    q, k, v = qkv.view(len(qkv), 3, attention.heads, -1).unbind(1)  # (N, H, D) each
    context: Tensor = attend_packed(q, k, v, lengths)
    return context.flatten(1)


def _transposed(weight: Tensor, contiguous: bool) -> Tensor:
    """(out, W) → (W, out), a copy in this order of memory if `contiguous`."""
    return weight.T.contiguous() if contiguous else weight.T


def _plain(model: Any) -> bool:
    """Whether its decoder is made of the parts that are known here, none of them a subclass, hooked or without bias.

    The last layer has no bias.
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
        and all(one.attend is attend and one.kv_heads == one.heads for one in attentions)
        and not any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        and not any(isinstance(part, nn.Linear) and part.bias is None for part in inside)
        and type(last) is nn.Linear
        and last.bias is None
    )
