"""Load a trained model from the folder of a run or a Hugging Face directory.

Only the model settings of a run are read. No recipe is built, and the training data need not exist any more.
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
from ..data.bare_text import FILE, BareText
from ..data.image_batches import Normal, Shape
from ..data.model_tokenizer import VOCABULARY
from ..data.wordpiece import TOKENIZER, WordPiece
from ..models import Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig
from ..models.bert import Bert, BertConfig
from ..models.bert_heads import MaskedTokens, Pretraining, SequenceClassifier
from ..models.cnn import CNN, CNNConfig
from ..models.gguf_files import load_gguf
from ..models.gpt import GPT, GPTConfig
from ..models.gpt_heads import LastTokenClassifier
from ..models.gpt_settings import config_from as gpt_config_from
from ..models.huggingface_bert import config_from, load_bert
from ..models.huggingface_gpt import load_gpt
from ..models.huggingface_vit import labels_of, load_vit, scale_of
from ..models.vit import ViT, ViTConfig
from ..models.weights import load_weights
from .image_classifier import ImageClassifier, read_about
from .language_model import LanguageModel
from .masked_language_model import MaskedLanguageModel
from .run_files import read_config, read_weights
from .text_classifier import TextClassifier
from .translator import Translator

BERT_CONFIG, GPT_CONFIG = "bert.json", "gpt.json"
"""Configuration of the BERT or GPT of a run."""
Model = TypeVar("Model", bound=nn.Module)

TRANSLATORS: dict[type, Callable[..., Transformer | Seq2Seq]] = {TransformerConfig: Transformer, Seq2SeqConfig: Seq2Seq}
IMAGE_MODELS: dict[type, Callable[..., nn.Module]] = {ViTConfig: ViT, CNNConfig: CNN}

TRANSLATOR_CONFIGS: dict[str, type[TransformerConfig] | type[Seq2SeqConfig]] = {
    "transformer": TransformerConfig,
    "recurrent": Seq2SeqConfig,
}
IMAGE_CONFIGS: dict[str, type[ViTConfig] | type[CNNConfig]] = {"vit": ViTConfig, "cnn": CNNConfig}
TEXT_CLASSIFIERS = ("finetune", "scratch")
GPT_TYPES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
"""Values of model_type in the config.json of a Hugging Face directory."""
LANGUAGE_MODELS = ("gpt2", "llama", "finetune")


def load_translator(folder: str | os.PathLike[str]) -> Translator:
    """Load the best model of a run of `regard train translate`.

    Raises:
        ValueError: if the folder holds no model, or a damaged one; the message names the file.

    >>> import tempfile
    >>> from regard.models import Seq2SeqConfig
    >>> from regard.training import Silent, Training
    >>> from regard.training.recipes.train_translator import Parallel, RecurrentRecipe, train
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "pairs.tsv").write_text("one\\teins\\ntwo\\tzwei\\nthree\\tdrei\\n")
    >>> data = Parallel((folder / "pairs.tsv",), (folder / "pairs.tsv",), vocabulary=40)
    >>> model = Seq2SeqConfig(width=8, hidden=8, encoder_hidden=8)
    >>> recipe = RecurrentRecipe(data=data, model=model, training=Training(steps=2, warmup=1))
    >>> outcome = train(recipe, folder / "run", Silent())
    >>> translator = load_translator(folder / "run")
    >>> len(translator.translate(["one", "two"]))
    2
    """
    folder = Path(folder)
    config = read_recipe_config(folder, "translate", TRANSLATOR_CONFIGS, "a translator")
    settings = from_values(TRANSLATOR_CONFIGS[config["kind"]], config.get("model"), "model.")
    weights = read_weights(folder)  # first, because it verifies the files that are read below
    source, target = (load_vocabulary(folder / name) for name in (SOURCE, TARGET))
    settings = replace(settings, source_vocabulary=len(source), target_vocabulary=len(target))
    model = _with_weights(TRANSLATORS[type(settings)](settings), weights, folder)
    return Translator(model, source, target)


def load_language_model(folder: str | os.PathLike[str]) -> LanguageModel:
    """Load the best model of a run of `regard train language`, the GPT of a Hugging Face directory, or a .gguf file.

    Raises:
        ValueError: if the folder holds no model, or a damaged one; the message names the file.
    """
    folder = Path(folder)
    if folder.suffix == ".gguf":
        return LanguageModel(*load_gguf(folder))
    if not is_run(folder):
        return LanguageModel(load_gpt(folder), load_vocabulary(vocabulary_file(folder)))
    read_recipe_config(folder, "language", LANGUAGE_MODELS, "a language model")
    weights = read_weights(folder)  # first, because it verifies the files that are read below
    model = _with_weights(GPT(gpt_config_of(folder)), weights, folder)
    return LanguageModel(model, load_vocabulary(vocabulary_file(folder)))


def load_text_classifier(folder: str | os.PathLike[str]) -> TextClassifier:
    """Load the best model of a run of `regard train classify`, or the model of a Hugging Face directory.

    Raises:
        ValueError: if the folder holds no model, or a damaged one; the message names the file.

    >>> import tempfile
    >>> from regard.models import save_bert
    >>> folder = tempfile.mkdtemp()
    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> bert = Bert(BertConfig(vocabulary=len(words), width=12, heads=3, hidden=24, layers=2))
    >>> save_bert(SequenceClassifier(bert, ["old", "new"]), folder)
    >>> words.save(folder)
    >>> load_text_classifier(folder).labels
    ('old', 'new')
    """
    folder = Path(folder)
    if not is_run(folder):
        model = load_bert(folder, SequenceClassifier)
        return TextClassifier(model, WordPiece.load(folder), model.bert.config.positions)
    config = read_recipe_config(folder, "classify", TEXT_CLASSIFIERS, "a text classifier")
    texts = config.get("texts")
    longest = texts.get("longest") if isinstance(texts, dict) else None
    if not isinstance(longest, int) or isinstance(longest, bool):
        got = type(longest).__name__
        raise ValueError(f"settings: texts.longest ({longest!r}) must be of type int; got {got}. Change it.")
    words = BareText.load(folder) if is_gpt(folder) else WordPiece.load(folder)
    return TextClassifier(classifier(folder), words, longest)


def load_masked_language_model(folder: str | os.PathLike[str]) -> MaskedLanguageModel:
    """Load the best model of a run of `regard train pretrain`, or the model of a Hugging Face directory.

    Raises:
        ValueError: if the folder holds no model, or a damaged one; the message names the file.
    """
    folder = Path(folder)
    if is_run(folder):
        read_recipe_config(folder, "pretrain", ("",), "a masked language model")
        return MaskedLanguageModel(pretrained(folder), WordPiece.load(folder))
    paired = "BertForPreTraining" in str(read_config(folder).get("architectures"))
    model = load_bert(folder, Pretraining) if paired else load_bert(folder, MaskedTokens)
    return MaskedLanguageModel(model, WordPiece.load(folder))


def load_image_classifier(folder: str | os.PathLike[str]) -> ImageClassifier:
    """Load the best model of a run of `regard train classify --images`, or the model of a Hugging Face directory.

    Raises:
        ValueError: if the folder holds no model, or a damaged one; the message names the file.

    >>> import tempfile
    >>> from regard.models import save_vit
    >>> folder = tempfile.mkdtemp()
    >>> save_vit(ViT(ViTConfig(classes=2, width=24, heads=3, hidden=48, layers=2)), folder, ["cat", "dog"])
    >>> load_image_classifier(folder).classes
    ['cat', 'dog']
    """
    folder = Path(folder)
    if not is_run(folder):
        return _image_classifier_from_huggingface(folder)
    config = read_recipe_config(folder, "images", IMAGE_CONFIGS, "an image classifier")
    settings = from_values(IMAGE_CONFIGS[config["kind"]], config.get("model"), "model.")
    weights = read_weights(folder)  # first, because it verifies the files that are read below
    classes, shape, normal = read_about(folder)
    model = _with_weights(image_model(settings, classes, shape), weights, folder)
    return ImageClassifier(model, classes, shape, normal)


def _image_classifier_from_huggingface(folder: Path) -> ImageClassifier:
    model = load_vit(folder)
    config = model.config
    if not config.classes:
        raise ValueError(
            f"images: {folder} must hold a model with a classification head; got a model that only returns features."
        )
    labels = labels_of(folder) or [str(number) for number in range(config.classes)]
    normal = Normal(*scale_of(folder, config.channels))
    return ImageClassifier(model.eval(), labels, Shape(*config.image, config.channels), normal)


def image_model(config: ViTConfig | CNNConfig, classes: list[str], shape: Shape) -> nn.Module:
    """Build an image model for the given classes and image shape."""
    changes: dict[str, Any] = {"classes": len(classes), "channels": shape.channels}
    if isinstance(config, ViTConfig):
        changes["image"] = (shape.height, shape.width)
    return IMAGE_MODELS[type(config)](replace(config, **changes))


def read_recipe_config(
    folder: str | os.PathLike[str], recipe: str, kinds: Collection[str], what: str
) -> dict[str, Any]:
    """Read the settings of a run of `recipe`.

    Raises:
        ValueError: if it is a run of another recipe, or its kind of model is unknown.
    """
    config = read_config(folder)
    if config.get("recipe") != recipe or str(config.get("kind", "")) not in kinds:
        got = f"a run of {config['recipe']}" if "recipe" in config else "the folder of another program"
        raise ValueError(f"{recipe}: {Path(folder)} must be a run of {what}; got {got}. Give another folder.")
    return config


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run of regard, as opposed to a Hugging Face directory."""
    return "recipe" in read_config(folder)


