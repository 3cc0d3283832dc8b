"""The recipe of `regard train classify` on texts: trains a classifier, from scratch or on a pretrained BERT or GPT.

From top to bottom: data settings, preparation of vocabulary, labels and corpora, recipe settings, training, confusion
matrix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from ...core.chunks import chunks
from ...core.files import write_text
from ...core.setting_options import named
from ...core.settings import LATER, refuse, to_values
from ...data import Corpus, Report
from ...data.bare_text import FILE, BareText
from ...data.corpus import CHUNK, Pair
from ...data.encodings import allowed, check_share
from ...data.labelled_text import Columns, Example, check_labels, labels_of, numbers_of, read_labelled, split
from ...data.text_batches import TextBatches
from ...data.vocabulary import load_vocabulary
from ...data.wordpiece import CONFIG, PLAIN, TOKENIZER, WordPiece
from ...models.bert import Bert
from ...models.bert_heads import SequenceClassifier
from ...models.gpt import GPT
from ...models.gpt_heads import LastTokenClassifier
from ...pictures.training_charts import save_confusion
from ...tasks.loading import (
    BERT_CONFIG,
    GPT_CONFIG,
    LABELS,
    config_of,
    gpt_config_of,
    is_gpt,
    positions,
    read_labels,
    vocabulary_file,
)
from ...tasks.metrics import f1_of
from ...tasks.run_files import load_best
from ...tasks.text_classification import Classify
from ...tasks.text_classifier import TextClassifier
from ..config import Training
from ..distributed import is_first_process
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from . import bert_sizes, gpt_sizes
from .preparation import Say, has_state, prepare_once, write_model_config
from .recipe_settings import (
    checked_settings,
    fraction_errors,
    length_errors,
    missing_files,
    range_errors,
    read_recipe,
    smoothing_errors,
)

Words = WordPiece | BareText
Vocabulary = Callable[[Iterable[str]], Words]
"""Function that returns the vocabulary for the given training texts."""


TRAIN, VALID = "data/train", "data/valid"


@dataclass(frozen=True)
class Texts:
    """Settings of the labelled texts."""

    data: Path = field(metadata=named("train"))
    """Texts with labels: .tsv (text TAB label), .csv or .jsonl; plain or gzip."""
    valid: Path | None = None
    """Held-out texts for evaluation, in the same format. By default, a fraction of the data is held out."""
    hold_out: float = 0.1
    """Fraction of texts to hold out if no validation file is given."""
    text_column: str = ""
    """Column of the text; by default the one named text or sentence."""
    label_column: str = ""
    """Column of the label; by default the one named label."""
    longest: int = 128
    """Maximum number of tokens of a text, including [CLS] and [SEP] of a BERT. Longer texts are truncated."""
    tokens: int = 1000
    """Maximum number of tokens in a batch."""
    badly_encoded: float | None = None
    """Maximum fraction of lines that are not valid UTF-8. They are skipped; more are an error. Default 0.01."""
    header: bool | None = field(default=None, metadata=LATER)
    """Whether the first line of a .tsv file names its columns. By default, text and label are detected, and any
    name beside label."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        valid = [] if self.valid is None else [self.valid]
        errors = [*missing_files("train", [self.data]), *missing_files("valid", valid)]
        errors += fraction_errors("hold_out", self.hold_out, 0.1)
        errors += [*range_errors("longest", self.longest, 3, 2**20), *range_errors("tokens", self.tokens, 1, 2**30)]
        return errors + check_share(self.badly_encoded)

    @property
    def columns(self) -> Columns:
        return Columns(self.text_column, self.label_column, self.header)


class Prepared(NamedTuple):
    """Prepared data in the folder of a run."""

    words: Words
    labels: list[str]
    train: Corpus
    valid: Corpus
    digests: Mapping[str, str]
    """Digests of the prepared files by name, and of the inputs."""

    def batches(self, tokens: int, seed: int) -> tuple[TextBatches, TextBatches]:
        """Return the training and validation batches."""
        valid = TextBatches(self.valid, tokens, pad=self.words.pad, shuffle=False)
        return TextBatches(self.train, tokens, pad=self.words.pad, seed=seed), valid


def prepare(
    config: Texts,
    folder: Path,
    vocabulary: Vocabulary,
    seed: int,
    say: Say = print,
    *,
    sources: Sequence[Path] = (),
    bare: bool = False,
) -> Prepared:
    """Return the vocabulary, labels and corpora. Prepare them if the folder lacks them.

    Args:
        config: data settings.
        folder: folder of the run.
        vocabulary: function that returns the vocabulary for the training texts.
        seed: seed of the split into training and validation texts.
        say: called with messages, such as the number of skipped texts.
        sources: files that `vocabulary` reads, if any.
        bare: whether the vocabulary is that of a language model, a `BareText`.
    """
    files = (FILE,) if bare else (TOKENIZER, CONFIG)
    digests = prepare_once(
        folder,
        settings={**to_values(config), "seed": seed},
        inputs=[path for path in (config.data, config.valid, *sources) if path is not None],
        outputs=(*files, TRAIN, VALID, LABELS),
        make=lambda: _make(config, folder, vocabulary, seed, say),
    )
    train, valid = (Corpus.open(folder / name) for name in (TRAIN, VALID))
    words = BareText.load(folder) if bare else WordPiece.load(folder)
    return Prepared(words, read_labels(folder), train, valid, digests)


