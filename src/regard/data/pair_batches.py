"""Batches of about equal size in tokens, with little padding, in an order that is a function of seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

from .corpus import Corpus
from .epoch_batches import EpochBatches, TensorBatch, generator
from .vocabulary import BOS, EOS, PAD

POOL = 200
LARGEST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Batch(TensorBatch):
    """Pairs of a corpus side by side, padded to the longest.

        source          a b c ■        ■ EOS        source_lengths  4
                        d ■ · ·        · PAD                        2
        target        ▸ x y ■          ▸ BOS        target_lengths  3
                      ▸ z ■ ·                                       2

    A decoder reads target[:, :-1] and is to say target[:, 1:].
    """

    source: Tensor
    """(B, Ts) int64, EOS at each end, PAD beyond."""
    source_lengths: Tensor
    """(B,) int64, EOS counted."""
    target: Tensor
    """(B, Tt + 1) int64: BOS, ids, EOS, PAD beyond."""
    target_lengths: Tensor
    """(B,) int64: tokens to be said, EOS counted."""
    indices: Tensor
    """(B,) int64: places in the corpus."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def tokens(self) -> int:
        """Tokens to be said."""
        return int(self.target_lengths.sum())

    @property
    def padding(self) -> float:
        """The share of cells, of source and of what is to be said, that hold padding."""
        cells = self.source.numel() + self.target[:, 1:].numel()
        return 1 - (int(self.source_lengths.sum()) + self.tokens) / cells if cells else 0.0


