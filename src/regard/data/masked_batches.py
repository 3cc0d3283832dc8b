"""Batches for pretraining: passages with masked tokens, optionally as sentence pairs, half of them mismatched.

    [CLS] the cat [MASK] on the mat [SEP]            to predict: sat
    [CLS] the cat sat . [SEP] it [MASK] . [SEP]      to predict: slept; does the second part follow the first?

Of the chosen tokens 80 % become [MASK], 10 % a random token, and 10 % stay (Devlin et al. 2019, section 3.1, task #1
and task #2). Everything random is a function of (seed, epoch, batch number). Each epoch has new masks, and a resumed
run gets the same ones again.
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

MASKED, REPLACED = 0.8, 0.1
"""Share of the chosen tokens that become [MASK], and share that become a random token."""


@dataclass(frozen=True)
class MaskedBatch(TensorBatch):
    """A padded batch of passages with masked tokens.

    >>> row, none = torch.tensor([[2, 4, 3]]), torch.tensor([], dtype=torch.int64)
    >>> chosen = torch.tensor([[False, True, False]])
    >>> batch = MaskedBatch(row, torch.tensor([3]), torch.zeros_like(row), chosen, torch.tensor([7]), none, each=1.0)
    >>> batch.padding, batch.wanted                                       # token 7 was masked
    (0.0, tensor([7]))
    """

    ids: Tensor
    """(B, T) int64: input of the model."""
    lengths: Tensor
    """(B,) int64, including [CLS] and [SEP]."""
    segments: Tensor
    """(B, T) int64: 0 up to the first [SEP], 1 after it."""
    chosen: Tensor
    """(B, T) bool: positions to predict."""
    wanted: Tensor
    """(M,) int64: original ids at these positions, row by row."""
    other: Tensor
    """(B,) int64: 1 if the second part comes from another document; empty if there are no pairs."""
    each: float
    """Mean number of chosen positions per entry of the whole batch: the weight of a pair in the loss."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def padding(self) -> float:
        """The share of cells that are padding."""
        return 1 - int(self.lengths.sum()) / self.ids.numel() if self.ids.numel() else 0.0