def config_of(folder: Path) -> BertConfig:
    """Read the configuration of the BERT of a run."""
    return from_json(BertConfig, _config_text(folder / BERT_CONFIG))


def gpt_config_of(folder: Path) -> GPTConfig:
    """Read the configuration of the GPT of a run."""
    return from_json(GPTConfig, _config_text(folder / GPT_CONFIG))


def _config_text(path: Path) -> str:
    if not path.exists():
        raise ValueError(
            f"training: {path} must exist; got a run without it. Train there first, or give another folder."
        )
    return path.read_text(encoding="utf-8")


def is_gpt(folder: Path) -> bool:
    """Return whether the model of a run or of a Hugging Face directory is a GPT, as opposed to a BERT."""
    if is_run(folder):
        return (folder / GPT_CONFIG).exists()
    return read_config(folder).get("model_type") in GPT_TYPES


def gpt_positions(folder: Path) -> int:
    """Return the maximum number of tokens that the GPT of a run or of a Hugging Face directory can read."""
    if is_run(folder):
        return gpt_config_of(folder).positions
    return gpt_config_from(read_config(folder), folder).positions


def vocabulary_file(folder: Path) -> Path:
    """Return the vocabulary of a language model: of a run, or the tokenizer of a Hugging Face directory."""
    if is_run(folder):
        return folder / FILE
    return folder / (VOCABULARY if (folder / VOCABULARY).exists() and not (folder / TOKENIZER).exists() else TOKENIZER)


