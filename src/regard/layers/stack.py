"""Stacks of encoder or decoder blocks, over a batch that is packed first if it has padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import AttentionMap
from ..attention.packed import token_positions
from ..attention.packing import pack, padded, unpack
from ..core.trace import trace_step
from .blocks import DecoderBlock
from .cache import Cache, DecoderCache
from .residual import part_result


@dataclass(frozen=True)
class BatchLayout:
    """Storage of the tokens of a batch: padded, (B, T, …), or packed, (N, …), without padding.

    >>> layout = BatchLayout.of(torch.zeros(2, 3), torch.tensor([3, 1]))
    >>> x = layout.pack(torch.arange(6).view(2, 3))
    >>> x, layout.positions, layout.unpack(x)
    (tensor([0, 1, 2, 3]), tensor([0, 1, 2, 0]), tensor([[0, 1, 2],
            [3, 0, 0]]))
    """

    lengths: Tensor | None
    """(B,): number of tokens of each sequence; None if all have T."""
    longest: int
    """T."""
    packed: Tensor | None
    """The lengths on the CPU, where the blocks read them, if the batch is packed; else None."""

    @classmethod
    def of(cls, x: Tensor, lengths: Tensor | None) -> BatchLayout:
        """Return the layout of a batch (B, T, …): packed if it has padding and its lengths can be read."""
        return cls.all_of((x, lengths))[0]

    @classmethod
    def all_of(cls, *batches: tuple[Tensor, Tensor | None]) -> list[BatchLayout]:
        """Return the layouts of batches (B, T, …) that attend to each other: all packed if one has padding, or none.

        None is packed if one has no lengths.
        """
        known = [(x, lengths) for x, lengths in batches if lengths is not None]
        if len(known) < len(batches) or not padded(*known):
            return [cls(lengths, x.shape[1], None) for x, lengths in batches]
        return [cls(lengths, x.shape[1], lengths.to("cpu", torch.int64)) for x, lengths in known]

    def pack(self, x: Tensor) -> Tensor:
        """Convert (B, T, …) to (N, …), or return x itself if the batch is not packed."""
        return x if self.packed is None else pack(x, self._valid).values

    def unpack(self, x: Tensor) -> Tensor:
        """Convert (N, …) to (B, T, …) with zeros in padding, or return x itself if the batch is not packed."""
        return x if self.packed is None else unpack(x, self._valid, self.longest)

    @property
    def positions(self) -> Tensor | None:
        """(N,): the position of each token in its sequence; None if the batch is not packed."""
        return None if self.packed is None else token_positions(self._valid, int(self.packed.sum()))

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of an `EncoderBlock`."""
        return {"lengths": self.lengths} if self.packed is None else {"packed": self.packed}

    @property
    def _valid(self) -> Tensor:
        assert self.lengths is not None
        return self.lengths.to(torch.int64)


def run_encoder(
    blocks: Iterable[nn.Module],
    x: Tensor,
    layout: BatchLayout,
    *,
    is_causal: bool = False,
    caches: Sequence[Cache] | None = None,
    first_token: bool = False,
    return_maps: bool = False,
) -> tuple[Tensor, list[AttentionMap]]:
    """Return the output of the last encoder block, and the map of each block, (B, H, T, T), if requested.

    Args:
        blocks: `EncoderBlock` or modules that are called in the same way.
        x: (B, T, W) or (N, W), depending on the layout; the output has the same layout.
        layout: layout of x.
        is_causal: no token attends to a later one, as in a language model. Not together with first_token.
        caches: keys and values of earlier tokens, one per block, to which this call adds its own. The layout must not
            be packed.
        first_token: the last block computes only the first token of each sequence, (B, W), for models that read
            nothing else. No sequence may be empty.
        return_maps: return the maps; otherwise the list is empty.

    >>> from .blocks import EncoderBlock
    >>> from .feedforward import FeedForward
    >>> from .multihead import MultiHeadAttention
    >>> blocks = [EncoderBlock(MultiHeadAttention(12, 3), FeedForward(12, 48)) for _ in range(2)]
    >>> x = torch.randn(2, 5, 12)
    >>> layout = BatchLayout.of(x, torch.tensor([5, 3]))
    >>> y, maps = run_encoder(blocks, layout.pack(x), layout, return_maps=True)
    >>> tuple(layout.unpack(y).shape), [m.shape for m in maps]
    ((2, 5, 12), [(2, 3, 5, 5), (2, 3, 5, 5)])
    """
    remaining: list[Any] = list(blocks)
    last = remaining.pop() if first_token else None
    options = layout.options | {"return_map": return_maps, "is_causal": is_causal}
    assert not (is_causal and first_token), "a first token without later ones attends to itself alone"
    assert caches is None or layout.packed is None, "packed sequences have no cache"
    maps: list[Any] = []
    for index, block in enumerate(remaining):
        cache = None if caches is None else caches[index]
        x, attention_map = part_result(block(x, cache=cache, **options))
        maps.append(attention_map)
    if last is not None:
        x, attention_map = part_result(last.first(x, packed=layout.packed, return_map=return_maps))
        maps.append(attention_map)
    return x, _padded(maps, layout, layout) if return_maps else []


def run_decoder(
    blocks: Iterable[nn.Module],
    x: Tensor,
    memory: Tensor,
    layout: BatchLayout,
    memory_layout: BatchLayout,
    *,
    return_maps: bool = False,
) -> tuple[Tensor, list[AttentionMap]]:
    """Return the output of the last decoder block, and the map of each cross-attention, (B, H, T, Tm), if requested.

    x and the output have the layout `layout`, memory has `memory_layout`: both are packed, or neither.
    """
    if layout.packed is None or memory_layout.packed is None:
        # no token attends to a later one, so none attends to padding: the lengths of x are not needed
        options: dict[str, Any] = {"memory_lengths": memory_layout.lengths}
    else:
        options = {"packed": (layout.packed, memory_layout.packed)}
    maps: list[Any] = []
    for block in blocks:
        x, block_maps = part_result(block(x, memory, **options, return_maps=return_maps))
        maps.append(block_maps)
    return x, _padded([block_maps.cross_attention for block_maps in maps], layout, memory_layout) if return_maps else []


def step_decoder(
    blocks: Iterable[nn.Module], x: Tensor, memory: Tensor, lengths: Tensor, caches: Sequence[DecoderCache]
) -> Tensor:
    """Compute the next position of K hypotheses of each of B sequences: (B·K, 1, W) → (B·K, 1, W).

    All hypotheses of a sequence share memory (B, Tm, W) and its lengths (B,).
    """
    for block, cache in zip(blocks, caches, strict=True):
        assert isinstance(block, DecoderBlock)
        with trace_step("block", block):
            x, _ = block.around_attention(x, block.attention, cache=cache.attention)
            x = x.view(len(memory), -1, x.shape[-1])  # (B, K, W)
            x, _ = block.around_cross_attention(
                x, block.cross_attention, memory, lengths=lengths, cache=cache.cross_attention
            )
            x = x.view(-1, 1, x.shape[-1])  # (B·K, 1, W)
            x, _ = block.around_feedforward(x, block.feedforward)
    return x


def _padded(maps: Sequence[Any], queries: BatchLayout, keys: BatchLayout) -> list[AttentionMap]:
    """Convert maps to (B, H, Tq, Tk), also those of packed sequences."""
    return [
        attention_map if queries.packed is None else attention_map.padded(queries.longest, keys.longest)
        for attention_map in maps
    ]
