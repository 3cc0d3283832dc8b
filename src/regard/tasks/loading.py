"""From the folder of a run, or a Hugging Face directory, to a trained model.

Of the settings of a run only those of its model are read: no recipe is built, and the data it was trained on may be
gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ..core.json_files import read_json_object
from ..core.settings import from_json, from_values
from ..data import load_vocabulary
from ..data.image_batches import Normal, Shape
from ..data.wordpiece import WordPiece
from ..models import Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig
from ..models.bert import Bert, BertConfig
from ..models.bert_heads import MaskedTokens, Pretraining, SequenceClassifier
from ..models.cnn import CNN, CNNConfig
from ..models.huggingface_bert import config_from, load_bert
from ..models.huggingface_vit import labels_of, load_vit, scale_of
from ..models.vit import ViT, ViTConfig
from ..models.weights import load_weights
from .image_classifier import ImageClassifier, read_about
from .run_files import read_config, read_weights
from .text_classifier import Classifier
from .translator import Translator

CONFIG = "bert.json"
Model = TypeVar("Model", bound=nn.Module)

TRANSLATORS: dict[type, Callable[..., Transformer | Seq2Seq]] = {TransformerConfig: Transformer, Seq2SeqConfig: Seq2Seq}
IMAGE_MODELS: dict[type, Callable[..., nn.Module]] = {ViTConfig: ViT, CNNConfig: CNN}

TRANSLATOR_CONFIGS: dict[str, type[TransformerConfig] | type[Seq2SeqConfig]] = {
    "transformer": TransformerConfig,
    "recurrent": Seq2SeqConfig,
}
IMAGE_CONFIGS: dict[str, type[ViTConfig] | type[CNNConfig]] = {"vit": ViTConfig, "cnn": CNNConfig}
TEXT_CLASSIFIERS = ("finetune", "scratch")


def load_translator(folder: str | os.PathLike[str]) -> Translator:
    """Load the best model of a run of `regard train translate`.

    Raises:
        ValueError: where the folder holds none, or a damaged one, with the file named.
    """
    folder = Path(folder)
    config = read_recipe_config(folder, "translate", TRANSLATOR_CONFIGS, "a translator")
    settings = from_values(TRANSLATOR_CONFIGS[config["kind"]], config.get("model"), "model.")
    weights = read_weights(folder)  # first: it checks the files that are read below
    source, target = (load_vocabulary(folder / name) for name in (SOURCE, TARGET))
    settings = replace(settings, source_vocabulary=len(source), target_vocabulary=len(target))
    model = _with_weights(TRANSLATORS[type(settings)](settings), weights, folder)
    return Translator(model, source, target)


def load_text_classifier(folder: str | os.PathLike[str]) -> Classifier:
    """Load the best model of a run of `regard train classify`, or that of a Hugging Face directory.

    Raises:
        ValueError: where the folder holds none, or a damaged one, with the file named.
    """
    folder = Path(folder)
    if not is_run(folder):
        model = load_bert(folder, SequenceClassifier)
        return Classifier(model, WordPiece.load(folder), model.bert.config.positions)
    config = read_recipe_config(folder, "classify", TEXT_CLASSIFIERS, "a classifier of texts")
    texts = config.get("texts")
    longest = texts.get("longest") if isinstance(texts, dict) else None
    if not isinstance(longest, int) or isinstance(longest, bool):
        got = type(longest).__name__
        raise ValueError(f"settings: texts.longest ({longest!r}) must be of type int; got {got}. Change it.")
    return Classifier(classifier(folder), WordPiece.load(folder), longest)


def load_image_classifier(folder: str | os.PathLike[str]) -> ImageClassifier:
    """Load the best model of a run of `regard train classify --images`, or that of a Hugging Face directory.

    Raises:
        ValueError: where the folder holds none, or a damaged one, with the file named.
    """
    folder = Path(folder)
    if not is_run(folder):
        return _image_classifier_from_huggingface(folder)
    config = read_recipe_config(folder, "images", IMAGE_CONFIGS, "a classifier of images")
    settings = from_values(IMAGE_CONFIGS[config["kind"]], config.get("model"), "model.")
    weights = read_weights(folder)  # first: it checks the files that are read below
    classes, shape, normal = read_about(folder)
    model = _with_weights(image_model(settings, classes, shape), weights, folder)
    return ImageClassifier(model, classes, shape, normal)


def _image_classifier_from_huggingface(folder: Path) -> ImageClassifier:
    model = load_vit(folder)
    config = model.config
    if not config.classes:
        raise ValueError(f"images: {folder} must hold a model with a classifier; got one that gives features alone.")
    labels = labels_of(folder) or [str(number) for number in range(config.classes)]
    normal = Normal(*scale_of(folder, config.channels))
    return ImageClassifier(model.eval(), labels, Shape(*config.image, config.channels), normal)


def image_model(config: ViTConfig | CNNConfig, classes: list[str], shape: Shape) -> nn.Module:
    """A model of these settings for these classes and images of this shape."""
    changes: dict[str, Any] = {"classes": len(classes), "channels": shape.channels}
    if isinstance(config, ViTConfig):
        changes["image"] = (shape.height, shape.width)
    return IMAGE_MODELS[type(config)](replace(config, **changes))


def read_recipe_config(
    folder: str | os.PathLike[str], recipe: str, kinds: Collection[str], what: str
) -> dict[str, Any]:
    """The settings of a run of a recipe; ValueError for a run of another, or of a kind of model that is not known."""
    config = read_config(folder)
    if config.get("recipe") != recipe or str(config.get("kind", "")) not in kinds:
        raise ValueError(f"{recipe}: {Path(folder)} must be a run of {what}; got another. Give its folder.")
    return config


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of ours; else it may be a directory of Hugging Face."""
    return "recipe" in read_config(folder)


