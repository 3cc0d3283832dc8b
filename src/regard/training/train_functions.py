"""Training in one call, which takes data, a folder and settings by name, and returns the trained model.

Each function is a recipe of `regard train` with the same settings, the same defaults and the same messages. A run in
the folder is resumed; its settings are then the defaults.
"""

from __future__ import annotations

from typing import Literal, Unpack

from ..core.files import checked_path
from ..core.setting_options import settings_from
from ..tasks.image_classifier import ImageClassifier
from ..tasks.language_model import LanguageModel
from ..tasks.loading import (
    load_image_classifier,
    load_language_model,
    load_masked_language_model,
    load_text_classifier,
    load_translator,
)
from ..tasks.masked_language_model import MaskedLanguageModel
from ..tasks.text_classifier import TextClassifier
from ..tasks.translator import Translator
from .progress import Display
from .recipes.recipe_choice import choose
from .setting_types import (
    File,
    Files,
    ImageClassifierSettings,
    LanguageModelSettings,
    PretrainingSettings,
    TextClassifierSettings,
    TranslatorSettings,
)


def train_translator(
    folder: File,
    *,
    train: Files | None = None,
    valid: Files | None = None,
    kind: Literal["transformer", "recurrent"] | None = None,
    start: File | None = None,
    config: File | None = None,
    display: Display | None = None,
    **settings: Unpack[TranslatorSettings],
) -> Translator:
    """Train a translator on sentence pairs and return the best one.

    Args:
        folder: folder of the run. If it holds a run, the run is resumed, and all other arguments may be omitted.
        train: training pairs: two files with one sentence per line, or one file of SOURCE TAB TARGET lines.
        valid: held-out pairs in the same format; by default, a fraction of the training pairs (`hold_out`).
        kind: kind of model; default: "transformer".
        start: run to continue, with its model and vocabularies.
        config: file of settings (.toml, .yaml or .json), such as the config.json of a run. Arguments override it.
        display: progress display; default: the terminal. `regard.training.Silent()` shows nothing.
        settings: further settings, as `regard train translate --help-all` lists them.

    Raises:
        ValueError: for invalid settings and data. The message lists all of them.

    >>> import tempfile, regard
    >>> from pathlib import Path
    >>> from regard.training import Silent
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "pairs.tsv").write_text("one\\teins\\ntwo\\tzwei\\nthree\\tdrei\\n")
    >>> translator = regard.train_translator(
    ...     folder / "run", train=folder / "pairs.tsv", valid=folder / "pairs.tsv", kind="recurrent", vocabulary=40,
    ...     width=8, hidden=8, encoder_hidden=8, steps=2, warmup=1, display=Silent())
    >>> isinstance(translator("one"), str)
    True
    """
    _train("translate", folder, {"train": train, "valid": valid, "start": start, **settings}, kind, config, display)
    return load_translator(folder)


def train_language_model(
    folder: File,
    *,
    train: Files | None = None,
    valid: Files | None = None,
    kind: Literal["gpt2", "llama"] | None = None,
    start: File | None = None,
    config: File | None = None,
    display: Display | None = None,
    **settings: Unpack[LanguageModelSettings],
) -> LanguageModel:
    """Train a GPT on plain text and return the best one.

    Args:
        folder: folder of the run. If it holds a run, the run is resumed, and all other arguments may be omitted.
        train: text files.
        valid: held-out text files; by default, the end of the training text (`hold_out`).
        kind: form of the model; default: "gpt2".
        start: run or Hugging Face directory to continue, with its vocabulary.
        config: file of settings, as in `train_translator`.
        display: progress display, as in `train_translator`.
        settings: further settings, as `regard train language --help-all` lists them.

    Raises:
        ValueError: for invalid settings and data. The message lists all of them.

    >>> import tempfile, regard
    >>> from pathlib import Path
    >>> from regard.training import Silent
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("to be or not to be " * 20)
    >>> language = regard.train_language_model(
    ...     folder / "run", train=folder / "text.txt", vocabulary="characters", width=8, heads=2, layers=1, context=16,
    ...     steps=2, warmup=1, display=Silent())
    >>> isinstance(language("to ", max_new_tokens=4), str)
    True
    """
    _train("language", folder, {"train": train, "valid": valid, "start": start, **settings}, kind, config, display)
    return load_language_model(folder)


