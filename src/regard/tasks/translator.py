"""A translator: a model and its two vocabularies, from text to text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import torch
from torch import Tensor

from ..attention import AttentionMap
from ..core.process import run_in_threads
from ..data import BOS, EOS, PAD, Vocabulary
from ..data.text_batches import padded_batches, padded_rows
from ..models import EncoderDecoder, Hypothesis, beam, greedy
from ..models.beam_search import evaluating
from ..models.fast_inference import fast_decoder
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
"""One, several, or what `Translator.translate` returns."""
Maps = Sequence[AttentionMap] | Sequence[Sequence[AttentionMap]]
"""What `Translator.look` returns, or `Translator.translate` with `return_maps`."""


class SearchOptions(TypedDict, total=False):
    """Options of `Translator.translate`."""

    size: int
    length_penalty: float
    n_best: int
    longest: int
    tokens: int


class AlignOptions(TypedDict, total=False):
    """Options of `Translator.align`."""

    step: Step
    layer: int
    head: int | None
    tokens: int
    maps: Maps | None


class Alignment(NamedTuple):
    """Which source words the words of a translation came from."""

    links: list[Link]
    weights: Tensor
    """(target words, source words)"""


@dataclass(frozen=True)
class Translator:
    """A model and what its ids mean.

    Sentences are translated in batches of like length, and come back in the order they were given.
    """

    model: EncoderDecoder
    source: Vocabulary
    target: Vocabulary

    @property
    def attends(self) -> bool:
        """Whether the model attends to its source, so that it has maps and alignments."""
        return self.model.attends

    @overload
    def translate(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self, texts: str, *, return_maps: Literal[False] = ..., **options: Unpack[SearchOptions]
    ) -> list[Translation]: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, return_maps: Literal[False] = ..., **options: Unpack[SearchOptions]
    ) -> list[list[Translation]]: ...
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, texts: str, *, return_maps: Literal[True], **options: Unpack[SearchOptions]
    ) -> tuple[list[Translation], list[AttentionMap]]: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, return_maps: Literal[True], **options: Unpack[SearchOptions]
    ) -> tuple[list[list[Translation]], list[list[AttentionMap]]]: ...
    def translate(
        self, texts: str | Sequence[str], *, return_maps: bool = False, **options: Unpack[SearchOptions]
    ) -> Any:
        """Return the n best translations of each text, best first; for a single string, those of that string.

        Args:
            texts: sentences; of an empty one the model reads EOS alone, and writes what it will.
            size: hypotheses kept at each step; 1 is greedy.
            length_penalty: α of score / length^α.
            n_best: at most `size`.
            longest: ids of a translation.
            tokens: source cells of a batch, times the size, at most; of few texts fewer, so that every thread has some.
            return_maps: also return the map of each translation, as `look` does; `align` can read alignments off them.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        ids = [(*found, EOS) for found in self.source.encode_all(listed)]
        translations = [
            [Translation(text, self.target.decode(one.tokens), one.score, read, one.tokens) for one in best]
            for text, read, best in zip(listed, ids, self.search(ids, **options), strict=True)
        ]
        maps = [self.look(best) for best in translations] if return_maps else []
        if isinstance(texts, str):
            return (translations[0], maps[0]) if return_maps else translations[0]
        return (translations, maps) if return_maps else translations

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
        batches = list(padded_batches(lengths_read, max(1, cells), max(1, ROWS // size)))

        model = fast_decoder(self.model, contiguous=len(ids) >= LAID)

        def found(places: list[int]) -> list[list[Hypothesis]]:
            source, lengths = self._batch([ids[place] for place in places])
            how: dict[str, Any] = {"longest": longest, "length_penalty": length_penalty}
            if size == 1:
                return [[one] for one in greedy(model, source, lengths, **how)]
            return beam(model, source, lengths, size=size, n_best=n_best, **how)

        done: list[list[Hypothesis]] = [[] for _ in ids]
        with evaluating(self.model):  # for all batches: one that is done must not end it for another
            every = run_in_threads(found, batches) if self._device.type == "cpu" else map(found, batches)
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
        if not self.attends:
            return []
        return [
            self._seen([one], layer).at(0).tokens(self.target.pieces((*one.written, EOS)), self.source.pieces(one.read))
            for one in _flat(translations)
        ]

    @overload
    def align(self, translations: Translation, **options: Unpack[AlignOptions]) -> Alignment: ...
    @overload
    def align(
        self, translations: Sequence[Translation] | Sequence[Sequence[Translation]], **options: Unpack[AlignOptions]
    ) -> list[Alignment]: ...
    def align(
        self,
        translations: Translations,
        *,
        step: Step = "output",
        layer: int = -1,
        head: int | None = None,
        tokens: int = 4096,
        maps: Maps | None = None,
    ) -> Alignment | list[Alignment]:
        """Links between the words of each translation, and the weights between words that they are read off.

        Empty for a model without attention.

        Args:
            translations: one, for one alignment; several, or what `translate` returned, for a list.
            step: which step speaks of a word: the one that wrote it (output) or that has read it (input).
            layer: of the decoder.
            head: one of the layer's; default the mean of all.
            tokens: cells of a batch: sentences of like length are read together.
            maps: those that `look` or `translate(…, return_maps=True)` returned for these translations, of the layer
                that they were asked for; the model is not run again.
        """
        listed, single = _flat(translations), isinstance(translations, Translation)
        if not self.attends:
            if single:
                raise ValueError("align: model must have attention; this one has a fixed context, and aligns nothing.")
            return []
        done: dict[int, Alignment] = {}
        for indices, weights in self._weights(listed, layer, head, tokens, maps):
            for index, rows in zip(indices, weights, strict=True):
                done[index] = self._aligned(listed[index], rows, step)
        return done[0] if single else [done[index] for index in range(len(listed))]

    def _weights(
        self, translations: Sequence[Translation], layer: int, head: int | None, tokens: int, maps: Maps | None
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Weights (B, steps, Ts) of one head, or their mean over heads, with the indices of their translations."""

        def of_head(dense: Tensor) -> Tensor:  # (B, H, steps, Ts) → (B, steps, Ts)
            return dense.float().mean(1) if head is None else dense.float()[:, head]

        if maps is not None:
            flat = [one for some in maps for one in ([some] if isinstance(some, AttentionMap) else some)]
            if len(flat) != len(translations):
                raise ValueError(f"align: maps ({len(flat)}) must be as many as translations ({len(translations)}).")
            for index, seen in enumerate(flat):
                yield [index], of_head(seen.dense()[None])
            return
        lengths = [max(len(one.read), len(one.written) + 1) for one in translations]
        for indices in padded_batches(lengths, tokens):
            yield indices, of_head(self._seen([translations[index] for index in indices], layer).dense())

    def known(self, source: str, target: str) -> Translation:
        """A pair of sentences as if the model had written the second, to look at or to align; its score is NaN."""
        (read,), (written,) = self.source.encode_all([source]), self.target.encode_all([target])
        return Translation(source, target, math.nan, (*read, EOS), tuple(written))

    def _aligned(self, one: Translation, weights: Tensor, step: Step) -> Alignment:
        rows = weights[: len(one.written) + 1, : len(one.read)]  # the rest is padding
        merged = word_weights(rows, self.source.words(one.read[:-1]), self.target.words(one.written), step)
        return Alignment(links(merged), merged)

    @torch.inference_mode()
    def _seen(self, translations: Sequence[Translation], layer: int) -> AttentionMap:
        """The map of a batch, (B, H, steps, source), of a layer of the decoder."""
        source, lengths = self._batch([one.read for one in translations])
        written, steps = self._batch([(BOS, *one.written) for one in translations])
        with evaluating(self.model):  # looking drops nothing, and draws no random numbers
            _, seen = self.model.decode(written, self.model.encode(source, lengths), lengths=steps, return_maps=True)
        return seen[layer]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _batch(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids (B, T), PAD beyond each, and lengths (B,)."""
        return padded_rows(rows, PAD, self._device)


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
                f"translator: translations must be of `translate` or `known`; got a {type(one).__name__}. For a pair "
                "of texts take known(source, target)."
            )
    return flat


Interpreter = Translator
"""Deprecated: the former name of `Translator`."""
