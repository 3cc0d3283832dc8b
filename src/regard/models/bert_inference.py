"""A `Bert` for inference: the same numbers with no padding and fewer passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import attend
from ..layers import EncoderBlock, FeedForward
from .bert import Bert

Run = tuple[int, int, int]
"""Texts of one length, side by side: where their tokens begin, how many texts, how long."""


class Inference:
    """Encodes texts that lie one after the other, each as long as it is.

        a a a a b b b b c c d d e        lengths 4 4 2 2 1: three runs, of 2, 2 and 1 texts

    Linear layers and norms see all tokens as one matrix (N, W); attention sees each run of equal lengths as a batch
    without padding. Queries, keys and values are one product with their weights laid side by side; sums and products
    are written into the same few buffers in every block, since memory that is new costs a page fault for each 4 KiB,
    up to a fifth of the time of a product here.

    The weights are those of `bert` when it was made, in part copied; changes afterwards are not seen. For a
    `Bert` without dropout of its own, as it is in evaluation mode.

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
        self._blocks = [_Block(block) for block in bert.blocks if isinstance(block, EncoderBlock)]

    @torch.inference_mode()
    def __call__(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """ids (N,) of texts of `lengths`, which add up to N; equal ones side by side → hidden (N, W)."""
        assert sum(lengths) == len(ids), f"{sum(lengths)} tokens in lengths, {len(ids)} ids"
        runs = runs_of(lengths)
        bert, width = self.bert, self.bert.config.width
        place = torch.cat([torch.arange(length, device=ids.device).repeat(count) for _, count, length in runs])  # (N,)
        x = F.embedding(ids, bert.tokens.weight).add_(F.embedding(place, self._places))  # (N, W)
        x = F.layer_norm(x, (width,), bert.norm.weight, bert.norm.bias, bert.norm.eps)
        wide = x.new_empty(len(ids) * max(3 * width, bert.config.hidden))
        narrow = torch.empty_like(x)
        for block in self._blocks:
            x = block(x, runs, wide, narrow)
        return x


class _Block:
    """An encoder block with normalisation after each part."""

    def __init__(self, block: EncoderBlock) -> None:
        attention, feedforward = block.attention, block.feedforward
        assert isinstance(feedforward, FeedForward)
        linears = (attention.query, attention.key, attention.value)
        self.heads = attention.heads
        self.qkv = torch.cat([linear.weight for linear in linears]).T, torch.cat([linear.bias for linear in linears])
        self.out = attention.out.weight.T, attention.out.bias
        self.up = feedforward.up.weight.T, feedforward.up.bias
        self.down = feedforward.down.weight.T, feedforward.down.bias
        self.activation = feedforward.activation
        self.norms = block.around_attention.norm, block.around_feedforward.norm

    def __call__(self, x: Tensor, runs: Sequence[Run], wide: Tensor, narrow: Tensor) -> Tensor:
        weight, bias = self.qkv
        qkv = torch.addmm(bias, x, weight, out=_shaped(wide, len(x), len(bias)))  # (N, 3·W)
        x = self._add(x, self._attend(qkv, runs, x), self.out, narrow, 0)  # (N, W)
        weight, bias = self.up
        h = torch.addmm(bias, x, weight, out=_shaped(wide, len(x), len(bias)))  # (N, hidden)
        h = torch._C._nn.gelu_(h) if self.activation is F.gelu else self.activation(h)
        return self._add(x, h, self.down, narrow, 1)  # (N, W)

    def _attend(self, qkv: Tensor, runs: Sequence[Run], like: Tensor) -> Tensor:
        context = torch.empty_like(like)  # (N, W)
        for start, count, length in runs:
            part = slice(start, start + count * length)
            split = qkv[part].view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
            seen = attend(*split.unbind(0))  # (B, H, T, D)
            context[part].view(count, length, self.heads, -1).copy_(seen.transpose(1, 2))
        return context

    def _add(self, x: Tensor, y: Tensor, linear: tuple[Tensor, Tensor], narrow: Tensor, norm: int) -> Tensor:
        """norm(x + W·y + b): the product is added to what is already in the buffer."""
        weight, bias = linear
        summed = torch.add(x, bias, out=narrow).addmm_(y, weight)  # (N, W)
        made: Tensor = self.norms[norm](summed)
        return made


def runs_of(lengths: Sequence[int]) -> list[Run]:
    """Neighbours of equal length.

    >>> runs_of([4, 4, 2, 2, 1])
    [(0, 2, 4), (8, 2, 2), (12, 1, 1)]
    """
    runs, start = [], 0
    for length, group in groupby(lengths):
        count = len(list(group))
        runs.append((start, count, length))
        start += count * length
    return runs


def _shaped(buffer: Tensor, rows: int, columns: int) -> Tensor:
    return buffer[: rows * columns].view(rows, columns)
