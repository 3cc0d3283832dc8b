"""Batches for language models: windows of consecutive tokens, and the tokens that follow each position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .epoch_batches import EpochBatches, TensorBatch, generator


@dataclass(frozen=True)
class TokenBatch(TensorBatch):
    """A batch of windows of equal length."""

    ids: Tensor
    """(B, T) int64: input of the model."""
    targets: Tensor
    """(B, T) int64: the next token at each position."""

    def __len__(self) -> int:
        return len(self.ids)


class TokenWindows(EpochBatches[TokenBatch]):
    """Random windows of a text. An epoch has as many windows as fit into the text side by side.

    The windows of a batch are a function of (seed, epoch, number of the batch).

    Args:
        ids: the text: (N,), N > context.
        context: number of tokens T of a window.
        batch: number of windows in a batch.
        seed: seed of the random positions.

    Raises:
        ValueError: if the text is too short.

    >>> windows = TokenWindows(np.arange(50, dtype=np.uint16), context=4, batch=3)
    >>> batch = next(windows.epoch(0))
    >>> tuple(batch.ids.shape), bool((batch.targets == batch.ids + 1).all()), windows.count(0)
    ((3, 4), True, 4)
    """

    def __init__(self, ids: np.ndarray, context: int, batch: int, *, seed: int = 0) -> None:
        if len(ids) <= context:
            raise ValueError(
                f"data: training text ({len(ids):,} tokens) must be longer than context ({context}). Try more text, or "
                f"--context {max(1, len(ids) // 2)}."
            )
        self.ids, self.context, self.batch_size, self.seed = ids, context, batch, seed
        self.windows = len(ids) // context

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """Return the start positions of the windows of each batch, drawn when they are accessed."""
        return _Starts(self, epoch)

    def count(self, epoch: int) -> int:
        return math.ceil(self.windows / self.batch_size)

    def batch(self, indices: np.ndarray) -> TokenBatch:
        """Return the windows that begin at these positions."""
        return windows_at(self.ids, indices, self.context)


class _Starts(Sequence[np.ndarray]):
    """The start positions of an epoch. A text of a billion tokens has too many to draw them all at once."""

    def __init__(self, windows: TokenWindows, epoch: int) -> None:
        self.windows, self.epoch = windows, epoch

    def __len__(self) -> int:
        return self.windows.count(self.epoch)

    def __getitem__(self, number: Any) -> Any:
        windows = self.windows
        size = min(windows.batch_size, windows.windows - number * windows.batch_size)
        return generator(windows.seed, self.epoch, number).integers(len(windows.ids) - windows.context, size=size)


def windows_at(ids: np.ndarray, starts: np.ndarray, context: int) -> TokenBatch:
    """Return the windows of `context` tokens at `starts`, and their next tokens."""
    tokens = torch.from_numpy(ids[starts[:, None] + np.arange(context + 1)].astype(np.int64))  # (B, T + 1)
    return TokenBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())  # (B, T) each


def consecutive_windows(
    ids: np.ndarray, context: int, batch: int, most_tokens: int | None = None
) -> Iterator[TokenBatch]:
    """Iterate over a text in windows side by side. Every token but the first is predicted once.

    With `most_tokens`, only about that many tokens are predicted, in windows at equal distances.

    >>> [batch.targets.tolist() for batch in consecutive_windows(np.arange(12), context=4, batch=2)]
    [[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11]]]
    >>> [batch.targets.tolist() for batch in consecutive_windows(np.arange(25), context=4, batch=2, most_tokens=8)]
    [[[1, 2, 3, 4], [13, 14, 15, 16]]]
    """
    whole, rest = divmod(len(ids) - 1, context)
    chosen = whole if most_tokens is None else min(whole, max(1, most_tokens // context))
    starts = np.arange(chosen) * whole // max(1, chosen) * context
    for start in range(0, chosen, batch):
        yield windows_at(ids, starts[start : start + batch], context)
    if rest and (chosen == 0 or (chosen == whole and (most_tokens is None or most_tokens >= len(ids) - 1))):
        yield windows_at(ids, np.array([whole * context]), rest)
