"""Load any trained model by one call: a run, a Hugging Face directory or a .gguf file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from ..core.files import checked_path
from ..models.model_directory import architectures_of
from .embedder import Embedder
from .image_classifier import ImageClassifier
from .language_model import LanguageModel
from .loading import (
    GPT_TYPES,
    load_image_classifier,
    load_language_model,
    load_masked_language_model,
    load_text_classifier,
    load_translator,
)
from .masked_language_model import MaskedLanguageModel
from .run_files import read_config
from .text_classifier import TextClassifier
from .translator import Translator

TrainedModel: TypeAlias = Translator | TextClassifier | ImageClassifier | LanguageModel | MaskedLanguageModel | Embedder
"""A trained model, as `load` returns it."""
ModelType = TypeVar(
    "ModelType", Translator, TextClassifier, ImageClassifier, LanguageModel, MaskedLanguageModel, Embedder
)
LOADERS: dict[type, Callable[[Path], Any]] = {
    Translator: load_translator,
    TextClassifier: load_text_classifier,
    ImageClassifier: load_image_classifier,
    LanguageModel: load_language_model,
    MaskedLanguageModel: load_masked_language_model,
    Embedder: Embedder.load,
}
RECIPES = {
    "translate": Translator,
    "classify": TextClassifier,
    "images": ImageClassifier,
    "language": LanguageModel,
    "pretrain": MaskedLanguageModel,
}


@overload
def load(path: str | os.PathLike[str]) -> TrainedModel: ...
@overload
def load(path: str | os.PathLike[str], kind: type[ModelType]) -> ModelType: ...
def load(path: str | os.PathLike[str], kind: type[object] | None = None) -> TrainedModel:
    """Load a trained model: the best weights of a run, a Hugging Face directory, or a .gguf file.

    Every model can be called, has `maps` and `export`, and all but `Embedder` have `evaluate`.

    Args:
        path: folder of a run, model directory of a BERT, ViT, GPT-2 or Llama model, or .gguf file.
        kind: class of the result, such as `Translator`; by default, the one that fits the model. With `Embedder`, a
            BERT directory of any kind gives sentence embeddings.

    Raises:
        ValueError: if there is no such model, or a damaged one. The message names the file.

    >>> import tempfile, regard
    >>> from regard.data import WordPiece
    >>> from regard.models import Bert, BertConfig, SequenceClassifier, save_bert
    >>> from regard.tasks import TextClassifier
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2))
    >>> folder = tempfile.mkdtemp()
    >>> save_bert(SequenceClassifier(bert, ["old", "new"]), folder)
    >>> words.save(folder)
    >>> classifier = regard.load(folder, TextClassifier)
    >>> classifier("a low") in ("old", "new"), type(regard.load(folder)) is TextClassifier
    (True, True)
    """
    path = checked_path("load", "path", path)
    model: TrainedModel = LOADERS[kind or _kind_of(path)](path)
    return model


def _kind_of(path: Path) -> type:
    """Return the class that fits the model in a path."""
    if path.suffix == ".gguf":
        return LanguageModel
    config = read_config(path)
    recipe, model_type = config.get("recipe"), config.get("model_type")
    architectures = architectures_of(config)
    if str(recipe) in RECIPES:
        return RECIPES[str(recipe)]
    if model_type == "vit":
        return ImageClassifier
    if model_type in GPT_TYPES:
        return LanguageModel
    if model_type == "bert":
        if any(name.endswith("ForSequenceClassification") for name in architectures):
            return TextClassifier
        masked = any(name.endswith(("ForMaskedLM", "ForPreTraining")) for name in architectures)
        return MaskedLanguageModel if masked else Embedder
    raise ValueError(
        f"load: path ({path}) must be a run of regard, or a model directory of a BERT, ViT, GPT-2 or Llama model; got "
        f"{recipe or model_type or 'another config.json'}."
    )
