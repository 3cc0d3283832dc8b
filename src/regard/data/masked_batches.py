"""Batches of passages with some of their pieces hidden, and pairs of which half do not belong together.

    [CLS] the cat [MASK] on the mat [SEP]            to be said: sat
    [CLS] the cat sat . [SEP] it [MASK] . [SEP]      to be said: slept; does the second part follow the first?

Of the chosen pieces 80 % become [MASK], 10 % a random piece, 10 % stay (Devlin et al. 2019, section 3.1, task #1 and
task #2). Everything random is a function of (seed, epoch, number of the batch): masks are fresh in every epoch, and an
interrupted run meets the same ones again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .corpus import Corpus
from .epoch_batches import EpochBatches, TensorBatch, generator
from .pair_batches import Batches, Plan
from .wordpiece import INSIDE, WordPiece

HIDDEN, REPLACED = 0.8, 0.1
"""Of the chosen pieces, the share that becomes [MASK], and the share that becomes a random piece."""


@dataclass(frozen=True)
class MaskedBatch(TensorBatch):
    """Passages with pieces hidden, padded to the longest."""

    ids: Tensor
    """(B, T) int64, as they are shown to the model."""
    lengths: Tensor
    """(B,) int64, [CLS] and [SEP] counted."""
    segments: Tensor
    """(B, T) int64: 0 up to the first [SEP], 1 after it."""
    chosen: Tensor
    """(B, T) bool: places where a piece is to be said."""
    wanted: Tensor
    """(M,) int64: what is to be said there, row by row."""
    other: Tensor
    """(B,) int64: 1 where the second part comes from another document; no entries where there are no second parts."""
    each: float
    """Chosen places of an entry, the mean over the whole batch: the weight of a pair in the loss."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def padding(self) -> float:
        """The share of cells that hold padding."""
        return 1 - int(self.lengths.sum()) / self.ids.numel() if self.ids.numel() else 0.0


class MaskedBatches(EpochBatches[MaskedBatch]):
    """The batches of a corpus of passages (`plain.encode_passages`), masked.

    Args:
        corpus: the passages; with `pairs` of two documents at least.
        words: what their ids mean.
        tokens: of a batch, padding counted.
        seed: of orders and masks.
        share: of the pieces that are chosen, at least one in each passage.
        whole_words: all pieces of a word are chosen, or none.
        pairs: passages are cut in two at the end of a sentence, and half of the second parts are exchanged for ones of
            other documents, no longer than what they take the place of.
        shuffle: False keeps one order, and one set of masks, for all epochs: held-out text.
    """

    def __init__(
        self,
        corpus: Corpus,
        words: WordPiece,
        tokens: int,
        *,
        seed: int = 0,
        share: float = 0.15,
        whole_words: bool = False,
        pairs: bool = False,
        shuffle: bool = True,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"masking: share ({share}) must lie in (0, 1]; 0.15 is usual.")
        self.corpus, self.words, self.seed, self.share = corpus, words, seed, share
        self.whole_words, self.pairs, self.shuffle = whole_words, pairs, shuffle
        self._batches = Batches(corpus, tokens, seed=seed, shuffle=shuffle)
        pieces = words.pieces(range(len(words)))
        self._inside = np.array([piece.startswith(INSIDE) and piece != INSIDE for piece in pieces])
        self._special = np.array([words.pad, words.cls, words.sep, words.mask])
        self._ordinary = np.setdiff1d(np.arange(len(words)), [*self._special, words.unk])
        if pairs:
            firsts = corpus.ids[1][corpus.offsets[:-1, 1]]  # (N,): the document of each passage
            if firsts.min() == firsts.max():
                raise ValueError(
                    "masking: pairs need a second document to take sentences from; got one. Say what ends a document "
                    "(--documents line), or train without --next-sentence."
                )

    def plan(self, epoch: int) -> Plan:
        """The places of each batch in the corpus."""
        return self._batches.plan(epoch)

    def take(self, indices: np.ndarray, share: slice, *, epoch: int, number: int) -> MaskedBatch:
        random = generator(self.seed, epoch if self.shuffle else 0, number)
        rows = [self._row(int(index), random) for index in indices]  # the whole batch: all ranks draw the same numbers
        lengths = np.array([len(ids) for ids, _, _ in rows])
        real = np.full((len(rows), lengths.max()), self.words.pad)  # (B, T)
        segments = np.zeros_like(real)
        for row, (ids, first, _) in enumerate(rows):
            real[row, : len(ids)] = ids
            segments[row, first : len(ids)] = 1
        shown, chosen = self._masked(real, lengths, random)
        other = np.array([other for _, _, other in rows if other is not None], np.int64)
        return MaskedBatch(
            ids=_tensor(shown[share]),
            lengths=_tensor(lengths[share]),
            segments=_tensor(segments[share]),
            chosen=_tensor(chosen[share]),
            wanted=_tensor(real[share][chosen[share]]),
            other=_tensor(other[share]),
            each=float(chosen.sum() / len(rows)),
        )

    def _row(self, place: int, random: np.random.Generator) -> tuple[list[int], int, int | None]:
        """Ids with special ones, the length of the first part, and whether the second is of another document."""
        ids, about = self.corpus[place]
        if not self.pairs:
            found = self.words.join(ids.tolist()).ids
            return found, len(found), None
        cut, other = _cut(about, random), int(random.random() < 0.5)
        second = self._elsewhere(int(about[0]), len(ids) - cut, random) if other else ids[cut:]
        return self.words.join(ids[:cut].tolist(), second.tolist()).ids, cut + 2, other

    def _elsewhere(self, document: int, most: int, random: np.random.Generator) -> np.ndarray:
        """Ids that begin a sentence of another document."""
        while True:  # at least one passage is of another document
            ids, about = self.corpus[int(random.integers(len(self.corpus)))]
            if int(about[0]) != document:
                start = int(random.integers(len(about) - 1))
                return ids[int(about[1 : 1 + start].sum()) :][:most]

    def _masked(
        self, real: np.ndarray, lengths: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is shown, and where something is to be said: (B, T), (B, T)."""
        there = np.arange(real.shape[1]) < lengths[:, None]
        ordinary = there & ~np.isin(real, self._special)
        scores = random.random(real.shape)
        if self.whole_words:
            begins = ~(self._inside[real] & ordinary & np.roll(ordinary, 1, 1))  # a ## after [CLS] or [SEP] begins too
            scores = np.take_along_axis(scores, np.cumsum(begins, 1) - 1, 1)  # the pieces of a word share one
        scores = np.where(ordinary, scores, np.inf)
        many = np.maximum(1, np.rint(self.share * ordinary.sum(1)).astype(int))  # (B,)
        bound = np.take_along_axis(np.sort(scores, 1), many[:, None] - 1, 1)  # (B, 1)
        chosen = ordinary & (scores <= bound)
        fate = random.random(real.shape)
        drawn = self._ordinary[random.integers(len(self._ordinary), size=real.shape)]
        shown = np.where(chosen & (fate < HIDDEN), self.words.mask, real)
        shown = np.where(chosen & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED), drawn, shown)
        return shown, chosen


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _cut(about: np.ndarray, random: np.random.Generator) -> int:
    """Where a passage is cut in two: at the end of a sentence, or in the middle of the only one."""
    lengths = about[1:].astype(np.int64)
    if len(lengths) == 1:
        return int(lengths[0]) // 2
    return int(lengths[: int(random.integers(1, len(lengths)))].sum())
