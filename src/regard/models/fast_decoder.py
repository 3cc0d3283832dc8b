"""A `Transformer` for search: the same numbers with fewer calls and fewer passes over memory."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import attend
from ..attention.native.decoding import reorder_rows
from ..layers import DecoderBlock, FeedForward, MultiHeadAttention
from ..layers.learned_similarity import asked
from ..layers.residual import Residual
from .encoder_decoder import Memory
from .transformer import Transformer

ROOM = 16
"""Positions that are set aside at a time."""
Affine = tuple[Tensor, Tensor]
"""A product's right side (W, out) and the bias (out,)."""


def swift(model: Any, *, laid: bool = False) -> Any:
    """The model as `Inference`, or the model itself under autocast, or where code of the caller's has to run.

    That is: hooks, subclasses, quantized or otherwise exchanged parts, and modes that see single operators
    (`TorchDispatchMode`). `regard.watch` is none of these: it sees the calls of `Inference`, and changes nothing.
    """
    if (
        torch._C._len_torch_dispatch_stack()
        or torch.is_autocast_enabled(next(model.parameters()).device.type)
        or not _plain(model)
    ):
        return model
    return Inference(model, laid=laid)


class Inference:
    """One step of decoding after another: of an `EncoderDecoder` what a search needs.

    Queries, keys and values of what was written are one product, with their weights laid side by side; so are keys and
    values of what was read. A part's output is added to the way around it by its last product. Keys and values of a
    position lie together, and are reordered together.

    The weights are those of `model` when it was made, in part copied; changes afterwards are not seen. There is no
    dropout. With `laid` all of them are copied, (in, out) in memory: products of a few dozen rows then take two thirds
    of their time, and the copy as long as some steps of a single sentence.

    >>> from .transformer import TransformerConfig
    >>> model = Transformer(TransformerConfig(11, 13, width=8, heads=2, hidden=16)).eval()
    >>> source, lengths, begin = torch.randint(4, 11, (2, 7)), torch.tensor([7, 4]), torch.tensor([2, 2])
    >>> steps = []
    >>> with torch.no_grad():
    ...     for one in (model, Inference(model)):
    ...         state = one.begin(one.encode(source, lengths))
    ...         steps.append(one.step(begin, state)[0])                     # (2, 13)
    >>> torch.allclose(*steps, atol=1e-6)
    True
    """

    training = False

    @torch.no_grad()
    def __init__(self, model: Transformer, *, laid: bool = False) -> None:
        self.model, self.longest = model, model.longest
        self._blocks = [_Block(block, laid) for block in model.decoder if isinstance(block, DecoderBlock)]
        self._vocabulary = _right(model.vocabulary.weight, laid)

    def eval(self) -> Inference:
        return self

    def train(self, mode: bool) -> None:
        assert not mode, "made for inference"

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        return self.model.encode(source, lengths)

    def begin(self, memory: Memory) -> _State:
        return _State(memory.lengths, [block.read(memory.states) for block in self._blocks])

    def step(self, tokens: Tensor, state: _State) -> tuple[Tensor, _State]:
        """tokens (B·K,) → logits (B·K, V) of the next, and the next state."""
        model = self.model
        x = model._embed(model.target, model.target_position, tokens[:, None], state.length).squeeze(1)  # (B·K, W)
        state.extend(x, self._blocks[0].heads)
        for block, written, read in zip(self._blocks, state.written, state.read, strict=True):
            x = block(x, written, read, state)
        state.length += 1
        return model.decoder_norm(x) @ self._vocabulary, state


