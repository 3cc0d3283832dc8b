"""Runs of ours as targets: a translator, a classifier of texts, a classifier of images."""

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
from .guard import Refused
from .target import Layer, Shown, Target, brief, shown

LONGEST = 256
"""Subwords of a sentence to translate, and of its translation."""


class TranslatorTarget(Target):
    """A run of `regard train translate`: every text is translated, and the best translation looked at."""

    can = ("translate", "run")

    def __init__(self, folder: Path, text: str | None = None) -> None:
        self.translator: Translator = load_translator(folder)
        self.title = folder.resolve().name
        self.shown = Shown("translator", self.title, [])
        if text is not None:
            try:
                self.shown = self.run(text)
            except Refused as error:
                raise ValueError(f"view: {error.words}") from error

    def run(self, text: str) -> Shown:
        (best,) = self._translate(text, 5, 1)
        if not self.translator.attends:
            raise Refused(
                400, f"model must look at its source; {self.title} has a fixed context, the same at each step."
            )
        return Shown("translator", f"{self.title}: {best.source} → {best.text}", self._layers(best))

    def _layers(self, one: Translation) -> list[Layer]:
        """Every attention of the model, while it reads the source and writes the translation."""
        from ..lens.watch import watch

        with watch(self.translator.model) as seen:  # type: ignore[arg-type]  # a translator is a module
            maps = self.translator.look([one])
        source = self.translator.source.pieces(one.read)
        written = self.translator.target.pieces((*one.written, EOS))
        given = self.translator.target.pieces((BOS, *one.written))
        layers = []
        for name, kind, map in zip(seen.names, seen.kinds, seen.maps, strict=True):
            layer = Layer(name, kind, map)
            sides = {"cross": (written, source), "causal": (given, given), "self": (source, source)}[kind]
            if (len(sides[0]), len(sides[1])) == (layer.queries, layer.keys):
                layer.query_tokens, layer.key_tokens = sides
            layers.append(layer)
        return layers or [Layer("attention", "cross", maps[0])]

    def _translate(self, text: str, beam: int, n_best: int) -> list[Translation]:
        length = len(self.translator.source.encode(text))
        if length > LONGEST:
            raise Refused(413, f"text ({length} subwords) must have at most {LONGEST}. Translate sentence by sentence.")
        return self.translator.translate(text, size=beam, n_best=n_best, longest=LONGEST)

    def translate(self, text: str, beam: int, n_best: int) -> dict[str, Any]:
        found = self._translate(text, beam, n_best)
        maps = self.translator.look(found)
        aligned = self.translator.align(found, maps=maps)
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
            for number, one in enumerate(found)
        ]
        return {"hypotheses": hypotheses}


def words(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The words of a sentence, numbered as `Vocabulary.words` numbers them."""
    numbered = zip(vocabulary.words(ids), ids, strict=True)
    return [
        vocabulary.decode([id for _, id in group]).strip()
        for number, group in groupby(numbered, key=lambda pair: pair[0])
        if number >= 0
    ]


class TextClassifier(Target):
    """A run of `regard train classify` and a text: what it looks at, and what it takes the text for."""

    can = ("run",)

    def __init__(self, folder: Path, text: str | None) -> None:
        if text is None or not text.strip():
            raise ValueError(f"view: {folder} must come with a text to read. Give --text or --file.")
        self.classifier, self.title = load_text_classifier(folder), folder.resolve().name
        self.shown = self.run(text)

    def run(self, text: str) -> Shown:
        """As `regard classify` reads it: the end of a text longer than the model takes is left out."""
        from ..lens.watch import watch

        words, model = self.classifier.words, self.classifier.model
        ids = words.encode(text, longest=self.classifier.longest).ids
        with watch(model) as seen, torch.inference_mode():
            chances = model(torch.tensor([ids]), [len(ids)])[0].float().softmax(0)  # (C,)
        seen.tokens(words.pieces(ids))
        best = int(chances.argmax())
        label = f"{self.classifier.labels[best]} ({float(chances[best]):.2f})"
        return shown(seen, "model", f"{self.title}: {label}: {brief(text)}")


class Classifier(Target):
    """A run of `regard train images` and an image."""

    def __init__(self, folder: Path, image: Path | None) -> None:
        if image is None:
            raise ValueError(f"view: {folder} must come with an image to look at. Give --image FILE.")
        self.classifier, self.image = load_image_classifier(folder), image
        pixels = decode(image, self.classifier.shape)  # (C, H, W) bytes
        self.shown = looked(
            self.classifier.model,
            self.classifier.normal(pixels[None]),
            pixels,
            f"{folder.resolve().name}: {image.name}",
        )


def looked(model: Any, given: Tensor, pixels: Tensor, title: str) -> Shown:
    """What a Vision Transformer of ours looks at: pixels are (C, H, W) bytes, given what the model takes for them."""
    from ..lens.patch_weights import Patches
    from ..lens.watch import watch
    from ..models.vit import ViT

    if not isinstance(model, ViT):
        raise ValueError(
            f"view: {title} must be seen by a Vision Transformer; a {type(model).__name__} attends to nothing."
        )
    with watch(model) as seen, torch.inference_mode():
        model.encode(given)  # all tokens: to classify, the last block needs only the class token's
    colours = pixels if len(pixels) == 3 else pixels[:1].expand(3, -1, -1)
    seen.image = colours.permute(1, 2, 0).contiguous()
    rows, columns = model.config.grid
    seen.patches = Patches(rows, columns, int(model.first is not None))
    return shown(seen, "images", title)
