"""Batches with about equal numbers of tokens and little padding. The order is a function of seed and epoch."""

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
    """A batch of pairs, padded to the longest.

        source          a b c ■        ■ EOS        source_lengths  4
                        d ■ · ·        · PAD                        2
        target        ▸ x y ■          ▸ BOS        target_lengths  3
                      ▸ z ■ ·                                       2

    A decoder reads target[:, :-1] and predicts target[:, 1:].

    >>> import tempfile
    >>> corpus = Corpus.write(tempfile.mkdtemp() + "/corpus", [([5, 6, 7], [8, 9]), ([5], [8])])
    >>> batch = next(Batches(corpus, tokens=64, shuffle=False).epoch(0))
    >>> batch.source.tolist(), batch.target.tolist()
    ([[5, 3, 0, 0], [5, 6, 7, 3]], [[2, 8, 3, 0], [2, 8, 9, 3]])
    >>> batch.tokens, round(batch.padding, 3), batch.to("cpu").indices.tolist()
    (5, 0.214, [1, 0])
    """

    source: Tensor
    """(B, Ts) int64: ids, EOS, then PAD."""
    source_lengths: Tensor
    """(B,) int64, including EOS."""
    target: Tensor
    """(B, Tt + 1) int64: BOS, ids, EOS, then PAD."""
    target_lengths: Tensor
    """(B,) int64: tokens to predict, including EOS."""
    indices: Tensor
    """(B,) int64: indices in the corpus."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def tokens(self) -> int:
        """Number of tokens to predict."""
        return int(self.target_lengths.sum())

    @property
    def padding(self) -> float:
        """The share of padding among the cells of source and predicted target."""
        cells = self.source.numel() + self.target[:, 1:].numel()
        return 1 - (int(self.source_lengths.sum()) + self.tokens) / cells if cells else 0.0


class Plan(Sequence[np.ndarray]):
    """The batches of an epoch as arrays of corpus indices: plan[n] is batch n, sliced on access.

    It needs about four bytes per pair: the indices of all pairs in batch order, the start of each batch, and the order
    of the batches.

    >>> plan = Plan(np.array([4, 0, 3, 1, 2]), np.array([0, 2, 5]), np.array([1, 0]))
    >>> [batch.tolist() for batch in plan], len(plan)
    ([[3, 1, 2], [4, 0]], 2)
    """

    def __init__(self, indices: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> None:
        self._indices, self._bounds, self._order = indices, bounds, order

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
        return self._indices[self._bounds[batch] : self._bounds[batch + 1]]


class Batches(EpochBatches[Batch]):
    """The batches of a corpus, with pairs of similar length, shuffled. They are a function of (seed, epoch).

        shuffle pairs → split into pools of `pool` batches → sort each by length → split into batches → shuffle these

    In a pool, pairs are sorted by source length. Pairs of equal source length are sorted by target length, in ascending
    and descending order alternately, so that neighbours are similar on both sides.

    Args:
        corpus: the pairs.
        tokens: maximum number of cells of a batch, including padding and EOS, for source and target each. A longer pair
            is a batch by itself.
        seed: seed of all orders.
        shuffle: False uses the same order in all epochs: the whole corpus sorted by length.
        pool: number of batches that are sorted together. More means less padding and less randomness. With 0 nothing
            is sorted, and `tokens` limits a batch without padding, for models that pack their input.

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
        for name, value, minimum in (("tokens", tokens, 1), ("seed", seed, 0), ("pool", pool, 0)):
            if value < minimum:
                raise ValueError(f"batches: {name} ({value}) must be at least {minimum}.")
        if len(corpus) > LARGEST:
            raise ValueError(f"batches: corpus ({len(corpus):,} pairs) must have at most {LARGEST:,}.")
        self.corpus, self.tokens, self.seed, self.shuffle, self.pool = corpus, tokens, seed, shuffle, pool
        self._plans: dict[int, Plan] = {}

    def plan(self, epoch: int) -> Plan:
        """Return the batches of an epoch, the same for every rank. The last plan is cached."""
        epoch = epoch if self.shuffle else 0
        if epoch < 0:
            raise ValueError(f"batches: epoch ({epoch}) must be at least 0.")
        if epoch not in self._plans:
            self._plans.clear()  # first, so that at most one is in memory
            self._plans[epoch] = self._create_plan(epoch)
        return self._plans[epoch]

    def batch(self, indices: np.ndarray) -> Batch:
        """Return the pairs at `indices` as a batch."""
        source, target = self._padded(0, indices, first=[]), self._padded(1, indices, first=[BOS])
        return Batch(*source, *target, torch.from_numpy(indices.astype(np.int64)))

    def _padded(self, side: int, indices: np.ndarray, first: list[int]) -> tuple[Tensor, Tensor]:
        starts = self.corpus.offsets[indices, side]
        lengths = self.corpus.lengths[indices, side].astype(np.int64)  # (B,)
        columns = np.arange(lengths.max(initial=0))
        filled = columns < lengths[:, None]  # (B, T)
        rows = np.full((len(indices), len(first) + len(columns) + 1), PAD, np.int64)
        rows[:, : len(first)] = first
        rows[:, len(first) : -1][filled] = self.corpus.ids[side][(starts[:, None] + columns)[filled]]
        rows[np.arange(len(indices)), len(first) + lengths] = EOS
        return torch.from_numpy(rows), torch.from_numpy(lengths + 1)

    def _create_plan(self, epoch: int) -> Plan:
        random = generator(self.seed, epoch)
        indices = np.arange(len(self.corpus), dtype=np.int32)
        if self.shuffle:
            random.shuffle(indices)
        if self.shuffle and not self.pool:
            ends = _cut_packed(self.corpus.lengths[indices] + 1, self.tokens)
            return Plan(indices, ends, np.arange(len(ends) - 1, dtype=np.int32))
        size = self._pool_size() if self.shuffle else len(indices)
        bounds = [np.zeros(1, np.int64)]
        for start in range(0, len(indices), size):
            pool = indices[start : start + size]  # a view: sorted in place
            lengths = self.corpus.lengths[pool] + 1  # including EOS
            order = _by_length(lengths)
            pool[:] = pool[order]
            bounds.append(start + _cut(lengths[order], self.tokens))
        ends = np.concatenate(bounds)
        order = np.arange(len(ends) - 1, dtype=np.int32)
        if self.shuffle:
            random.shuffle(order)
        return Plan(indices, ends, order)

    def _pool_size(self) -> int:
        """Return the number of pairs in about `pool` batches."""
        mean = max(self.corpus.totals) / len(self.corpus) + 1
        return max(1, int(self.pool * self.tokens / mean))


