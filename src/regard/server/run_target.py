"""Runs of `regard train` as targets: a translator, a text classifier, an image classifier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import BOS, EOS, Vocabulary
from ..data.image_files import decode
from ..tasks.loading import load_image_classifier, load_text_classifier, load_translator
from ..tasks.translator import Translation, Translator
from .guard import RequestError
from .target import Layer, Snapshot, Target, brief, snapshot

MAX_SUBWORDS = 256
"""Maximum number of subwords of a sentence to translate, and of its translation."""


class TranslatorTarget(Target):
    """A run of `regard train translate`. Shows the attention of the best translation of a text."""

    can = ("translate", "run")

    def __init__(self, folder: Path, text: str | None = None) -> None:
        self.translator: Translator = load_translator(folder)
        self.title = folder.resolve().name
        self.snapshot = Snapshot("translator", self.title, [], text=text)
        if text is not None and self.translator.attends:
            self.snapshot = self.first_snapshot(lambda: self.run(text))

    def run(self, text: str) -> Snapshot:
        (best,) = self._translate(text, 5, 1)
        if not self.translator.attends:
            raise RequestError(
                400, f"model must attend to its source; {self.title} has a fixed context, the same at each step."
            )
        return Snapshot("translator", f"{self.title}: {best.source} → {best.text}", self._layers(best), text=text)

    def _layers(self, one: Translation) -> list[Layer]:
        """Return all attention maps of the model for a sentence and its translation."""
        from ..lens.watch import watch

        with watch(self.translator.model) as seen:  # type: ignore[arg-type]  # a translator is a module
            maps = self.translator.look([one])
        source = self.translator.source.pieces(one.read)
        written = self.translator.target.pieces((*one.written, EOS))
        decoder_input = self.translator.target.pieces((BOS, *one.written))
        layers = []
        for name, kind, map in zip(seen.names, seen.kinds, seen.maps, strict=True):
            layer = Layer(name, kind, map)
            sides = {"cross": (written, source), "causal": (decoder_input, decoder_input), "self": (source, source)}[
                kind
            ]
            if (len(sides[0]), len(sides[1])) == (layer.queries, layer.keys):
                layer.query_tokens, layer.key_tokens = sides
            layers.append(layer)
        return layers or [Layer("attention", "cross", maps[0])]

    def _translate(self, text: str, beam: int, n_best: int) -> list[Translation]:
        length = len(self.translator.source.encode(text))
        if length > MAX_SUBWORDS:
            raise RequestError(
                413, f"text ({length} subwords) must have at most {MAX_SUBWORDS}. Translate sentence by sentence."
            )
        return self.translator.translate(text, size=beam, n_best=n_best, longest=MAX_SUBWORDS)

    def translate(self, text: str, beam: int, n_best: int) -> dict[str, Any]:
        translations = self._translate(text, beam, n_best)
        maps = self.translator.look(translations)
        aligned = self.translator.align(translations, maps=maps)
        source, target = self.translator.source, self.translator.target
        hypotheses = [
            {
                "text": one.text,
                "score": one.score,
                "source": source.pieces(one.read),
                "target": target.pieces((*one.written, EOS)),
                "weights": maps[number].dense().float().mean(0).tolist() if maps else [],  # (steps, source)
                "source_words": words(source, one.read[:-1]),
                "target_words": words(target, one.written),
                "links": [list(link) for link in aligned[number].links] if aligned else [],
            }
            for number, one in enumerate(translations)
        ]
        return {"hypotheses": hypotheses}


def words(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """Return the words of a sentence in the order of the numbers of `Vocabulary.words`."""
    numbered = zip(vocabulary.words(ids), ids, strict=True)
    return [
        vocabulary.decode([id for _, id in group]).strip()
        for number, group in groupby(numbered, key=lambda pair: pair[0])
        if number >= 0
    ]


class TextClassifier(Target):
    """A run of `regard train classify`. Shows the attention for a text and the predicted label."""

    can = ("run",)

    def __init__(self, folder: Path, text: str | None) -> None:
        if text is None or not text.strip():
            raise ValueError(f"view: {folder} must be opened with a text. Pass --text or --file.")
        self.classifier, self.title = load_text_classifier(folder), folder.resolve().name
        self.snapshot = self.run(text)

    def run(self, text: str) -> Snapshot:
        """Classify a text as `regard classify` does. A text that is too long is truncated."""
        from ..lens.watch import watch

        words, model = self.classifier.words, self.classifier.model
        ids = words.encode(text, longest=self.classifier.longest).ids
        with watch(model) as seen, torch.inference_mode():
            chances = model(torch.tensor([ids]), [len(ids)])[0].float().softmax(0)  # (C,)
        seen.tokens(words.pieces(ids))
        best = int(chances.argmax())
        label = f"{self.classifier.labels[best]} ({float(chances[best]):.2f})"
        return snapshot(seen, "model", f"{self.title}: {label}: {brief(text)}", text=text)


class Classifier(Target):
    """A run of `regard train images`. Shows the attention for an image."""

    def __init__(self, folder: Path, image: Path | None) -> None:
        if image is None:
            raise ValueError(f"view: {folder} must be opened with an image. Pass --image FILE.")
        self.classifier, self.image = load_image_classifier(folder), image
        pixels = decode(image, self.classifier.shape)  # (C, H, W) bytes
        self.snapshot = run_vit(
            self.classifier.model,
            self.classifier.normal(pixels[None]),
            pixels,
            f"{folder.resolve().name}: {image.name}",
        )


def run_vit(model: Any, values: Tensor, pixels: Tensor, title: str) -> Snapshot:
    """Run a Vision Transformer and return its attention. `pixels` are (C, H, W) bytes, `values` the model input."""
    from ..lens.patch_weights import Patches
    from ..lens.watch import watch
    from ..models.vit import ViT

    if not isinstance(model, ViT):
        raise ValueError(f"view: {title} must be a Vision Transformer; a {type(model).__name__} has no attention.")
    with watch(model) as seen, torch.inference_mode():
        model.encode(values)  # all tokens: the classifier computes only the class token in the last block
    colours = pixels if len(pixels) == 3 else pixels[:1].expand(3, -1, -1)
    seen.image = colours.permute(1, 2, 0).contiguous()
    rows, columns = model.config.grid
    seen.patches = Patches(rows, columns, int(model.first is not None))
    return snapshot(seen, "images", title)