def _make(config: Texts, folder: Path, vocabulary: Vocabulary, seed: int, say: Say) -> None:
    learn, held = _sides(config, seed, say)
    labels = labels_of(learn)
    check_labels(learn, labels, config.data, config.header)
    numbers = numbers_of(learn, labels, config.data), numbers_of(held, labels, config.valid or config.data)
    words = vocabulary(example.text for example in learn)
    words.save(folder)
    for name, examples, of in zip(("train", "valid"), (learn, held), numbers, strict=True):
        cut = Report()
        Corpus.write(folder / "data" / name, _encoded(examples, of, words, config.longest, cut))
        truncated = cut.left_out.get("cut", 0)
        say(f"{name}: {len(examples):,} texts{_counts(of, labels)}{f'; {truncated:,} truncated' * bool(truncated)}")
    write_text(folder / LABELS, json.dumps({"labels": labels}, ensure_ascii=False) + "\n")


def _sides(config: Texts, seed: int, say: Say) -> tuple[list[Example], list[Example]]:
    """Return the training and the held-out examples."""
    sides, share = [], allowed(config.badly_encoded)
    for path in (config.data, config.valid):
        if path is not None:
            report = Report(what="texts")
            sides.append(list(read_labelled(path, report, columns=config.columns, badly_encoded=share)))
            say(f"{path.name}: {report}")
    return (sides[0], sides[1]) if len(sides) == 2 else split(sides[0], config.hold_out, seed)


def _encoded(
    examples: Sequence[Example], numbers: Sequence[int], words: Words, longest: int, report: Report
) -> Iterator[Pair]:
    for chunk in chunks(zip(examples, numbers, strict=True), CHUNK):
        whole = words.encode_bare([example.text for example, _ in chunk])
        for ids, (_, number) in zip(whole, chunk, strict=True):
            most = longest - words.added
            if len(ids) > most:
                report.add("cut")
            yield words.join(ids[:most]).ids, [number]


def _counts(numbers: Sequence[int], labels: Sequence[str]) -> str:
    if len(labels) > 10:
        return f" of {len(labels):,} classes"
    return ", " + ", ".join(f"{label}: {numbers.count(number):,}" for number, label in enumerate(labels))


