"""From the folder of a run, or a Hugging Face directory, to a trained model.

Of the settings of a run only those of its model are read: no recipe is built, and the data it was trained on may be
gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

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
    config = read_config(folder)
    kind = TRANSLATOR_CONFIGS.get(str(config.get("kind")))
    if config.get("recipe") != "translate" or kind is None:
        raise ValueError(f"translate: {folder} must be a run of a translator; got another. Give its folder.")
    settings = from_values(kind, config.get("model"), "model.")
    weights = read_weights(folder)  # first: it checks the files that are read below
    source, target = (load_vocabulary(folder / name) for name in (SOURCE, TARGET))
    settings = replace(settings, source_vocabulary=len(source), target_vocabulary=len(target))
    model = TRANSLATORS[kind](settings)
    load_weights(model, weights, str(folder / "model.safetensors"))
    return Translator(model.eval(), source, target)


def load_text_classifier(folder: str | os.PathLike[str]) -> Classifier:
    """Load the best model of a run of `regard train classify`, or that of a Hugging Face directory.

    Raises:
        ValueError: where the folder holds none, or a damaged one, with the file named.
    """
    folder = Path(folder)
    if not is_run(folder):
        model = load_bert(folder, SequenceClassifier)
        return Classifier(model, WordPiece.load(folder), model.bert.config.positions)
    config = read_config(folder)
    if config.get("recipe") != "classify" or config.get("kind") not in TEXT_CLASSIFIERS:
        raise ValueError(f"classify: {folder} must be a run of a classifier of texts; got another. Give its folder.")
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
    config = read_config(folder)
    kind = IMAGE_CONFIGS.get(str(config.get("kind")))
    if config.get("recipe") != "images" or kind is None:
        raise ValueError(f"images: {folder} must be a run of a classifier of images; got another. Give its folder.")
    settings = from_values(kind, config.get("model"), "model.")
    weights = read_weights(folder)  # first: it checks the files that are read below
    classes, shape, normal = read_about(folder)
    model = image_model(settings, classes, shape)
    load_weights(model, weights, str(folder / "model.safetensors"))
    return ImageClassifier(model.eval(), classes, shape, normal)


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
    load_weights(model, weights, str(folder / "model.safetensors"))
    return model.eval()


def classifier(folder: Path) -> SequenceClassifier:
    """The best model of a run of `regard train classify` on texts."""
    weights = read_weights(folder)  # first: it checks the files that are read below
    model = SequenceClassifier(Bert(config_of(folder)), read_labels(folder))
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