class Plan(Sequence[np.ndarray]):
    """The batches of an epoch as arrays of places in the corpus: plan[n] is batch n, cut out when asked for.

    Holds four bytes a pair: the places of all pairs, batch after batch, where each batch begins, and their order.
    """

    def __init__(self, places: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> None:
        self._places, self._bounds, self._order = places, bounds, order

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, number: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, number: slice) -> list[np.ndarray]: ...
    def __getitem__(self, number: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(number, slice):
            return [self[n] for n in range(len(self))[number]]
        batch = self._order[number]
        return self._places[self._bounds[batch] : self._bounds[batch + 1]]


class Batches(EpochBatches[Batch]):
    """The batches of a corpus, by token count and length, shuffled; everything is a function of (seed, epoch).

        shuffle pairs → cut into pools of `pool` batches → sort each by length → cut into batches → shuffle those

    In a pool sources go from short to long, and targets of sources of one length up and down by turns, so that
    neighbours are alike on both sides.

    Args:
        corpus: the pairs.
        tokens: bounds the cells of a batch, padding and EOS counted, of source and of target alike; a pair that is
            longer gets a batch of its own.
        seed: of every order.
        shuffle: False keeps one order for all epochs: the whole corpus sorted by length.
        pool: batches that are sorted together: more of them mean less padding and less chance; 0: none are sorted, and
            `tokens` bounds what a batch holds without padding, for models that pack it.

    >>> import tempfile
    >>> pairs = [([5] * (n % 7), [6] * (n % 5)) for n in range(100)]
    >>> batches = Batches(Corpus.write(tempfile.mkdtemp() + "/corpus", pairs), tokens=64)
    >>> plan = batches.plan(epoch=0)
    >>> len(plan), sorted(np.concatenate(plan).tolist()) == list(range(100))
    (9, True)
    >>> batch = next(batches.epoch(0, start=5))
    >>> batch.indices.tolist() == plan[5].tolist(), batch.source.numel() <= 64
    (True, True)
    """

    def __init__(self, corpus: Corpus, tokens: int, *, seed: int = 0, shuffle: bool = True, pool: int = POOL) -> None:
        for name, value, least in (("tokens", tokens, 1), ("seed", seed, 0), ("pool", pool, 0)):
            if value < least:
                raise ValueError(f"batches: {name} ({value}) must be at least {least}.")
        if len(corpus) > LARGEST:
            raise ValueError(f"batches: corpus ({len(corpus):,} pairs) must have at most {LARGEST:,}.")
        self.corpus, self.tokens, self.seed, self.shuffle, self.pool = corpus, tokens, seed, shuffle, pool
        self._plans: dict[int, Plan] = {}

    def plan(self, epoch: int) -> Plan:
        """The batches of an epoch, the same for every rank; the last one asked for is kept."""
        epoch = epoch if self.shuffle else 0
        if epoch < 0:
            raise ValueError(f"batches: epoch ({epoch}) must be at least 0.")
        if epoch not in self._plans:
            self._plans.clear()  # before the next is made: at most one is in memory
            self._plans[epoch] = self._planned(epoch)
        return self._plans[epoch]

    def batch(self, indices: np.ndarray) -> Batch:
        """The pairs at some places of the corpus as a batch."""
        source, target = self._padded(0, indices, first=[]), self._padded(1, indices, first=[BOS])
        return Batch(*source, *target, torch.from_numpy(indices.astype(np.int64)))

    def _padded(self, side: int, places: np.ndarray, first: list[int]) -> tuple[Tensor, Tensor]:
        starts = self.corpus.offsets[places, side]
        lengths = self.corpus.lengths[places, side].astype(np.int64)  # (B,)
        columns = np.arange(lengths.max(initial=0))
        there = columns < lengths[:, None]  # (B, T)
        rows = np.full((len(places), len(first) + len(columns) + 1), PAD, np.int64)
        rows[:, : len(first)] = first
        rows[:, len(first) : -1][there] = self.corpus.ids[side][(starts[:, None] + columns)[there]]
        rows[np.arange(len(places)), len(first) + lengths] = EOS
        return torch.from_numpy(rows), torch.from_numpy(lengths + 1)

    def _planned(self, epoch: int) -> Plan:
        random = generator(self.seed, epoch)
        places = np.arange(len(self.corpus), dtype=np.int32)
        if self.shuffle:
            random.shuffle(places)
        if self.shuffle and not self.pool:
            ends = _cut_packed(self.corpus.lengths[places] + 1, self.tokens)
            return Plan(places, ends, np.arange(len(ends) - 1, dtype=np.int32))
        size = self._pool_size() if self.shuffle else len(places)
        bounds = [np.zeros(1, np.int64)]
        for start in range(0, len(places), size):
            pool = places[start : start + size]  # a view: sorted in place
            lengths = self.corpus.lengths[pool] + 1  # with EOS
            order = _by_length(lengths)
            pool[:] = pool[order]
            bounds.append(start + _cut(lengths[order], self.tokens))
        ends = np.concatenate(bounds)
        order = np.arange(len(ends) - 1, dtype=np.int32)
        if self.shuffle:
            random.shuffle(order)
        return Plan(places, ends, order)

    def _pool_size(self) -> int:
        """Pairs of about `pool` batches."""
        mean = max(self.corpus.totals) / len(self.corpus) + 1
        return max(1, int(self.pool * self.tokens / mean))


def _by_length(lengths: np.ndarray) -> np.ndarray:
    """An order of (n, 2) lengths by source, then by target: upwards for odd sources, downwards for even ones."""
    source, target = lengths.T
    turned = np.where(source % 2, target, -target)
    return np.lexsort((turned, source))


def _cut(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Where batches of at most `tokens` cells end, greedily; lengths (n, 2) are sorted, sources upwards."""
    longer = lengths.max(1)
    ends, start = [], 0
    while start < len(longer):
        # as many as would fit if all were as long as the first source, and no more, can be in this batch
        window = longer[start : start + max(1, tokens // int(lengths[start, 0]))]
        cells = np.maximum.accumulate(window) * np.arange(1, len(window) + 1, dtype=np.int64)  # rises
        start += max(1, int(np.searchsorted(cells, tokens, side="right")))
        ends.append(start)
    return np.array(ends, np.int64)


def _cut_packed(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Where batches of at most `tokens` begin and end, greedily, padding not counted; lengths (n, 2) in any order."""
    totals = lengths.cumsum(0, dtype=np.int64)  # (n, 2), rises
    bounds = [0]
    while bounds[-1] < len(totals):
        start = bounds[-1]
        before = totals[start - 1] if start else np.zeros(2, np.int64)
        fits = min(int(np.searchsorted(totals[:, side], before[side] + tokens, side="right")) for side in (0, 1))
        bounds.append(max(start + 1, fits))
    return np.array(bounds, np.int64)
