"""A translator: a model with its source and target vocabularies, from text to text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, overload

import torch
from torch import Tensor

from ..attention import AttentionMap
from ..core.process import run_in_threads
from ..data import BOS, EOS, PAD, Vocabulary
from ..data.text_arguments import check_text, listed_texts
from ..data.text_batches import padded_batches, padded_rows
from ..models import EncoderDecoder, Hypothesis, beam, greedy
from ..models.beam_search import check_search, evaluating
from ..models.fast_inference import fast_decoder
from .alignment import Link, Step, links, word_weights
from .block_maps import block_maps
from .model_summary import summary

if TYPE_CHECKING:
    from .evaluation import TranslationScores

BATCHES, ROWS = 8, 1024
"""Desired number of batches in a search, and maximum number of hypotheses in a batch."""
PACKED_FROM = 16
"""Number of sentences from which packing the weights pays off."""


@dataclass(frozen=True)
class Translation:
    """A translated sentence.

    >>> Translation("a", "b", -0.5, read=(5, 3), written=(6,))
    Translation(source='a', text='b', score=-0.5)
    """

    source: str
    text: str
    score: float
    """Log-probability, divided by the length penalty."""
    read: tuple[int, ...] = field(repr=False)
    """Token ids of the source, with EOS at the end."""
    written: tuple[int, ...] = field(repr=False)
    """Token ids of the translation, without EOS."""


Translations = Translation | Sequence[Translation] | Sequence[Sequence[Translation]]
"""One translation, several, or the result of `Translator.translate`."""
Maps = Sequence[AttentionMap] | Sequence[Sequence[AttentionMap]]
"""Maps as returned by `Translator.look`, or by `Translator.translate` with `return_maps`."""


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
    """Word alignment of a translation with its source."""

    links: list[Link]
    weights: Tensor
    """(target words, source words)"""


@dataclass(frozen=True)
class Translator:
    """A translation model and its vocabularies.

    Sentences are translated in batches of similar length. Results are in the order of the inputs. `load_translator`
    loads a trained one; this one has random weights:

    >>> from regard.data import Characters
    >>> from regard.models import Transformer, TransformerConfig
    >>> letters = Characters("abc ")
    >>> model = Transformer(TransformerConfig(len(letters), len(letters), width=8, heads=2, hidden=16))
    >>> translator = Translator(model, letters, letters)
    >>> translator
    Translator(Transformer, 4,672 parameters, source=8, target=8)
    >>> (best,), (m,) = translator.translate("ab", size=2, longest=4, return_maps=True)
    >>> best.source, m.shape == (2, len(best.written) + 1, 3), translator.attends      # heads, steps, source with EOS
    ('ab', True, True)
    >>> [len(best) for best in translator.translate(["ab", "c"], n_best=2, longest=4)]
    [2, 2]
    >>> isinstance(translator("ab", longest=4), str), translator(["ab", ""], longest=4)[1]      # the text alone
    (True, '')
    >>> [m.shape for m in translator.maps("ab", "ca")]                  # of each decoder block, for a known translation
    [(2, 3, 3), (2, 3, 3), (2, 3, 3)]
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "pairs.tsv").write_text("ab\\tba\\nc\\tc\\n")
    >>> translator.evaluate(folder / "pairs.tsv", size=1, longest=4)["pairs"]
    2
    >>> translator.export(folder / "ctranslate2").name, translator.device.type
    ('ctranslate2', 'cpu')

    Attention and word alignment of an existing pair of sentences:

    >>> pair = translator.known("ab", "ca")
    >>> [m.shape for m in translator.look(pair)], translator.align(pair).weights.shape
    ([(2, 3, 3)], torch.Size([2, 2]))

    With ids in place of texts:

    >>> hypotheses = translator.search([(4, 5, EOS)], size=1, longest=4)
    >>> len(hypotheses[0][0].tokens) <= 4
    True
    """

    model: EncoderDecoder
    source: Vocabulary
    target: Vocabulary

    def __repr__(self) -> str:
        return summary(self, self.model, source=len(self.source), target=len(self.target))

    @property
    def attends(self) -> bool:
        """Whether the model attends to its source. Only then are there maps and alignments."""
        return self.model.attends

    @overload
    def __call__(self, texts: str, **options: Unpack[SearchOptions]) -> str: ...  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
    @overload
    def __call__(self, texts: Sequence[str], **options: Unpack[SearchOptions]) -> list[str]: ...
    def __call__(self, texts: str | Sequence[str], **options: Unpack[SearchOptions]) -> str | list[str]:
        """Return the best translation of a text, or of each of several texts. See `translate` for the options."""
        if isinstance(texts, str):
            return self.translate(texts, **options)[0].text
        return [best.text for best, *_ in self.translate(texts, **options)]

    def maps(self, text: str, translation: str | None = None) -> list[AttentionMap]:
        """Return the cross-attention map (H, steps, source) of each decoder block, with its tokens.

        There is one step for each output token, and one for EOS. The list is empty for a model without attention.

        Args:
            text: a sentence.
            translation: its translation; by default, the best one of the model.
        """
        if not self.attends:
            return []
        check_text("translate", "text", text)
        one = self.translate(text)[0] if translation is None else self.known(text, translation)
        tokens = self.target.pieces((*one.written, EOS)), self.source.pieces(one.read)
        return block_maps(self._maps([one]), *tokens)

    def evaluate(
        self, *files: str | Path, size: int = 5, longest: int = 128, header: bool | None = None
    ) -> TranslationScores:
        """Translate the sources of sentence pairs and compare with their targets: loss, BLEU and chrF.

        Args:
            files: two files with one sentence per line, or one file of SOURCE TAB TARGET lines.
            size: beam size; 1 for greedy search.
            longest: maximum number of tokens of a translation.
            header: whether the first line of a TSV file names its columns. By default, known names are detected.
        """
        from .evaluation import evaluate_translator

        return evaluate_translator(self, files, size=size, longest=longest, header=header)

    def export(self, folder: str | Path) -> Path:
        """Write a folder that `ctranslate2.Translator` opens, with the vocabularies. Return it.

        Raises:
            ValueError: if CTranslate2 does not support the model or is not installed.
        """
        from ..models.ctranslate2_export import to_ctranslate2

        return to_ctranslate2(self.model, self.source, self.target, folder)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @overload
    def translate(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self, texts: str, *, return_maps: Literal[False] = ..., **options: Unpack[SearchOptions]
    ) -> list[Translation]: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, return_maps: Literal[False] = ..., **options: Unpack[SearchOptions]
    ) -> list[list[Translation]]: ...
    @overload
    def translate(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self, texts: str, *, return_maps: Literal[True], **options: Unpack[SearchOptions]
    ) -> tuple[list[Translation], list[AttentionMap]]: ...
    @overload
    def translate(
        self, texts: Sequence[str], *, return_maps: Literal[True], **options: Unpack[SearchOptions]
    ) -> tuple[list[list[Translation]], list[list[AttentionMap]]]: ...
    @overload
    def translate(
        self, texts: str | Sequence[str], *, return_maps: bool, **options: Unpack[SearchOptions]
    ) -> (
        list[Translation]
        | list[list[Translation]]
        | tuple[list[Translation], list[AttentionMap]]
        | tuple[list[list[Translation]], list[list[AttentionMap]]]
    ): ...
    def translate(
        self, texts: str | Sequence[str], *, return_maps: bool = False, **options: Unpack[SearchOptions]
    ) -> (
        list[Translation]
        | list[list[Translation]]
        | tuple[list[Translation], list[AttentionMap]]
        | tuple[list[list[Translation]], list[list[AttentionMap]]]
    ):
        """Return the n best translations of each text, best first. For a single string, return its translations.

        Args:
            texts: sentences. The translation of an empty sentence is empty.
            size: beam size; 1 for greedy search.
            length_penalty: α of score / length^α.
            n_best: number of translations of each text, at most `size`.
            longest: maximum number of tokens of a translation.
            tokens: maximum of source tokens in a batch, including padding, times `size`. With few texts, batches are
                smaller, so that every thread gets work.
            return_maps: also return the attention map of each translation, as `look` does. `align` accepts these maps.
        """
        listed = listed_texts("translate", texts)
        ids = [(*tokens, EOS) for tokens in self.source.encode_all(listed)]
        written = [index for index, text in enumerate(listed) if text.strip()]
        results = self.search([ids[index] for index in written], **options)
        # replaced below, except for empty texts
        translations = [[Translation(text, "", 0.0, (EOS,), ())] * options.get("n_best", 1) for text in listed]
        for index, best in zip(written, results, strict=True):
            translations[index] = [
                Translation(listed[index], self.target.decode(one.tokens), one.score, ids[index], one.tokens)
                for one in best
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
        """Return the n best hypotheses for each sequence of ids. Sequences end with EOS.

        The arguments are those of `translate`.
        """
        check_search(size, n_best, length_penalty)
        lengths_read = [len(read) for read in ids]
        cells = min(tokens, max(tokens // 4, sum(lengths_read) * size // BATCHES)) // size
        batches = list(padded_batches(lengths_read, max(1, cells), max(1, ROWS // size)))

        model = fast_decoder(self.model, packed=len(ids) >= PACKED_FROM)

        def search_batch(indices: list[int]) -> list[list[Hypothesis]]:
            source, lengths = self._batch([ids[index] for index in indices])
            options: dict[str, Any] = {"longest": longest, "length_penalty": length_penalty}
            if size == 1:
                return [[hypothesis] for hypothesis in greedy(model, source, lengths, **options)]
            return beam(model, source, lengths, size=size, n_best=n_best, **options)

        hypotheses: list[list[Hypothesis]] = [[] for _ in ids]
        with evaluating(self.model):  # around all batches, because the threads share the model's mode
            results = run_in_threads(search_batch, batches) if self.device.type == "cpu" else map(search_batch, batches)
            for indices, batch in zip(batches, results, strict=True):
                for index, best in zip(indices, batch, strict=True):
                    hypotheses[index] = best
        return hypotheses

    def look(self, translations: Translations, *, layer: int = -1) -> list[AttentionMap]:
        """Return the cross-attention map (H, steps, source) of each translation, with its tokens.

        There is one step for each output token, and one for EOS. The list is empty for a model without attention.

        Args:
            translations: one translation, several, or the result of `translate`, which is flattened.
            layer: decoder layer.
        """
        if not self.attends:
            return []
        return [
            self._map([one], layer).at(0).tokens(self.target.pieces((*one.written, EOS)), self.source.pieces(one.read))
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
        """Return the word alignment of each translation, with the word weights from which its links were derived.

        The list is empty for a model without attention.

        Args:
            translations: one translation, for one alignment; several, or the result of `translate`, for a list.
            step: decoder step that represents a word: the one that wrote it ("output") or the one that read it
                ("input").
            layer: decoder layer.
            head: attention head; by default, the mean of all heads.
            tokens: maximum number of tokens in a batch, including padding.
            maps: maps of these translations from `look` or `translate(…, return_maps=True)`. They are used instead of
                running the model again, and `layer` is ignored.
        """
        listed, single = _flat(translations), isinstance(translations, Translation)
        if not self.attends:
            if single:
                raise ValueError(
                    "align: model must have attention; got one with a fixed context, which has no alignment."
                )
            return []
        alignments: dict[int, Alignment] = {}
        for indices, weights in self._weights(listed, layer, head, tokens, maps):
            for index, rows in zip(indices, weights, strict=True):
                alignments[index] = self._aligned(listed[index], rows, step)
        return alignments[0] if single else [alignments[index] for index in range(len(listed))]

    def _weights(
        self, translations: Sequence[Translation], layer: int, head: int | None, tokens: int, maps: Maps | None
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield the indices of translations with their weights (B, steps, Ts): those of one head, or the mean."""

        def of_head(dense: Tensor) -> Tensor:  # (B, H, steps, Ts) → (B, steps, Ts)
            return dense.float().mean(1) if head is None else dense.float()[:, head]

        if maps is not None:
            flat = [one for item in maps for one in ([item] if isinstance(item, AttentionMap) else item)]
            if len(flat) != len(translations):
                raise ValueError(
                    f"align: number of maps ({len(flat)}) must equal the number of translations ({len(translations)})."
                )
            for index, attention in enumerate(flat):
                yield [index], of_head(attention.dense()[None])
            return
        lengths = [max(len(one.read), len(one.written) + 1) for one in translations]
        for indices in padded_batches(lengths, tokens):
            yield indices, of_head(self._map([translations[index] for index in indices], layer).dense())

    def known(self, source: str, target: str) -> Translation:
        """Return a `Translation` for an existing pair of sentences, to pass to `look` or `align`. Its score is NaN."""
        (read,), (written,) = self.source.encode_all([source]), self.target.encode_all([target])
        return Translation(source, target, math.nan, (*read, EOS), tuple(written))

    def _aligned(self, one: Translation, weights: Tensor, step: Step) -> Alignment:
        rows = weights[: len(one.written) + 1, : len(one.read)]  # the rest is padding
        merged = word_weights(rows, self.source.words(one.read[:-1]), self.target.words(one.written), step)
        return Alignment(links(merged), merged)

    def _map(self, translations: Sequence[Translation], layer: int) -> AttentionMap:
        """Return the map (B, H, steps, source) of a batch at a decoder layer."""
        return self._maps(translations)[layer]

    @torch.inference_mode()
    def _maps(self, translations: Sequence[Translation]) -> Sequence[AttentionMap]:
        """Return the map (B, H, steps, source) of a batch at each decoder layer."""
        source, lengths = self._batch([one.read for one in translations])
        written, steps = self._batch([(BOS, *one.written) for one in translations])
        with evaluating(self.model):  # no dropout, and no random numbers are drawn
            _, maps = self.model.decode(written, self.model.encode(source, lengths), lengths=steps, return_maps=True)
        return maps

    def _batch(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return padded ids (B, T) and lengths (B,)."""
        return padded_rows(rows, PAD, self.device)


def _flat(translations: Translations) -> list[Translation]:
    """Flatten one translation, several, or several per text into one list."""
    if isinstance(translations, Translation):
        return [translations]
    flat: list[Translation] = []
    for one in translations:
        flat += [one] if isinstance(one, Translation) else one
    for one in flat:
        if not isinstance(one, Translation):
            raise ValueError(
                f"translator: translations must come from `translate` or `known`; got a {type(one).__name__}. For a "
                "pair of texts, use known(source, target)."
            )
    return flat


Interpreter = Translator
"""Deprecated: the former name of `Translator`."""
