"""A `Bert` for inference: the same numbers with no padding and fewer passes over memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import attend_packed
from ..attention.native.fused import gelu_
from ..attention.packed import places
from ..layers import EncoderBlock, FeedForward, MultiHeadAttention
from ..layers.residual import add_norm_
from .bert import Bert


class Inference:
    """Encodes texts that lie one after the other, each as long as it is.

        a a a a b b b b c c d d e        lengths 4 4 2 2 1

    Linear layers and norms see all tokens as one matrix (N, W), attention sees each text (`attend_packed`). Queries,
    keys and values are one product with their weights laid side by side; sums and products are written into the same
    few buffers in every block and every call, since memory that is new costs a page fault for each 4 KiB, up to a fifth
    of the time of a product here. So one object serves one thread.

    The weights are those of `bert` when it was made, in part copied; changes afterwards are not seen. There is no
    dropout, whatever the mode of `bert`.

    >>> from .bert import BertConfig
    >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)).eval()
    >>> ids = torch.randint(1, 50, (13,))
    >>> hidden = Inference(bert)(ids, [4, 4, 2, 2, 1])                    # (13, 12)
    >>> torch.allclose(hidden[4:8], bert(ids[None, 4:8])[0], atol=1e-6)
    True
    """

    @torch.inference_mode()
    def __init__(self, bert: Bert) -> None:
        self.bert = bert
        # every text here is a first segment
        self._places = bert.positions.weight + bert.segments.weight[0]
        self._space = self._places.new_empty(0)
        self._blocks = [_Block(block) for block in bert.blocks if isinstance(block, EncoderBlock)]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """ids (N,) of texts of `lengths`, which add up to N → hidden (N, W)."""
        assert sum(lengths) == len(ids), f"{sum(lengths)} tokens in lengths, {len(ids)} ids"
        texts = torch.tensor(lengths, dtype=torch.int64)  # (B,)
        bert, width = self.bert, self.bert.config.width
        place = places(texts, len(ids)).to(ids.device)  # (N,)
        x = F.embedding(ids, bert.tokens.weight).add_(F.embedding(place, self._places))  # (N, W)
        x = F.layer_norm(x, (width,), bert.norm.weight, bert.norm.bias, bert.norm.eps)
        sizes = [len(ids) * n for n in (max(3 * width, bert.config.hidden), width, width)]
        if self._space.numel() < sum(sizes):
            self._space = x.new_empty(sum(sizes))
        wide, *narrow = self._space[: sum(sizes)].split(sizes)
        for block in self._blocks:
            x = block(x, texts, wide, [room.view_as(x) for room in narrow])
        return x.clone()  # the next call has the room


class _Block:
    """An encoder block with normalisation after each part."""

    def __init__(self, block: EncoderBlock) -> None:
        attention, feedforward = block.attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        linears = (attention.query, attention.key, attention.value)
        self.attention = attention
        self.qkv = torch.cat([linear.weight for linear in linears]).T, torch.cat([linear.bias for linear in linears])
        self.out = attention.out.weight.T, attention.out.bias
        self.up = feedforward.up.weight.T, feedforward.up.bias
        self.down = feedforward.down.weight.T, feedforward.down.bias
        self.activation = feedforward.activation
        self.norms = [around.norm for around in (block.around_attention, block.around_feedforward)]

    def __call__(self, x: Tensor, lengths: Tensor, wide: Tensor, narrow: Sequence[Tensor]) -> Tensor:
        """x (N, W) → (N, W), by way of a buffer of N times the widest, into the second of two (N, W)."""
        weight, bias = self.qkv
        qkv = torch.mm(x, weight, out=_shaped(wide, len(x), len(bias))).add_(bias)  # (N, 3·W)
        context = _context(self.attention, qkv, lengths)  # (N, W)
        x = self._add(x, context, self.out, self.norms[0], narrow[0])  # (N, W)
        weight, bias = self.up
        h = torch.mm(x, weight, out=_shaped(wide, len(x), len(bias)))  # (N, hidden)
        h = gelu_(h, bias, h) if self.activation is F.gelu else self.activation(h.add_(bias))
        return self._add(x, h, self.down, self.norms[1], narrow[1])  # (N, W)

    def _add(self, x: Tensor, y: Tensor, linear: tuple[Tensor, Tensor], norm: nn.Module, room: Tensor) -> Tensor:
        """norm(x + b + W·y)"""
        assert isinstance(norm, nn.LayerNorm)
        weight, bias = linear
        return add_norm_(x, torch.mm(y, weight, out=room), bias, norm)  # (N, W)


def _context(attention: MultiHeadAttention, qkv: Tensor, lengths: Tensor) -> Tensor:
    """The context of `attention`, (N, 3·W) → (N, W). `regard.watch` finds the module in this frame, and names it."""
    q, k, v = qkv.view(len(qkv), 3, attention.heads, -1).unbind(1)  # (N, H, D) each
    context: Tensor = attend_packed(q, k, v, lengths)
    return context.flatten(1)


def _shaped(buffer: Tensor, rows: int, columns: int) -> Tensor:
    return buffer[: rows * columns].view(rows, columns)
