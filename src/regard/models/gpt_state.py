"""The state of a `FastGPT` between two steps: keys and values of all tokens of B texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..attention.step_report import DecodingStep
from ..layers import EncoderBlock, MultiHeadAttention

if TYPE_CHECKING:
    from .gpt import GPT

Caches = tuple[Tensor, Tensor]
"""Keys and values, (B, kv_heads, capacity, D) each. A head's keys are contiguous, so that attention reads a stream."""


class BoundBlock(NamedTuple):
    """The calls of one block at a step. They refer to memory, not to the state, which may then be freed at once."""

    before: Sequence[Callable[[], None]]
    attention: Callable[[GPTState], None]
    after: Sequence[Callable[[], None]]
    query: Tensor
    """(B, heads, 1, D): the queries of the latest step."""


class BoundStep(NamedTuple):
    """The calls of all blocks at a step."""

    x: Tensor
    """(B, W): the input of the first block, which becomes the output of the last."""
    blocks: Sequence[BoundBlock]
    step: DecodingStep
    """The report to observers of the step."""


class GPTState:
    """Keys and values of B texts, in memory for `capacity` tokens each. Texts may differ in length.

    The next token of a text follows its last one, and attention does not read beyond it.

        text 0   ■ ■ ■ ■ ■ ■ · ·
        text 1   ■ ■ ■ · · · · ·
    """

    def __init__(self, caches: dict[MultiHeadAttention, Caches], lengths: Tensor) -> None:
        self.caches = caches
        self.lengths = lengths
        """(B,), int64: number of tokens of each text. Steps change it in place."""
        self.length = 0
        """Number of tokens of the longest text."""
        self.ragged = False
        """Whether the lengths differ."""
        self.written = 0
        """Number of positions that were ever written. Watched maps may refer to them."""
        self.bound: BoundStep | None = None
        """The calls of a step; None if they must be prepared again."""
        self.set_lengths(lengths)

    @classmethod
    def allocate(cls, model: GPT, batch: int, capacity: int) -> GPTState:
        """Return the state of empty texts."""
        weight, caches = model.tokens.weight, {}
        for block in model.blocks:
            assert isinstance(block, EncoderBlock)
            attention = block.attention
            sizes = (batch, attention.kv_heads, capacity, attention.width // attention.heads)
            caches[attention] = weight.new_zeros(sizes), weight.new_zeros(sizes)
        return cls(caches, torch.zeros(batch, dtype=torch.int64, device=weight.device))

    @property
    def capacity(self) -> int:
        """Number of tokens of a text for which there is memory."""
        return min(key.shape[2] for key, _ in self.caches.values())

    def set_lengths(self, lengths: Tensor) -> None:
        """Replace the lengths, (B,)."""
        numbers: list[int] = lengths.tolist()
        self.lengths, self.bound = lengths, None
        self.length, self.ragged = max(numbers, default=0), len(set(numbers)) > 1

    @property
    def overwrites(self) -> bool:
        """Whether the next token of a text is written to a position that was in use before."""
        return self.ragged or self.length < self.written

    def advance(self) -> None:
        """Count one more token of each text."""
        self.lengths.add_(1)
        self.length += 1
        self.written = max(self.written, self.length)

    def truncate(self, lengths: int | Tensor) -> None:
        """Keep only the first tokens of each text: as many for all texts, or `lengths[b]` (B,) for text b.

        Raises:
            ValueError: if a length is negative or above the current one.
        """
        wanted = torch.as_tensor(lengths, dtype=torch.int64, device=self.lengths.device)
        if bool(((wanted < 0) | (wanted > self.lengths)).any()):
            raise ValueError(
                f"gpt: lengths ({wanted.tolist()}) must lie in 0…{self.lengths.tolist()}, the tokens that were read."
            )
        self.set_lengths(wanted.expand_as(self.lengths).clone())

    def reorder(self, index: Tensor) -> None:
        """Continue with the texts `index` (B',), in that order."""
        with torch.inference_mode(False), torch.no_grad():
            index = index.to(self.lengths.device).clone()
            for attention, (key, value) in self.caches.items():
                self.caches[attention] = key.index_select(0, index), value.index_select(0, index)
            self.set_lengths(self.lengths.index_select(0, index))

    def reserve(self, count: int) -> None:
        """Make sure that there is memory for `count` more tokens of each text. The capacity at least doubles."""
        if self.length + count <= self.capacity:
            return
        capacity = max(self.length + count, 2 * self.capacity)
        for attention, caches in self.caches.items():
            self.caches[attention] = _grown(caches[0], capacity), _grown(caches[1], capacity)
        self.bound = None

    def append(self, attention: MultiHeadAttention, new: Tensor) -> None:
        """Write keys and values of one token per text, (B, 1, 2·kv_heads, D), by operators that an observer sees."""
        for cache, part in zip(self.caches[attention], new.tensor_split(2, 2), strict=True):
            if self.ragged:
                cache[torch.arange(len(new), device=new.device), :, self.lengths] = part.squeeze(1)  # (B, kv_heads, D)
            else:
                cache[:, :, self.length : self.length + 1] = part.transpose(1, 2)  # (B, kv_heads, 1, D)


def _grown(cache: Tensor, capacity: int) -> Tensor:
    """Return a copy with memory for more tokens."""
    grown = cache.new_zeros(*cache.shape[:2], capacity, cache.shape[3])
    grown[:, :, : cache.shape[2]] = cache
    return grown
