"""An interpreter: a model that translates and its two vocabularies, from text to text."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from ..attention import AttentionMap
from ..core.process import side_by_side
from ..data import BOS, EOS, PAD, Vocabulary
from ..models import Hypothesis, Translator, beam, greedy
from ..models.beam_search import evaluating
from ..models.fast_decoder import swift
from .alignment import Link, Step, links, word_weights

BATCHES, ROWS = 8, 1024
"""Of a search: batches there should be, and hypotheses of one at most."""
LAID = 16
"""Sentences from which weights are copied for a search."""


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


Translations = Translation | Sequence[Translation] | Sequence[Sequence[Translation]]
"""One, several, or what `Interpreter.translate` returns."""


class Alignment(NamedTuple):
    """Which source words the words of a translation came from."""

    links: list[Link]
    weights: Tensor
    """(target words, source words)"""


@dataclass(frozen=True)
class Interpreter:
    """A model and what its ids mean.

    Sentences are translated in batches of like length, and come back in the order they were given.
    """

    model: Translator
    source: Vocabulary
    target: Vocabulary

    @overload
    def translate(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self,
        texts: str,
        *,
        size: int = ...,
        length_penalty: float = ...,
        n_best: int = ...,
        longest: int = ...,
        tokens: int = ...,
    ) -> list[Translation]: ...
    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        size: int = ...,
        length_penalty: float = ...,
        n_best: int = ...,
        longest: int = ...,
        tokens: int = ...,
    ) -> list[list[Translation]]: ...
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        size: int = 5,
        length_penalty: float = 1.0,
        n_best: int = 1,
        longest: int = 128,
        tokens: int = 16384,
    ) -> list[Translation] | list[list[Translation]]:
        """Return the n best translations of each text, best first; for a single string, those of that string.

        Args:
            texts: sentences; of an empty one the model reads EOS alone, and writes what it will.
            size: hypotheses kept at each step; 1 is greedy.
            length_penalty: α of score / length^α.
            n_best: at most `size`.
            longest: ids of a translation.
            tokens: source cells of a batch, times the size, at most; of few texts fewer, so that every thread has some.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        ids = [(*found, EOS) for found in self.source.encode_all(listed)]
        found = self.search(
            ids, size=size, length_penalty=length_penalty, n_best=n_best, longest=longest, tokens=tokens
        )
        translations = [
            [self._told(text, read, one) for one in best] for text, read, best in zip(listed, ids, found, strict=True)
        ]
        return translations[0] if isinstance(texts, str) else translations

    def search(
        self,
        ids: Sequence[tuple[int, ...]],
        *,
        size: int = 5,
        length_penalty: float = 1.0,
        n_best: int = 1,
        longest: int = 128,
        tokens: int = 16384,
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses for each sequence of ids, which ends with EOS. Arguments as `translate` has them."""
        lengths_read = [len(read) for read in ids]
        cells = min(tokens, max(tokens // 4, sum(lengths_read) * size // BATCHES)) // size
        batches = list(_batches(lengths_read, max(1, cells), max(1, ROWS // size)))

        model = swift(self.model, laid=len(ids) >= LAID)

        def found(places: list[int]) -> list[list[Hypothesis]]:
            source, lengths = self._batch([ids[place] for place in places])
            how: dict[str, Any] = {"longest": longest, "length_penalty": length_penalty}
            if size == 1:
                return [[one] for one in greedy(model, source, lengths, **how)]
            return beam(model, source, lengths, size=size, n_best=n_best, **how)

        done: list[list[Hypothesis]] = [[] for _ in ids]
        with evaluating(self.model):  # for all batches: one that is done must not end it for another
            every = side_by_side(found, batches) if self._device.type == "cpu" else map(found, batches)
            for places, best in zip(batches, every, strict=True):
                for place, one in zip(places, best, strict=True):
                    done[place] = one
        return done

    def look(self, translations: Translations, *, layer: int = -1) -> list[AttentionMap]:
        """What the model looks at while it writes each translation: maps (H, steps, source) with tokens.

        One step for each id that was written, and one for the end of the sentence. Empty for a model without attention.

        Args:
            translations: one, several, or what `translate` returned: those of each text, one after the other.
            layer: of the decoder.
        """
        maps = []
        for one in _flat(translations):
            seen = self._seen([one], layer)
            if seen is None:
                return []
            maps.append(seen.at(0).tokens(self.target.pieces((*one.written, EOS)), self.source.pieces(one.read)))
        return maps

    @overload
    def align(
        self,
        translations: Translation,
        *,
        step: Step = ...,
        layer: int = ...,
        head: int | None = ...,
        tokens: int = ...,
    ) -> Alignment: ...
    @overload
    def align(
        self,
        translations: Sequence[Translation] | Sequence[Sequence[Translation]],
        *,
        step: Step = ...,
        layer: int = ...,
        head: int | None = ...,
        tokens: int = ...,
    ) -> list[Alignment]: ...
    def align(
        self,
        translations: Translations,
        *,
        step: Step = "output",
        layer: int = -1,
        head: int | None = None,
        tokens: int = 4096,
    ) -> Alignment | list[Alignment]:
        """Links between the words of each translation, and the weights between words that they are read off.

        Empty for a model without attention.

        Args:
            translations: one, for one alignment; several, or what `translate` returned, for a list.
            step: which step speaks of a word: the one that wrote it (output) or that has read it (input).
            layer: of the decoder.
            head: one of the layer's; default the mean of all.
            tokens: cells of a batch: sentences of like length are read together.
        """
        done: dict[int, Alignment] = {}
        listed, single = _flat(translations), isinstance(translations, Translation)
        for places in _batches([max(len(one.read), len(one.written) + 1) for one in listed], tokens):
            chosen = [listed[place] for place in places]
            seen = self._seen(chosen, layer)
            if seen is None and single:
                raise ValueError("align: model must have attention; this one has a fixed context, and aligns nothing.")
            if seen is None:
                return []
            dense = seen.dense().float()  # (B, H, steps, Ts)
            weights = dense.mean(1) if head is None else dense[:, head]  # (B, steps, Ts)
            for place, one, row in zip(places, chosen, weights, strict=True):
                done[place] = self._aligned(one, row, step)
        return done[0] if single else [done[place] for place in range(len(listed))]

    def known(self, source: str, target: str) -> Translation:
        """A pair of sentences as if the model had written the second, to look at or to align; its score is NaN."""
        (read,), (written,) = self.source.encode_all([source]), self.target.encode_all([target])
        return Translation(source, target, math.nan, (*read, EOS), tuple(written))

    def _aligned(self, one: Translation, weights: Tensor, step: Step) -> Alignment:
        rows = weights[: len(one.written) + 1, : len(one.read)]  # the rest is padding
        merged = word_weights(rows, self.source.words(one.read[:-1]), self.target.words(one.written), step)
        return Alignment(links(merged), merged)

    @torch.inference_mode()
    def _seen(self, translations: Sequence[Translation], layer: int) -> AttentionMap | None:
        """The map of a batch, (B, H, steps, source), of a layer of the decoder."""
        source, lengths = self._batch([one.read for one in translations])
        written, steps = self._batch([(BOS, *one.written) for one in translations])
        with evaluating(self.model):  # looking drops nothing, and draws no random numbers
            _, seen = self.model.decode(written, self.model.encode(source, lengths), lengths=steps, return_maps=True)
        return seen[layer] if seen else None

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _batch(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids (B, T), PAD beyond each, and lengths (B,)."""
        longest = max(map(len, rows))
        padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, device=self._device), torch.tensor([*map(len, rows)], device=self._device)

    def _told(self, text: str, read: tuple[int, ...], found: Hypothesis) -> Translation:
        written = tuple(found.tokens)
        return Translation(text, self.target.decode(written), found.score, read, written)


def _flat(translations: Translations) -> list[Translation]:
    """One translation, several, or several of each text, as one list."""
    if isinstance(translations, Translation):
        return [translations]
    flat: list[Translation] = []
    for one in translations:
        flat += [one] if isinstance(one, Translation) else one
    for one in flat:
        if not isinstance(one, Translation):
            raise ValueError(
                f"interpreter: translations must be of `translate` or `known`; got a {type(one).__name__}. For a pair "
                "of texts take known(source, target)."
            )
    return flat


def _batches(lengths: Sequence[int], tokens: int, most: int = sys.maxsize) -> Iterator[list[int]]:
    """Places of sequences of like length, at most so many, the longest first: if memory is short, it shows at once."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        count = min(most, max(1, tokens // lengths[order[start]]))
        yield order[start : start + count]
        start += count
