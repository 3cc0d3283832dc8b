"""Batches of texts: labelled and of about equal numbers of tokens for training, or sorted by length for inference."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .corpus import Corpus
from .epoch_batches import EpochBatches, TensorBatch
from .pair_batches import Batches, Plan


@dataclass(frozen=True)
class TextBatch(TensorBatch):
    """A batch of texts, padded to the longest.

    >>> TextBatch(torch.tensor([[2, 7, 3]]), torch.tensor([3]), torch.tensor([1]), torch.tensor([0])).labels
    tensor([1])
    """

    ids: Tensor
    """(B, T) int64, with [CLS] and [SEP]."""
    lengths: Tensor
    """(B,) int64."""
    labels: Tensor
    """(B,) int64."""
    indices: Tensor
    """(B,) int64: indices in the corpus."""

    def __len__(self) -> int:
        return len(self.labels)


class TextBatches(EpochBatches[TextBatch]):
    """The batches of a corpus of (ids with [CLS] and [SEP], [label]). Orders are a function of (seed, epoch).

    For training, texts are batched at random, regardless of length: packing avoids padding, and texts of equal length
    are more similar than random ones. `shuffle=False` sorts them by length.

    >>> import tempfile
    >>> corpus = Corpus.write(tempfile.mkdtemp() + "/corpus", [([2, 7, 3], [1]), ([2, 3], [0]), ([2, 8, 9, 3], [1])])
    >>> batch = next(TextBatches(corpus, tokens=100, pad=0, shuffle=False).epoch(0))
    >>> batch.ids.tolist(), batch.lengths.tolist(), batch.labels.tolist()
    ([[2, 3, 0, 0], [2, 7, 3, 0], [2, 8, 9, 3]], [2, 3, 4], [0, 1, 1])

    >>> [indices.tolist() for indices in TextBatches(corpus, tokens=100, pad=0, shuffle=False).plan(0)]
    [[1, 0, 2]]
    """

    def __init__(self, corpus: Corpus, tokens: int, *, pad: int, seed: int = 0, shuffle: bool = True) -> None:
        self.corpus, self.pad = corpus, pad
        self._batches = Batches(corpus, tokens, seed=seed, shuffle=shuffle, pool=0)

    def plan(self, epoch: int) -> Plan:
        """Return the corpus indices of each batch."""
        return self._batches.plan(epoch)

    def batch(self, indices: np.ndarray) -> TextBatch:
        """Return the texts at `indices` as a batch."""
        rows = [self.corpus[int(index)] for index in indices]
        lengths = np.array([len(ids) for ids, _ in rows], np.int64)
        ids = np.full((len(rows), lengths.max(initial=0)), self.pad, np.int64)  # (B, T)
        for row, (text_ids, _) in enumerate(rows):
            ids[row, : len(text_ids)] = text_ids
        labels = np.array([label[0] for _, label in rows], np.int64)
        return TextBatch(*map(torch.from_numpy, (ids, lengths, labels, indices.astype(np.int64))))


def padded_rows(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return ids (B, T), padded to the longest row, and the lengths (B,).

    >>> padded_rows([[7, 8], [9]], 0)
    (tensor([[7, 8],
            [9, 0]]), tensor([2, 1]))
    """
    longest = max(map(len, rows))
    ids = [[*row, *[pad] * (longest - len(row))] for row in rows]
    return torch.tensor(ids, device=device), torch.tensor([*map(len, rows)], device=device)


def padded_batches(lengths: Sequence[int], cells: int, most: int = sys.maxsize) -> Iterator[list[int]]:
    """Yield indices of sequences of similar length, longest first, so that the first batch needs the most memory.

    Args:
        lengths: lengths of the sequences.
        cells: maximum size of a batch, including padding. A longer sequence is a batch by itself.
        most: maximum number of sequences in a batch.

    >>> list(padded_batches([3, 9, 1, 4], cells=9))
    [[1], [3, 0], [2]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        count = min(most, max(1, cells // lengths[order[start]]))
        yield order[start : start + count]
        start += count


def packed_batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Like `padded_batches`, for packed sequences: `tokens` limits the sum of their lengths.

    >>> list(packed_batches([3, 9, 1, 4], tokens=9))
    [[1], [3, 0, 2]]
    """
    batch: list[int] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and total + lengths[index] > tokens:
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += lengths[index]
    if batch:
        yield batch
