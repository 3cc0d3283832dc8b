"""The recipe of `regard train classify` on texts: labelled text and maybe a pretrained BERT → a run.

From top to bottom: settings of the data, vocabulary, labels and corpora prepared from them, settings of the recipe,
training, confusion matrix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro

from ...core.files import write_text
from ...core.settings import refuse
from ...data import Corpus, Report
from ...data.corpus import CHUNK, Pair
from ...data.encodings import allowed, check_share
from ...data.labelled_text import Columns, Example, labels_of, numbers_of, read_labelled, split
from ...data.text_batches import TextBatches
from ...data.wordpiece import CONFIG, PLAIN, TOKENIZER, WordPiece
from ...models.bert import Bert
from ...models.bert_heads import SequenceClassifier
from ...pictures.training_charts import save_confusion
from ...tasks.loading import LABELS, config_of, positions, read_labels
from ...tasks.metrics import f1_of
from ...tasks.run_files import load_best
from ...tasks.text_classification import Classify
from ...tasks.text_classifier import Classifier
from ..config import Training
from ..distributed import is_first_process
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from . import bert_sizes
from .preparation import Say, prepare_once
from .recipe_settings import checked_settings, no_files, no_share, outside, read_recipe, too_long, wrong_smoothing

Vocabulary = Callable[[Iterable[str]], WordPiece]
"""Makes the vocabulary, given the texts to learn from."""


TRAIN, VALID = "data/train", "data/valid"


@dataclass(frozen=True)
class Texts:
    """The texts to learn from, and how much of each is read."""

    data: Path
    """Texts with labels: .tsv (text TAB label), .csv, .jsonl; plain or gzip."""
    valid: Path | None = None
    """Held-out texts that tell how good it is, in the same form; without, some of the data are held out."""
    hold_out: float = 0.1
    """The share of texts that is held out where no file is given."""
    text_column: str = ""
    """The column of the text; by default the one named text or sentence."""
    label_column: str = ""
    """The column of the label; by default the one named label."""
    longest: int = 128
    """Pieces of a text that are read, [CLS] and [SEP] counted; the end of a longer one is not."""
    tokens: int = 1000
    """Pieces of a batch."""
    badly_encoded: float | None = None
    """Share of lines that may be badly encoded (not UTF-8) and are left out; more are refused. Default 0.01."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = [*no_files("data", [self.data]), *no_files("valid", [] if self.valid is None else [self.valid])]
        found += no_share("hold_out", self.hold_out, 0.1)
        found += [*outside("longest", self.longest, 3, 2**20), *outside("tokens", self.tokens, 1, 2**30)]
        return found + check_share(self.badly_encoded)

    @property
    def columns(self) -> Columns:
        return Columns(self.text_column, self.label_column)


class Prepared(NamedTuple):
    """What is in the folder."""

    words: WordPiece
    labels: list[str]
    train: Corpus
    valid: Corpus
    digests: Mapping[str, str]
    """Of each file that was prepared, by its name, and of the inputs."""

    def batches(self, tokens: int, seed: int) -> tuple[TextBatches, TextBatches]:
        """Those to learn from, and the held-out ones."""
        valid = TextBatches(self.valid, tokens, pad=self.words.pad, shuffle=False)
        return TextBatches(self.train, tokens, pad=self.words.pad, seed=seed), valid


def prepare(
    config: Texts, folder: Path, vocabulary: Vocabulary, seed: int, say: Say = print, *, sources: Sequence[Path] = ()
) -> Prepared:
    """Vocabulary, labels and corpora, from the folder if they are there, else made; `say` reports what was left out.

    sources: files that `vocabulary` reads, if it reads any.
    """
    digests = prepare_once(
        folder,
        settings={**asdict(config), "seed": seed},
        inputs=[path for path in (config.data, config.valid, *sources) if path is not None],
        outputs=(TOKENIZER, CONFIG, TRAIN, VALID, LABELS),
        make=lambda: _make(config, folder, vocabulary, seed, say),
    )
    train, valid = (Corpus.open(folder / name) for name in (TRAIN, VALID))
    return Prepared(WordPiece.load(folder), read_labels(folder), train, valid, digests)


def _make(config: Texts, folder: Path, vocabulary: Vocabulary, seed: int, say: Say) -> None:
    learn, held = _sides(config, seed, say)
    labels = labels_of(learn)
    numbers = numbers_of(learn, labels, config.data), numbers_of(held, labels, config.valid or config.data)
    words = vocabulary(example.text for example in learn)
    words.save(folder)
    for name, examples, of in zip(("train", "valid"), (learn, held), numbers, strict=True):
        cut = Report()
        Corpus.write(folder / "data" / name, _encoded(examples, of, words, config.longest, cut))
        most = cut.left_out.get("cut", 0)
        say(f"{name}: {len(examples):,} texts{_counts(of, labels)}{f'; the ends of {most:,} are cut' * bool(most)}")
    write_text(folder / LABELS, json.dumps({"labels": labels}, ensure_ascii=False) + "\n")


def _sides(config: Texts, seed: int, say: Say) -> tuple[list[Example], list[Example]]:
    """What is learnt from, and what is held out."""
    found, share = [], allowed(config.badly_encoded)
    for path in (config.data, config.valid):
        if path is not None:
            report = Report(what="texts")
            found.append(list(read_labelled(path, report, columns=config.columns, badly_encoded=share)))
            say(f"{path.name}: {report}")
    return (found[0], found[1]) if len(found) == 2 else split(found[0], config.hold_out, seed)


def _encoded(
    examples: Sequence[Example], numbers: Sequence[int], words: WordPiece, longest: int, report: Report
) -> Iterator[Pair]:
    rest = iter(zip(examples, numbers, strict=True))
    while chunk := list(islice(rest, CHUNK)):
        whole = words.encode_bare([example.text for example, _ in chunk])
        for ids, (_, number) in zip(whole, chunk, strict=True):
            if len(ids) > longest - 2:
                report.add("cut")
            yield words.join(ids[: longest - 2]).ids, [number]


def _counts(numbers: Sequence[int], labels: Sequence[str]) -> str:
    if len(labels) > 10:
        return f" of {len(labels):,} classes"
    return ", " + ", ".join(f"{numbers.count(place):,} {label}" for place, label in enumerate(labels))


NAME = "classify"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every classifier of texts is trained by."""

    texts: Texts
    smoothing: float = 0.0
    """Share of the probability that all classes have in the loss, so that the model is never wholly sure."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return wrong_smoothing(NAME, self.smoothing)


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
        return super().errors() + too_long(self.texts.longest, self.model.positions)


KINDS: dict[str, type[FinetuneRecipe] | type[ScratchRecipe]] = {"finetune": FinetuneRecipe, "scratch": ScratchRecipe}


def train(
    recipe: FinetuneRecipe | ScratchRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the texts, build the model, train; on a folder that holds the run, go on with it.

    At the end confusion.png and confusion.json tell which classes of the held-out texts the best model takes for which.
    """
    folder = Path(folder)
    display = display or Display()
    training = recipe.training
    settings = checked_settings(recipe, folder, NAME, KINDS)
    sources: list[Path] = []
    if isinstance(recipe, FinetuneRecipe):
        known = folder if bert_sizes.begun(folder) else recipe.start
        refuse(too_long(recipe.texts.longest, positions(known)))
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
    if is_first_process() and (outcome.trained or not (folder / "confusion.png").exists()):
        _conclude(task, folder)
    return outcome


def stored(folder: str | os.PathLike[str]) -> FinetuneRecipe | ScratchRecipe:
    """The recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "a text classifier")


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
