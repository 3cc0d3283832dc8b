"""An interpreter: a model that translates and its two vocabularies, from text to text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention import AttentionMap
from ..data import BOS, EOS, PAD, Vocabulary
from ..models import Hypothesis, Translator, beam, greedy
from .alignment import Link, Step, links, word_weights


@dataclass(frozen=True)
class Translation:
    """A sentence that was translated."""

    source: str
    text: str
    score: float
    """Log-probability, divided by the length penalty."""
    read: tuple[int, ...] = field(repr=False)
    """Ids of the source, EOS at the end."""
    written: tuple[int, ...] = field(repr=False)
    """Ids of the translation, without EOS."""


@dataclass(frozen=True)
class Interpreter:
    """A model and what its ids mean.

    Sentences are translated in batches of like length, and come back in the order they were given.
    """

    model: Translator
    source: Vocabulary
    target: Vocabulary

    def translate(
        self,
        texts: Sequence[str],
        *,
        size: int = 5,
        length_penalty: float = 1.0,
        n_best: int = 1,
        longest: int = 128,
        tokens: int = 4096,
    ) -> list[list[Translation]]:
        """The n best translations of each text, best first.

        Args:
            texts: sentences; of an empty one the model reads EOS alone, and writes what it will.
            size: hypotheses kept at each step; 1 is greedy.
            length_penalty: α of score / length^α.
            n_best: at most `size`.
            longest: ids of a translation.
            tokens: source cells of a batch, times the size.
        """
        ids = [(*found, EOS) for found in self.source.encode_all(list(texts))]
        done: list[list[Translation]] = [[] for _ in texts]
        for places in _batches([len(found) for found in ids], max(1, tokens // size)):
            read = [ids[place] for place in places]
            for place, found in zip(places, self._search(read, size, length_penalty, n_best, longest), strict=True):
                done[place] = [self._told(texts[place], ids[place], one) for one in found]
        return done

    def look(self, translations: Sequence[Translation], *, layer: int = -1) -> list[AttentionMap]:
        """What the model looks at while it writes each translation: maps (H, steps, source) with tokens.

        One step for each id that was written, and one for the end of the sentence. Empty for a model without attention.
        """
        maps = []
        for one in translations:
            read = _padded([one.read], self._device)  # (1, Ts)
            written = _padded([(BOS, *one.written)], self._device)  # (1, steps)
            with torch.inference_mode():
                memory = self.model.encode(read, torch.tensor([len(one.read)], device=self._device))
                _, seen = self.model.decode(written, memory, return_maps=True)
            if not seen:
                return []
            maps.append(seen[layer].at(0).tokens(self.target.pieces((*one.written, EOS)), self.source.pieces(one.read)))
        return maps

    def align(
        self, translation: Translation, *, step: Step = "output", layer: int = -1
    ) -> tuple[list[Link], Tensor] | None:
        """Links between the words of a translation, and the weights between words (target, source) they are read off.

        The weights are the mean over heads. None for a model without attention.
        """
        seen = self.look([translation], layer=layer)
        if not seen:
            return None
        dense = seen[0].dense()
        weights = (dense.mean(0) if dense.ndim == 3 else dense).float()  # (steps, Ts)
        source = self.source.words(translation.read[:-1])
        merged = word_weights(weights, source, self.target.words(translation.written), step)
        return links(merged), merged

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _search(
        self, read: list[tuple[int, ...]], size: int, length_penalty: float, n_best: int, longest: int
    ) -> list[list[Hypothesis]]:
        lengths = torch.tensor([len(ids) for ids in read], device=self._device)
        source = _padded(read, self._device)  # (B, Ts)
        if size == 1:
            return [[found] for found in greedy(self.model, source, lengths, longest=longest)]
        return beam(
            self.model, source, lengths, size=size, length_penalty=length_penalty, n_best=n_best, longest=longest
        )

    def _told(self, text: str, read: tuple[int, ...], found: Hypothesis) -> Translation:
        written = tuple(found.tokens)
        return Translation(text, self.target.decode(written), found.score, read, written)


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Places of sequences of like length, the longest first: if memory is short, it shows at once."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        count = max(1, tokens // lengths[order[start]])
        yield order[start : start + count]
        start += count


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """(B, T), PAD beyond each."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], device=device)
