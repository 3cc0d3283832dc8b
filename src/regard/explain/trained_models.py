"""Charts of trained models: translators, text classifiers, image classifiers and language models."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..data import EOS
from ..data.image_files import decode
from ..models import GPT, LastTokenClassifier, Seq2Seq, SequenceClassifier, Transformer, ViT
from ..tasks.image_classifier import ImageClassifier
from ..tasks.language_model import LanguageModel
from ..tasks.loading import (
    GPT_TYPES,
    load_image_classifier,
    load_language_model,
    load_text_classifier,
    load_translator,
)
from ..tasks.run_files import read_config
from ..tasks.text_classifier import Classifier
from ..tasks.translator import Translator
from .recorded_models import LONGEST, Explained, classifier, image, language_model, translator

Run = Translator | Classifier | ImageClassifier | LanguageModel


def load(folder: str | os.PathLike[str]) -> Run:
    """Load the model of a run, or a BERT, GPT or ViT from a Hugging Face directory.

    Raises:
        ValueError: if the folder has no such model.
    """
    folder = Path(folder)
    config = read_config(folder)
    kind = str(config.get("recipe") or config.get("model_type") or "")
    loaders: dict[object, Callable[[Path], Run]] = {
        "translate": load_translator,
        "classify": load_text_classifier,
        "bert": load_text_classifier,
        "images": load_image_classifier,
        "vit": load_image_classifier,
        **dict.fromkeys(("language", *GPT_TYPES), load_language_model),
    }
    if kind not in loaders:
        raise ValueError(
            f"explain: RUN ({folder}) must be a run of translate, classify, images or language, or a directory of a "
            f"BERT, GPT or ViT; got {kind or 'none of them'}. Pass a folder written by regard train."
        )
    return loaders[kind](folder)


def mechanism_of(run: Run) -> str:
    """Return the mechanism of a run's model."""
    model = run.model
    if isinstance(model, Transformer):
        return "transformer"
    if isinstance(model, Seq2Seq):
        return "encoder-decoder" if model.config.context == "fixed" else "bahdanau"
    if isinstance(model, SequenceClassifier):
        return "bert"
    if isinstance(model, GPT):
        return "gpt"
    if isinstance(model, ViT):
        return "vit"
    if isinstance(model, LastTokenClassifier):
        raise ValueError("explain: RUN must be a classifier on a BERT; got one on a GPT, for which there is no chart.")
    raise ValueError(
        f"explain: RUN must contain a model with attention; got a {type(model).__name__}. Try one trained as a ViT."
    )


def explain_run(run: Run, text: str | None, picture: Path | None, title: str) -> Explained:
    """Record a trained model on a text or an image.

    Raises:
        ValueError: if the input is missing, of the wrong kind, or too long for a chart.
    """
    mechanism_of(run)
    if isinstance(run, ImageClassifier):
        if text is not None:
            raise ValueError(f"explain: text ({text!r}) must be omitted: {title} is an image model. Pass --image FILE.")
        if picture is None:
            raise ValueError(f"explain: {title} must be run on an image. Pass --image FILE.")
        pixels = decode(picture, run.shape)
        return image(run.model, run.normal(pixels[None]), run.classes, title)  # type: ignore[arg-type]  # `mechanism_of` checked that it is a ViT
    if picture is not None:
        raise ValueError(f"explain: image ({picture}) must be omitted: {title} is a text model. Pass --text TEXT.")
    if not (text or "").strip():
        raise ValueError(f"explain: {title} must be run on a text. Pass --text TEXT.")
    assert text is not None
    if isinstance(run, Classifier):
        assert isinstance(run.model, SequenceClassifier), "mechanism_of raises for others"
        ids = run.words.encode(text, longest=run.longest).ids
        _check_length(len(ids))
        return classifier(run.model, ids, run.words.pieces(ids), title)
    if not isinstance(run, Translator):
        ids = run.vocabulary.encode(text)
        _check_length(len(ids))
        return language_model(run.model, ids, run.vocabulary.pieces, title)
    _check_length(len(run.source.encode(text)) + 1)
    ((best,),) = run.translate([text], size=5, n_best=1, longest=LONGEST - 1)
    return translator(run.model, best.read, [*best.written, EOS], run.source.pieces, run.target.pieces, title)


def _check_length(tokens: int) -> None:
    if tokens > LONGEST:
        raise ValueError(f"explain: text ({tokens} tokens) must have at most {LONGEST}. A chart shows each token.")