def positions(folder: Path) -> int:
    """Return the maximum number of tokens that the BERT or GPT of a run or Hugging Face directory can read."""
    if is_gpt(folder):
        return gpt_positions(folder)
    return config_of(folder).positions if is_run(folder) else config_from(read_config(folder), folder).positions


def pretrained(folder: Path) -> MaskedTokens | Pretraining:
    """Load the best model of a run of `regard train pretrain`."""
    weights = read_weights(folder)  # first, because it verifies the files that are read below
    texts = read_config(folder).get("texts")
    if not isinstance(texts, dict) or not isinstance(texts.get("next_sentence"), bool):
        raise ValueError(f"training: {folder} must be a run of pretrain; its config.json has no texts.next_sentence.")
    paired = texts["next_sentence"]
    config = config_of(folder)
    model = Pretraining(Bert(config)) if paired else MaskedTokens(Bert(config, pooler=False))
    return _with_weights(model, weights, folder)


def classifier(folder: Path) -> SequenceClassifier | LastTokenClassifier:
    """Load the best model of a run of `regard train classify` on texts."""
    weights = read_weights(folder)  # first, because it verifies the files that are read below
    if is_gpt(folder):
        return _with_weights(LastTokenClassifier(GPT(gpt_config_of(folder)), read_labels(folder)), weights, folder)
    return _with_weights(SequenceClassifier(Bert(config_of(folder)), read_labels(folder)), weights, folder)


def _with_weights(model: Model, weights: Mapping[str, Tensor], folder: Path) -> Model:
    load_weights(model, weights, str(folder / "model.safetensors"))
    return model.eval()


MODELS = {"pretrain": pretrained, "classify": classifier}


def best(folder: str | os.PathLike[str]) -> nn.Module:
    """Load the best model of a run that trains a BERT."""
    folder = Path(folder)
    recipe = str(read_config(folder).get("recipe"))
    if recipe not in MODELS or not (folder / BERT_CONFIG).exists():
        got = f"{recipe} on a GPT" if (folder / GPT_CONFIG).exists() else recipe
        raise ValueError(f"training: {folder} must be a run of pretrain or of classify on texts; got {got}.")
    return MODELS[recipe](folder)


LABELS = "labels.json"


def read_labels(folder: Path) -> list[str]:
    """Read the labels of a run."""
    path = folder / LABELS
    labels = read_json_object(path, "the labels of a run", "Train it again.", where="labelled").get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labelled: {path} must hold a list of labels; got {labels!r}. Train it again.")
    return labels


SOURCE, TARGET = "source.json", "target.json"