@dataclass
class _State:
    """Between steps: B sentences with K hypotheses each."""

    lengths: Tensor
    """(B,): source tokens that count."""
    read: list[Tensor]
    """Keys and values of the source, of each block: (B, Ts, 2, H, D)."""
    written: list[Tensor] = field(default_factory=list)
    """Of what was written: (B·K, room, 2, H, D), of which `length` positions hold something."""
    writers: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int32))
    """(B·K, room): the row that a position was written in. Where two rows have the same writer, they hold the same."""
    length: int = 0

    def extend(self, x: Tensor, heads: int) -> None:
        """Make room for one position more of each row of x (B·K, W)."""
        if not self.written:
            sizes = (len(x), ROOM, 2, heads, x.shape[1] // heads)
            self.written = [x.new_empty(sizes) for _ in self.read]
            self.writers = torch.empty(sizes[:2], dtype=torch.int32, device=x.device)
        elif self.length == self.written[0].shape[1]:
            self._take(torch.arange(len(x), device=x.device))
        self.writers[:, self.length] = torch.arange(len(x), device=x.device)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        count = len(self.read[0] if sentences is None else sentences)
        if not count or not self._move(rows, len(rows) // count):
            self._take(rows)
        if sentences is None:
            return
        self.lengths = self.lengths.index_select(0, sentences)
        moved = (sentences != torch.arange(count, device=sentences.device)).nonzero().flatten()
        for held in self.read:
            held[moved] = held.index_select(0, sentences[moved])
        self.read = [held[:count] for held in self.read]

    def _move(self, rows: Tensor, each: int) -> bool:
        """Go on from these rows where they are, copying only what they do not hold already; whether that could be done.

        `each` of them belong to a sentence. See `reorder_rows`.
        """
        if self.length == self.writers.shape[1]:
            return False
        if torch._C._len_torch_function_stack():  # `regard.watch` may hold these keys, and would not see them move
            return False
        tables = (self.writers, *self.written)
        if not reorder_rows(tables, rows, each=each, length=self.length):
            return False
        self.writers, *self.written = (table[: len(rows)] for table in tables)
        return True

    def _take(self, rows: Tensor) -> None:
        """Go on from copies of these rows, with room for the next position; what is beyond the length is not copied."""
        sizes = (len(rows), (self.length // ROOM + 1) * ROOM, *self.written[0].shape[2:])
        places = [held.new_empty(sizes) for held in self.written]
        stretch = self.length * math.prod(sizes[2:])  # as matrices: a row is one stretch of memory, copied as such
        for held, place in zip(self.written, places, strict=True):
            torch.index_select(held.flatten(1)[:, :stretch], 0, rows, out=place.flatten(1)[:, :stretch])
        writers = self.writers.new_empty(sizes[:2])
        writers[:, : self.length] = self.writers[:, : self.length].index_select(0, rows)
        self.written, self.writers = places, writers


class _Block:
    """A decoder block with plain parts."""

    def __init__(self, block: DecoderBlock, laid: bool) -> None:
        own, cross, feedforward = block.attention, block.cross_attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        self.heads, self.position = own.heads, own.position
        self.attention, self.cross_attention = own, cross
        self.similarities = asked(own.similarity), asked(cross.similarity)
        affine = functools.partial(_affine, laid=laid)
        self.qkv, self.out = affine(own.query, own.key, own.value), affine(own.out)
        self.query, self.kv, self.cross_out = affine(cross.query), affine(cross.key, cross.value), affine(cross.out)
        self.up, self.down, self.activation = affine(feedforward.up), affine(feedforward.down), feedforward.activation
        arounds = block.around_attention, block.around_cross_attention, block.around_feedforward
        self.norms, self.norm_first = [around.norm for around in arounds], block.around_attention.norm_first

    def read(self, states: Tensor) -> Tensor:
        """Keys and values of the source: (B, Ts, W) → (B, Ts, 2, H, D)."""
        found = _product(states.flatten(0, 1), self.kv)  # (B·Ts, 2·W)
        return found.view(*states.shape[:2], 2, self.heads, -1)

    def __call__(self, x: Tensor, written: Tensor, read: Tensor, state: _State) -> Tensor:
        """x (B·K, W), which is overwritten → (B·K, W)."""
        for norm, part in zip(self.norms, (self._own, self._cross, self._forward), strict=True):
            inner, (last, bias) = part(norm(x) if self.norm_first else x, written, read, state)
            x = x.add_(bias).addmm_(inner, last)
            x = x if self.norm_first else norm(x)
        return x

    def _own(self, x: Tensor, written: Tensor, read: Tensor, state: _State) -> tuple[Tensor, Affine]:
        rows, last = len(x), state.length
        qkv = _product(x, self.qkv).view(rows, 3, self.heads, -1)  # (B·K, 3, H, D)
        if self.position is not None:
            placed = self.position(qkv[:, :2].unsqueeze(3), last).squeeze(3)  # (B·K, 2, H, D)
            q, written[:, last, 0], written[:, last, 1] = placed[:, 0], placed[:, 1], qkv[:, 2]
        else:
            q, written[:, last] = qkv[:, 0], qkv[:, 1:]
        k, v = written[:, : last + 1].unbind(2)  # (B·K, length, H, D) each
        k, v = k.transpose(1, 2), v.transpose(1, 2)  # (B·K, H, length, D) each
        found = _attend(self.attention, q.unsqueeze(2), k, v, similarity=self.similarities[0])
        return found.reshape(rows, -1), self.out

    def _cross(self, x: Tensor, written: Tensor, read: Tensor, state: _State) -> tuple[Tensor, Affine]:
        sentences = len(read)  # a sentence's keys serve all its hypotheses
        q = _product(x, self.query).view(sentences, -1, self.heads, read.shape[-1])  # (B, K, H, D)
        k, v = (y.transpose(1, 2) for y in read.unbind(2))  # (B, H, Ts, D) each
        how: dict[str, Any] = {"similarity": self.similarities[1], "lengths": state.lengths}
        found = _attend(self.cross_attention, q.transpose(1, 2), k, v, **how)  # (B, H, K, D)
        return found.transpose(1, 2).reshape(len(x), -1), self.cross_out

    def _forward(self, x: Tensor, written: Tensor, read: Tensor, state: _State) -> tuple[Tensor, Affine]:
        inner = _product(x, self.up)
        return inner.relu_() if self.activation is F.relu else self.activation(inner), self.down


def _attend(attention: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`attend` on behalf of `attention`: `regard.watch` finds the module in this frame, and names it."""
    context: Tensor = attend(q, k, v, **options)
    return context


def _affine(*layers: nn.Linear, laid: bool) -> Affine:
    if len(layers) == 1:
        return _right(layers[0].weight, laid), layers[0].bias
    return _right(torch.cat([layer.weight for layer in layers]), laid), torch.cat([layer.bias for layer in layers])


def _right(weight: Tensor, laid: bool) -> Tensor:
    """(out, W) → (W, out), in memory too where `laid`."""
    return weight.T.contiguous() if laid else weight.T


def _product(x: Tensor, affine: Affine) -> Tensor:
    return torch.addmm(affine[1], x, affine[0])


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