def train_masked_language_model(
    folder: File,
    *,
    train: Files | None = None,
    valid: Files | None = None,
    config: File | None = None,
    display: Display | None = None,
    **settings: Unpack[PretrainingSettings],
) -> MaskedLanguageModel:
    """Pretrain a BERT on plain text, by predicting masked tokens, and return the best one.

    Args:
        folder: folder of the run. If it holds a run, the run is resumed, and all other arguments may be omitted.
        train: text files.
        valid: held-out text files; by default, a fraction of the documents (`hold_out`).
        config: file of settings, as in `train_translator`.
        display: progress display, as in `train_translator`.
        settings: further settings, as `regard train pretrain --help-all` lists them.

    Raises:
        ValueError: for invalid settings and data. The message lists all of them.

    >>> import tempfile, regard
    >>> from pathlib import Path
    >>> from regard.training import Silent
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "text.txt").write_text("the cat sat on the mat\\na dog ran to the cat\\n" * 20)
    >>> model = regard.train_masked_language_model(
    ...     folder / "run", train=folder / "text.txt", documents="line", hold_out=0.2, vocabulary=40, width=8, heads=2,
    ...     hidden=8, layers=1, steps=2, warmup=1, display=Silent())
    >>> len(model("the [MASK] sat"))
    1
    """
    _train("pretrain", folder, {"train": train, "valid": valid, **settings}, None, config, display)
    return load_masked_language_model(folder)


def train_text_classifier(
    folder: File,
    *,
    train: File | None = None,
    valid: File | None = None,
    start: File | None = None,
    config: File | None = None,
    display: Display | None = None,
    **settings: Unpack[TextClassifierSettings],
) -> TextClassifier:
    """Train a classifier on labelled texts and return the best one.

    Args:
        folder: folder of the run. If it holds a run, the run is resumed, and all other arguments may be omitted.
        train: texts with labels: a .tsv, .csv or .jsonl file.
        valid: held-out texts in the same format; by default, a fraction of the training texts (`hold_out`).
        start: pretrained BERT or GPT to fine-tune: a run or a Hugging Face directory. Default: train from scratch.
        config: file of settings, as in `train_translator`.
        display: progress display, as in `train_translator`.
        settings: further settings, as `regard train classify --help-all` lists them.

    Raises:
        ValueError: for invalid settings and data. The message lists all of them.

    >>> import tempfile, regard
    >>> from pathlib import Path
    >>> from regard.training import Silent
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "films.tsv").write_text("a fine film\\tgood\\na dull film\\tbad\\na great film\\tgood\\n")
    >>> classifier = regard.train_text_classifier(
    ...     folder / "run", train=folder / "films.tsv", valid=folder / "films.tsv", vocabulary=40, width=8, heads=2,
    ...     hidden=8, layers=1, steps=2, warmup=1, display=Silent())
    >>> classifier("a fine film") in ("good", "bad")
    True
    """
    _train("classify", folder, {"train": train, "valid": valid, "start": start, **settings}, None, config, display)
    return load_text_classifier(folder)


def train_image_classifier(
    folder: File,
    *,
    train: File | None = None,
    valid: File | None = None,
    kind: Literal["vit", "cnn"] | None = None,
    config: File | None = None,
    display: Display | None = None,
    **settings: Unpack[ImageClassifierSettings],
) -> ImageClassifier:
    """Train a classifier on labelled images and return the best one.

    Args:
        folder: folder of the run. If it holds a run, the run is resumed, and all other arguments may be omitted.
        train: a folder of idx files, a folder with one subfolder per class, or an .npz file of arrays.
        valid: held-out images in the same format; by default, a fraction of the training images (`hold_out`).
        kind: Vision Transformer or residual network; default: "vit".
        config: file of settings, as in `train_translator`.
        display: progress display, as in `train_translator`.
        settings: further settings, as `regard train classify --images X --help-all` lists them.

    Raises:
        ValueError: for invalid settings and data. The message lists all of them.

    >>> import tempfile, regard
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from regard.training import Silent
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "images.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) % 2)
    >>> classifier = regard.train_image_classifier(
    ...     folder / "run", train=folder / "images.npz", hold_out=0.2, kind="cnn", widths=(4,), blocks=1, steps=2,
    ...     warmup=1, display=Silent())
    >>> classifier(np.zeros((8, 8), np.uint8)) in ("0", "1")
    True
    """
    _train("images", folder, {"train": train, "valid": valid, **settings}, kind, config, display)
    return load_image_classifier(folder)


def _train(
    recipe: str, folder: File, values: dict[str, object], kind: str | None, config: File | None, display: Display | None
) -> None:
    """Train by a recipe. Settings that are None here, and settings from a file, give way to the others."""
    folder, start = checked_path("training", "folder", folder), values.get("start")
    choice = choose(recipe, folder, kind=kind, start=None if start is None else str(start), config=config)
    optional = ("train", "valid", "start")
    chosen = {name: value for name, value in values.items() if value is not None or name not in optional}
    settings = settings_from(choice.kind, chosen, choice.defaults, file=choice.values)
    choice.module.train(settings, folder, display)