class MaskedBatches(EpochBatches[MaskedBatch]):
    """Masked batches of a corpus of passages (see `documents.encode_passages`).

    Args:
        corpus: the passages. `pairs` needs at least two documents.
        words: vocabulary of the ids.
        tokens: size of a batch, including padding.
        seed: seed of the order and of the masks.
        share: share of tokens that are chosen; at least one in each passage.
        whole_words: choose either all tokens of a word or none.
        pairs: split passages in two at the end of a sentence, and replace half of the second parts by text from other
            documents of at most the same length.
        shuffle: False uses the same order and masks in all epochs, for held-out text.

    >>> import tempfile
    >>> from regard.data import encode_passages
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> passages = encode_passages(iter([["a low new", "a newest"], ["lowest"] * 5]), words, longest=8)
    >>> batches = MaskedBatches(Corpus.write(tempfile.mkdtemp() + "/corpus", passages), words, tokens=64, shuffle=False)
    >>> len(batches.plan(0)), batches.count(0)
    (1, 1)
    >>> batch = next(batches.epoch(0))
    >>> tuple(batch.ids.shape), bool((batch.wanted != words.mask).all()), len(batch.wanted) == int(batch.chosen.sum())
    ((2, 7), True, True)
    >>> len(batches.take(batches.plan(0)[0], slice(1), epoch=0, number=0))     # the first passage, with the same masks
    1
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
            raise ValueError(f"masking: share ({share}) must lie in (0, 1]; 0.15 is typical.")
        self.corpus, self.words, self.seed, self.share = corpus, words, seed, share
        self.whole_words, self.pairs, self.shuffle = whole_words, pairs, shuffle
        self._batches = Batches(corpus, tokens, seed=seed, shuffle=shuffle)
        tokens_by_id = words.pieces(range(len(words)))
        self._inside = np.array([token.startswith(INSIDE) and token != INSIDE for token in tokens_by_id])
        self._special = np.array([words.pad, words.cls, words.sep, words.mask])
        self._ordinary = np.setdiff1d(np.arange(len(words)), [*self._special, words.unk])
        if pairs:
            firsts = corpus.ids[1][corpus.offsets[:-1, 1]]  # (N,): the document of each passage
            if firsts.min() == firsts.max():
                raise ValueError(
                    "masking: pairs need a second document to take sentences from; got one. Set the end of a document "
                    "(--documents line), or train without --next-sentence."
                )

    def plan(self, epoch: int) -> Plan:
        """Return the corpus indices of each batch."""
        return self._batches.plan(epoch)

    def take(self, indices: np.ndarray, share: slice, *, epoch: int, number: int) -> MaskedBatch:
        """Return the entries `indices[share]` of a batch. The masks are a function of (seed, epoch, number)."""
        random = generator(self.seed, epoch if self.shuffle else 0, number)
        rows = [self._row(int(index), random) for index in indices]  # the whole batch, so that all ranks draw alike
        lengths = np.array([len(ids) for ids, _, _ in rows])
        original = np.full((len(rows), lengths.max()), self.words.pad)  # (B, T)
        segments = np.zeros_like(original)
        for row, (ids, first, _) in enumerate(rows):
            original[row, : len(ids)] = ids
            segments[row, first : len(ids)] = 1
        masked, chosen = self._masked(original, lengths, random)
        other = np.array([other for _, _, other in rows if other is not None], np.int64)
        return MaskedBatch(
            ids=_tensor(masked[share]),
            lengths=_tensor(lengths[share]),
            segments=_tensor(segments[share]),
            chosen=_tensor(chosen[share]),
            wanted=_tensor(original[share][chosen[share]]),
            other=_tensor(other[share]),
            each=float(chosen.sum() / len(rows)),
        )

    def _row(self, index: int, random: np.random.Generator) -> tuple[list[int], int, int | None]:
        """Return the ids with special tokens, the length of the first part, and 1 if the second is from elsewhere."""
        ids, description = self.corpus[index]
        if not self.pairs:
            joined = self.words.join(ids.tolist()).ids
            return joined, len(joined), None
        cut, other = _cut(description, random), int(random.random() < 0.5)
        second = self._from_other_document(int(description[0]), len(ids) - cut, random) if other else ids[cut:]
        return self.words.join(ids[:cut].tolist(), second.tolist()).ids, cut + 2, other

    def _from_other_document(self, document: int, most: int, random: np.random.Generator) -> np.ndarray:
        """Return ids of another document, starting at the beginning of a sentence."""
        while True:  # the constructor checks that there is another document
            ids, description = self.corpus[int(random.integers(len(self.corpus)))]
            if int(description[0]) != document:
                start = int(random.integers(len(description) - 1))
                return ids[int(description[1 : 1 + start].sum()) :][:most]

    def _masked(
        self, original: np.ndarray, lengths: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the masked ids and the chosen positions: (B, T), (B, T)."""
        not_padding = np.arange(original.shape[1]) < lengths[:, None]
        ordinary = not_padding & ~np.isin(original, self._special)
        scores = random.random(original.shape)
        if self.whole_words:
            begins = ~(
                self._inside[original] & ordinary & np.roll(ordinary, 1, 1)
            )  # ## after [CLS] or [SEP] begins a word
            scores = np.take_along_axis(scores, np.cumsum(begins, 1) - 1, 1)  # all tokens of a word share a score
        scores = np.where(ordinary, scores, np.inf)
        count = np.maximum(1, np.rint(self.share * ordinary.sum(1)).astype(int))  # (B,)
        bound = np.take_along_axis(np.sort(scores, 1), count[:, None] - 1, 1)  # (B, 1)
        chosen = ordinary & (scores <= bound)
        draws = random.random(original.shape)
        random_ids = self._ordinary[random.integers(len(self._ordinary), size=original.shape)]
        masked = np.where(chosen & (draws < MASKED), self.words.mask, original)
        masked = np.where(chosen & (draws >= MASKED) & (draws < MASKED + REPLACED), random_ids, masked)
        return masked, chosen


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _cut(description: np.ndarray, random: np.random.Generator) -> int:
    """Return where to split a passage: at the end of a sentence, or in the middle if there is only one."""
    lengths = description[1:].astype(np.int64)
    if len(lengths) == 1:
        return int(lengths[0]) // 2
    return int(lengths[: int(random.integers(1, len(lengths)))].sum())