def config_of(folder: Path) -> BertConfig:
    """The configuration of the BERT of a run."""
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"training: {path} must exist; got a run without. Train there first, or give another folder.")
    return from_json(BertConfig, path.read_text(encoding="utf-8"))


def positions(folder: Path) -> int:
    """Ids of the longest text that the BERT of a run or of a Hugging Face directory reads."""
    return config_of(folder).positions if is_run(folder) else config_from(read_config(folder), folder).positions


def pretrained(folder: Path) -> MaskedTokens | Pretraining:
    """The best model of a run of `regard train pretrain`."""
    weights = read_weights(folder)  # first: it checks the files that are read below
    texts = read_config(folder).get("texts")
    if not isinstance(texts, dict) or not isinstance(texts.get("next_sentence"), bool):
        raise ValueError(f"training: {folder} must be a run of pretrain; its config.json has no texts.next_sentence.")
    paired = texts["next_sentence"]
    config = config_of(folder)
    model = Pretraining(Bert(config)) if paired else MaskedTokens(Bert(config, pooler=False))
    return _with_weights(model, weights, folder)


def classifier(folder: Path) -> SequenceClassifier:
    """The best model of a run of `regard train classify` on texts."""
    weights = read_weights(folder)  # first: it checks the files that are read below
    return _with_weights(SequenceClassifier(Bert(config_of(folder)), read_labels(folder)), weights, folder)


def _with_weights(model: Model, weights: Mapping[str, Tensor], folder: Path) -> Model:
    load_weights(model, weights, str(folder / "model.safetensors"))
    return model.eval()


MODELS = {"pretrain": pretrained, "classify": classifier}


def best(folder: str | os.PathLike[str]) -> nn.Module:
    """The best model of a run with a BERT."""
    folder = Path(folder)
    recipe = str(read_config(folder).get("recipe"))
    if recipe not in MODELS or not (folder / CONFIG).exists():
        raise ValueError(f"training: {folder} must be a run of pretrain or of classify on texts; got {recipe}.")
    return MODELS[recipe](folder)


LABELS = "labels.json"


def read_labels(folder: Path) -> list[str]:
    """The labels of a run."""
    path = folder / LABELS
    labels = read_json_object(path, "the labels of a run", "Train it again.", where="labelled").get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labelled: {path} must hold a list of labels; got {labels!r}. Train it again.")
    return labels


SOURCE, TARGET = "source.json", "target.json"
