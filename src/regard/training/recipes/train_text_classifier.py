"""The recipe of `regard train classify` on texts: labelled text and maybe a pretrained BERT → a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from ...core.settings import errors_of, from_values
from ...data.wordpiece import CONFIG, PLAIN, TOKENIZER, WordPiece
from ...models.bert import Bert
from ...models.bert_heads import SequenceClassifier
from ...tasks.labelled import Prepared, Texts, prepare
from ...tasks.loading import config_of, load_text_classifier, positions
from ...tasks.metrics import f1_of, save_confusion
from ...tasks.text_classification import Classify
from ...tasks.text_classifier import Classifier
from ..config import Training, refuse
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from ..run_folder import check_settings, load_best, read_config
from . import bert_sizes
from .pretrain_bert import fitting

NAME = "classify"
load = load_text_classifier


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every classifier of texts is trained by."""

    texts: Texts
    smoothing: float = 0.0
    """Share of the probability that all classes have in the loss, so that the model is never wholly sure."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        wrong = not 0 <= self.smoothing < 1
        return [f"classify: smoothing ({self.smoothing}) must lie in [0, 1). Try 0.1."] if wrong else []


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(Recipe):
    """A classifier from labelled text, on a BERT that was trained before."""

    start: Annotated[Path, tyro.conf.arg(name="from")]
    """What to begin with: a run of ours (pretrain, classify), or a model directory of Hugging Face."""
    layer_decay: float = 1.0
    """Each layer learns at so much of the rate of the one above it; 1: all alike."""
    dropout: float | None = None
    """Share of embeddings and of each part's output dropped in training; without, as much as it was trained with."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels have none."""
    pool: Literal["first", "mean"] | None = None
    """What a text is classified by: its first token, [CLS], or the mean of all; without, what it was made for."""
    training: Training = field(
        default_factory=lambda: Training(
            epochs=3, learning_rate=5e-5, warmup=0.1, schedule="linear", betas=(0.9, 0.999), weight_decay=0.01
        )
    )

    def errors(self) -> list[str]:
        found = super().errors()
        if not 0 < self.layer_decay <= 1:
            found.append(f"classify: layer_decay ({self.layer_decay}) must lie in (0, 1]. Try 0.9, or 1 for none.")
        for name, value in (("dropout", self.dropout or 0.0), ("attention_dropout", self.attention_dropout)):
            if not 0 <= value < 1:
                found.append(f"classify: {name} ({value}) must lie in [0, 1). Try 0.")
        return found

    @property
    def changes(self) -> dict[str, Any]:
        """The settings of the BERT that are to be others than those it was trained with."""
        asked = {"dropout": self.dropout, "attention_dropout": self.attention_dropout, "pool": self.pool}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ScratchRecipe(Recipe):
    """A classifier from labelled text alone. Its vocabulary is found on the way."""

    model: bert_sizes.Sizes = field(default_factory=bert_sizes.Sizes)
    lower: bool = True
    """Read capitals as small letters, and letters without their accents."""
    training: Training = field(
        default_factory=lambda: Training(epochs=10, learning_rate=5e-4, warmup=0.1, weight_decay=0.01)
    )

    def errors(self) -> list[str]:
        return super().errors() + fitting(self.texts.longest, self.model.positions)


KINDS: dict[str, type[FinetuneRecipe] | type[ScratchRecipe]] = {"finetune": FinetuneRecipe, "scratch": ScratchRecipe}


def train(
    recipe: FinetuneRecipe | ScratchRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the texts, build the model, train; on a folder that holds the run, go on with it.

    At the end confusion.png and confusion.json tell which classes of the held-out texts the best model takes for which.
    """
    folder = Path(folder)
    refuse(errors_of(recipe))
    display = display or Display()
    training = recipe.training
    (kind,) = (name for name, known in KINDS.items() if type(recipe) is known)
    settings = bert_sizes.told(recipe, recipe=NAME, kind=kind)
    check_settings(folder, {"training": asdict(training), **settings})
    sources: list[Path] = []
    if isinstance(recipe, FinetuneRecipe):
        known = folder if bert_sizes.begun(folder) else recipe.start
        refuse(fitting(recipe.texts.longest, positions(known)))
        if not bert_sizes.begun(folder):  # afterwards it may be gone
            names = (TOKENIZER, CONFIG, PLAIN)
            sources = [recipe.start / name for name in names if (recipe.start / name).is_file()]
    vocabulary = partial(_vocabulary, recipe)
    prepared = prepare(recipe.texts, folder, vocabulary, training.seed, display.say, sources=sources)
    torch.manual_seed(training.seed)  # of the first weights
    model = _model(recipe, folder, prepared)
    digests = {**prepared.digests, **bert_sizes.keep_config(folder, model.bert.config)}
    task = Classify(
        Classifier(model, prepared.words, recipe.texts.longest),
        *prepared.batches(recipe.texts.tokens, training.seed),
        smoothing=recipe.smoothing,
        layer_decay=recipe.layer_decay if isinstance(recipe, FinetuneRecipe) else 1.0,
    )
    outcome = fit(task, training, folder, recipe=settings, digests=digests, display=display)
    if os.environ.get("RANK", "0") == "0" and (outcome.trained or not (folder / "confusion.png").exists()):
        _conclude(task, folder)
    return outcome


def stored(folder: str | os.PathLike[str]) -> FinetuneRecipe | ScratchRecipe:
    """The recipe of a run."""
    folder = Path(folder)
    found = read_config(folder)
    kind = KINDS.get(str(found.pop("kind", "")))
    if found.pop("recipe", None) != NAME or kind is None:
        raise ValueError(f"classify: {folder} must be a run of a classifier of texts; got another. Give its folder.")
    return from_values(kind, found)


def _vocabulary(recipe: FinetuneRecipe | ScratchRecipe, texts: Iterable[str]) -> WordPiece:
    """That of what is begun with, or one found in the texts."""
    if isinstance(recipe, FinetuneRecipe):
        return WordPiece.load(recipe.start)
    return WordPiece.train(texts, recipe.model.vocabulary, lower=recipe.lower)


def _model(recipe: FinetuneRecipe | ScratchRecipe, folder: Path, prepared: Prepared) -> SequenceClassifier:
    if bert_sizes.begun(folder):  # the state has its weights: what it began with may be gone
        return SequenceClassifier(Bert(config_of(folder)), prepared.labels)
    if isinstance(recipe, FinetuneRecipe):
        return bert_sizes.start(recipe.start, prepared.labels, **recipe.changes)
    return SequenceClassifier(Bert(recipe.model.config(prepared.words)), prepared.labels)


@torch.no_grad()
def _conclude(task: Classify, folder: Path) -> None:
    load_best(task.model, folder)
    task.model.eval()
    matrix = task.confusion()
    save_confusion(matrix, task.classifier.labels, f1_of(matrix).each.tolist(), folder / "confusion.png")
