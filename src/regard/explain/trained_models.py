"""Trained models in place of small random ones: a translator, a classifier of texts, one of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..data import EOS
from ..data.image_files import decode
from ..models import Seq2Seq, SequenceClassifier, Transformer, ViT
from ..tasks.image_classifier import ImageClassifier
from ..tasks.loading import load_image_classifier, load_text_classifier, load_translator
from ..tasks.run_files import read_config
from ..tasks.text_classifier import Classifier
from ..tasks.translator import Translator
from .mechanisms import LONGEST, Explained, classifier, image, translator

Run = Translator | Classifier | ImageClassifier


def load(folder: str | os.PathLike[str]) -> Run:
    """The model of a run, or of a directory of Hugging Face that holds a BERT or a ViT.

    Raises:
        ValueError: in words, for a folder that holds neither.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"explain: RUN ({folder}) must be a folder with a trained model; there is none. Give its path."
        )
    config = read_config(folder)
    kind = str(config.get("recipe") or config.get("model_type") or "")
    loaders: dict[object, Callable[[Path], Run]] = {
        "translate": load_translator,
        "classify": load_text_classifier,
        "bert": load_text_classifier,
        "images": load_image_classifier,
        "vit": load_image_classifier,
    }
    if kind not in loaders:
        raise ValueError(
            f"explain: RUN ({folder}) must be a run of translate, classify or images, or a directory of a BERT or ViT; "
            f"got {kind or 'none of them'}. Give the folder that regard train wrote."
        )
    found: Run = loaders[kind](folder)
    return found


def mechanism_of(run: Run) -> str:
    """What a run is an example of."""
    model = run.model
    if isinstance(model, Transformer):
        return "transformer"
    if isinstance(model, Seq2Seq):
        return "encoder-decoder" if model.config.context == "fixed" else "bahdanau"
    if isinstance(model, SequenceClassifier):
        return "bert"
    if isinstance(model, ViT):
        return "vit"
    raise ValueError(
        f"explain: RUN must hold a model with attention; got a {type(model).__name__}. Try one trained as a ViT."
    )


def explain_run(run: Run, text: str | None, picture: Path | None, title: str) -> Explained:
    """What a trained model does with a text or an image.

    Raises:
        ValueError: where it is not given what it reads, or more of it than a chart shows.
    """
    mechanism_of(run)
    if isinstance(run, ImageClassifier):
        if text is not None:
            raise ValueError(
                f"explain: text ({text!r}) must be left out: {title} looks at an image. Give --image FILE."
            )
        if picture is None:
            raise ValueError(f"explain: {title} must be given an image to look at. Give --image FILE.")
        pixels = decode(picture, run.shape)
        return image(run.model, run.normal(pixels[None]), run.classes, title)  # type: ignore[arg-type]
    if picture is not None:
        raise ValueError(f"explain: image ({picture}) must be left out: {title} reads a text. Give --text TEXT.")
    if not (text or "").strip():
        raise ValueError(f"explain: {title} must be given a text to read. Give --text TEXT.")
    assert text is not None
    if isinstance(run, Classifier):
        ids = run.words.encode(text, longest=run.longest).ids
        _check(len(ids))
        return classifier(run.model, ids, run.words.pieces(ids), title)
    _check(len(run.source.encode(text)) + 1)
    ((best,),) = run.translate([text], size=5, n_best=1, longest=LONGEST - 1)
    return translator(run.model, best.read, [*best.written, EOS], run.source.pieces, run.target.pieces, title)


def _check(pieces: int) -> None:
    if pieces > LONGEST:
        raise ValueError(f"explain: text ({pieces} pieces) must have at most {LONGEST}. A chart shows each.")