def _by_length(lengths: np.ndarray) -> np.ndarray:
    """Return an order of (n, 2) lengths by source, then by target: ascending for odd sources, descending for even."""
    source, target = lengths.T
    signed_target = np.where(source % 2, target, -target)
    return np.lexsort((signed_target, source))


def _cut(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Return the ends of batches of at most `tokens` cells, chosen greedily. Lengths (n, 2) are sorted by source."""
    longer = lengths.max(1)
    ends, start = [], 0
    while start < len(longer):
        # the batch holds at most as many pairs as would fit if all were as long as the first source
        window = longer[start : start + max(1, tokens // int(lengths[start, 0]))]
        cells = np.maximum.accumulate(window) * np.arange(1, len(window) + 1, dtype=np.int64)  # rises
        start += max(1, int(np.searchsorted(cells, tokens, side="right")))
        ends.append(start)
    return np.array(ends, np.int64)


def _cut_packed(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Return the bounds of batches of at most `tokens` without padding, chosen greedily. Lengths (n, 2), unsorted."""
    totals = lengths.cumsum(0, dtype=np.int64)  # (n, 2), rises
    bounds = [0]
    while bounds[-1] < len(totals):
        start = bounds[-1]
        before = totals[start - 1] if start else np.zeros(2, np.int64)
        fits = min(int(np.searchsorted(totals[:, side], before[side] + tokens, side="right")) for side in (0, 1))
        bounds.append(max(start + 1, fits))
    return np.array(bounds, np.int64)