NAME = "classify"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings shared by all text classifiers."""

    texts: Texts
    smoothing: float = 0.0
    """Label smoothing: probability that the loss spreads over all classes."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return smoothing_errors(NAME, self.smoothing)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(Recipe):
    """Fine-tune a pretrained BERT or GPT as a classifier of labelled texts."""

    start: Path = field(metadata=named("from"))
    """Model to start from: a run of regard (pretrain, classify, language) or a Hugging Face model directory."""
    layer_decay: float = 1.0
    """Ratio of the learning rate of each layer to that of the layer above it; 1 for equal rates."""
    dropout: float | None = None
    """Dropout of the embeddings and of the output of each sublayer. By default, that of the pretrained model."""
    attention_dropout: float = 0.0
    """Dropout of attention weights. The fast kernels do not support it."""
    pool: Literal["first", "mean"] | None = None
    """Pooling of a BERT: the first token, [CLS], or the mean of all tokens. By default, that of the pretrained model.
    A GPT is read at the last token."""
    training: Training = field(
        default_factory=lambda: Training(
            epochs=3, learning_rate=5e-5, warmup=0.1, schedule="linear", betas=(0.9, 0.999), weight_decay=0.01
        )
    )

    def errors(self) -> list[str]:
        errors = super().errors()
        if not 0 < self.layer_decay <= 1:
            errors.append(f"classify: layer_decay ({self.layer_decay}) must lie in (0, 1]. Try 0.9, or 1 for none.")
        for name, value in (("dropout", self.dropout or 0.0), ("attention_dropout", self.attention_dropout)):
            if not 0 <= value < 1:
                errors.append(f"classify: {name} ({value}) must lie in [0, 1). Try 0.")
        return errors

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that replace those of the pretrained model."""
        settings = {"dropout": self.dropout, "attention_dropout": self.attention_dropout, "pool": self.pool}
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ScratchRecipe(Recipe):
    """Train a classifier on labelled texts from scratch. Its vocabulary is learned from the texts."""

    model: bert_sizes.Sizes = field(default_factory=bert_sizes.Sizes)
    lower: bool = True
    """Convert text to lower case and remove accents."""
    training: Training = field(
        default_factory=lambda: Training(epochs=10, learning_rate=5e-4, warmup=0.1, weight_decay=0.01)
    )

    def errors(self) -> list[str]:
        return super().errors() + length_errors(self.texts.longest, self.model.positions)


KINDS: dict[str, type[FinetuneRecipe] | type[ScratchRecipe]] = {"scratch": ScratchRecipe, "finetune": FinetuneRecipe}


def train(
    recipe: FinetuneRecipe | ScratchRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the texts, build the model and train it. If the folder holds the run, resume it.

    At the end, write the best model's confusion matrix on the held-out texts to confusion.png and confusion.json.
    """
    folder = Path(folder)
    display = display or Display()
    training = recipe.training
    settings = checked_settings(recipe, folder, NAME, KINDS)
    sources: list[Path] = []
    gpt = False
    if isinstance(recipe, FinetuneRecipe):
        model_folder = folder if has_state(folder) else recipe.start
        gpt = is_gpt(model_folder)
        refuse([*length_errors(recipe.texts.longest, positions(model_folder)), *_pool_errors(recipe, gpt)])
        if not has_state(folder):  # a resumed run does not need the pretrained model any more
            names = (vocabulary_file(recipe.start).name,) if gpt else (TOKENIZER, CONFIG, PLAIN)
            sources = [recipe.start / name for name in names if (recipe.start / name).is_file()]
    vocabulary = partial(_vocabulary, recipe)
    prepared = prepare(recipe.texts, folder, vocabulary, training.seed, display.say, sources=sources, bare=gpt)
    torch.manual_seed(training.seed)  # seeds the initial weights
    model = _model(recipe, folder, prepared)
    digests = {**prepared.digests, **_write_config(folder, model)}
    task = Classify(
        TextClassifier(model, prepared.words, recipe.texts.longest),
        *prepared.batches(recipe.texts.tokens, training.seed),
        smoothing=recipe.smoothing,
        layer_decay=recipe.layer_decay if isinstance(recipe, FinetuneRecipe) else 1.0,
    )
    outcome = fit(task, training, folder, recipe=settings, digests=digests, display=display)
    if is_first_process() and (outcome.trained or not (folder / "confusion.png").exists()):
        display.say(f"confusion matrix of {len(prepared.valid):,} held-out texts: {folder / 'confusion.png'}")
        _save_confusion(task, folder)
    return outcome


def stored(folder: str | os.PathLike[str]) -> FinetuneRecipe | ScratchRecipe:
    """Read the recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "a text classifier")


def _pool_errors(recipe: FinetuneRecipe, gpt: bool) -> list[str]:
    if recipe.pool is None or not gpt:
        return []
    return [f"classify: pool ({recipe.pool}) must be omitted for a GPT, which is read at the last token."]


def _vocabulary(recipe: FinetuneRecipe | ScratchRecipe, texts: Iterable[str]) -> Words:
    """Return the vocabulary of the pretrained model, or learn one from the texts."""
    if isinstance(recipe, FinetuneRecipe):
        gpt = is_gpt(recipe.start)
        return BareText(load_vocabulary(vocabulary_file(recipe.start))) if gpt else WordPiece.load(recipe.start)
    return WordPiece.train(texts, recipe.model.vocabulary, lower=recipe.lower)


def _model(
    recipe: FinetuneRecipe | ScratchRecipe, folder: Path, prepared: Prepared
) -> SequenceClassifier | LastTokenClassifier:
    if has_state(folder):  # the state has the weights: the pretrained model is not needed
        if is_gpt(folder):
            return LastTokenClassifier(GPT(gpt_config_of(folder)), prepared.labels)
        return SequenceClassifier(Bert(config_of(folder)), prepared.labels)
    if isinstance(recipe, FinetuneRecipe):
        build = gpt_sizes.initial_classifier if is_gpt(recipe.start) else bert_sizes.initial_classifier
        return build(recipe.start, prepared.labels, **recipe.changes)
    assert isinstance(prepared.words, WordPiece), "a vocabulary that was learned from the texts"
    return SequenceClassifier(Bert(recipe.model.config(prepared.words)), prepared.labels)


def _write_config(folder: Path, model: SequenceClassifier | LastTokenClassifier) -> dict[str, str]:
    if isinstance(model, LastTokenClassifier):
        return write_model_config(folder / GPT_CONFIG, model.gpt.config)
    return write_model_config(folder / BERT_CONFIG, model.bert.config)


@torch.no_grad()
def _save_confusion(task: Classify, folder: Path) -> None:
    load_best(task.model, folder)
    task.model.eval()
    matrix = task.confusion()
    save_confusion(matrix, task.classifier.labels, f1_of(matrix).each.tolist(), folder / "confusion.png")
