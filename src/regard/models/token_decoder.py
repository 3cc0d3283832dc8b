"""The interface of language models that generate token by token, and their state between two steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from ..layers.cache import Cache


class DecoderState(Protocol):
    """State of a decoder between two steps, for B texts."""

    def reorder(self, index: Tensor) -> None:
        """Continue with the texts `index` (B',), in that order."""

    def truncate(self, lengths: int | Tensor) -> None:
        """Keep only the first tokens of each text: as many for all texts, or `lengths[b]` (B,) for text b."""


State = TypeVar("State", bound=DecoderState)


class Decoder(Protocol[State]):
    """A language model that reads one token per text and step. `GPT` is one.

    >>> import torch
    >>> from regard.models import GPT, GPTConfig
    >>> decoder: Decoder[CachedState] = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
    >>> state, logits = decoder.begin(torch.tensor([[1, 2, 3]]))
    >>> logits = decoder.step(logits.argmax(-1), state)                 # (1, 50)
    >>> decoder.longest
    16
    """

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens that it can read; None if there is no limit."""

    def begin(self, ids: Tensor, lengths: Tensor | None = None, *, capacity: int = 64) -> tuple[State, Tensor]:
        """Read prompts (B, T), padded on the right, of lengths (B,). Return a state and the next logits (B, V)."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Read the next token (B,) of each text, and return the logits of the one after it, (B, V)."""


@dataclass(frozen=True)
class CachedState:
    """The caches of all blocks of a model: a `DecoderState`."""

    caches: list[Cache]

    def reorder(self, index: Tensor) -> None:
        for cache in self.caches:
            cache.reorder(index)

    def truncate(self, lengths: int | Tensor) -> None:
        for cache in self.caches:
            cache.truncate(lengths)
