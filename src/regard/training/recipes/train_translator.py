"""The recipe of `regard train translate`: trains a translator on parallel text.

From top to bottom: data settings, preparation of vocabularies and corpora, recipe settings, training.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, cast

import torch
from torch import nn

from ...core.json_files import read_json_object
from ...core.setting_options import named
from ...core.settings import LATER, refuse, to_values
from ...data import Batches, Characters, Corpus, Report, Subwords, Vocabulary, encode_pairs, load_vocabulary, read_pairs
from ...data.encodings import allowed, check_share
from ...models import Seq2SeqConfig, TransformerConfig
from ...tasks.loading import SOURCE, TARGET, TRANSLATORS
from ...tasks.run_files import load_best
from ...tasks.translation import EVALUATION, Translate
from ...tasks.translator import Translator
from ..checkpoint import states
from ..config import Training
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from .preparation import Say, prepare_once
from .recipe_settings import (
    checked_settings,
    fraction_errors,
    missing_files,
    range_errors,
    read_recipe,
    smoothing_errors,
)

TRAIN, VALID = "data/train", "data/valid"


class ReadOptions(TypedDict):
    """Options of `read_pairs`."""

    badly_encoded: float
    header: bool | None


HOLD_OUT = 0.02
"""Default fraction of pairs to hold out."""


@dataclass(frozen=True)
class Parallel:
    """Settings of the parallel text and its tokenization."""

    train: tuple[Path, ...]
    """Training pairs: two files with one sentence per line, or one file of SOURCE TAB TARGET lines; plain or gzip."""
    valid: tuple[Path, ...] = ()
    """Held-out pairs for evaluation, in the same format. By default, a fraction of the training pairs is held out."""
    vocabulary: int = 8000
    """Maximum size of a vocabulary."""
    subwords: Literal["bpe", "unigram", "characters"] = "bpe"
    """Tokenization: BPE or unigram subwords, or characters, which ignore the maximum size of the vocabulary."""
    joint: bool = True
    """Use one vocabulary for both languages."""
    longest: int = 100
    """Maximum number of tokens of a sentence. Pairs with a longer one are skipped in training."""
    tokens: int = 1500
    """Maximum number of tokens in a batch, including padding, for source and target each."""
    badly_encoded: float | None = None
    """Maximum fraction of lines that are not valid UTF-8. They are skipped; more are an error. Default 0.01."""
    hold_out: float | None = field(default=None, metadata=LATER)
    """Fraction of pairs to hold out if no validation file is given. Default 0.02."""
    header: bool | None = field(default=None, metadata=LATER)
    """Whether the first line of a TSV names its columns. By default, names such as source and target are detected."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        errors = []
        for name, paths, least in (("train", self.train, 1), ("valid", self.valid, 0)):
            if not least <= len(paths) <= 2:
                errors.append(f"data: {name} ({len(paths)} files) must be two files of lines, or one TSV.")
            errors += missing_files(name, paths)
        errors += [] if self.hold_out is None else fraction_errors("hold_out", self.hold_out, HOLD_OUT)
        return [
            *errors,
            *range_errors("vocabulary", self.vocabulary, 16, 2**20),
            *range_errors("longest", self.longest, 1, 2**20),
            *range_errors("tokens", self.tokens, 1, 2**30),
            *check_share(self.badly_encoded),
        ]


class Prepared(NamedTuple):
    """Prepared data in the folder of a run."""

    source: Vocabulary
    target: Vocabulary
    train: Corpus
    valid: Corpus
    texts: list[tuple[str, str]]
    """The held-out pairs as texts."""
    digests: Mapping[str, str]
    """Digests of the prepared files by name, and of the inputs."""

    def batches(self, tokens: int, seed: int) -> tuple[Batches, Batches]:
        """Return the training and validation batches."""
        return Batches(self.train, tokens, seed=seed), Batches(self.valid, tokens, shuffle=False)


def prepare(config: Parallel, folder: Path, say: Say = print, *, start: Path | None = None) -> Prepared:
    """Return the vocabularies and corpora. Prepare them if the folder lacks them.

    Args:
        config: data settings.
        folder: folder of the run.
        say: called with messages, such as the number of skipped pairs.
        start: run whose vocabularies are used; None to learn new ones.
    """
    digests = prepare_once(
        folder,
        settings=to_values(config),
        inputs=(*config.train, *config.valid, *([] if start is None else [start / SOURCE, start / TARGET])),
        outputs=(SOURCE, TARGET, TRAIN, VALID),
        make=lambda: _make(config, folder, say, start),
    )
    source, target = (load_vocabulary(folder / name) for name in (SOURCE, TARGET))
    train, valid = (Corpus.open(folder / name) for name in (TRAIN, VALID))
    return Prepared(source, target, train, valid, list(_pairs(config, held=True)), digests)


def _make(config: Parallel, folder: Path, say: Say, start: Path | None) -> None:
    sides: Sequence[Sequence[int]] = ((0, 1),) if config.joint else ((0,), (1,))
    if start is None:
        vocabularies = [_trained(config, _lines(config, chosen)) for chosen in sides]
    else:
        vocabularies = [load_vocabulary(start / name) for name in (SOURCE, TARGET)]
    source, target = vocabularies[0], vocabularies[-1]
    source.save(folder / SOURCE)
    target.save(folder / TARGET)
    say(f"vocabulary: {len(source):,} subwords for both" if config.joint else _sizes(source, target))
    # long held-out pairs are not skipped, so that the evaluation includes hard sentences
    for name, longest in ((TRAIN, config.longest), (VALID, None)):
        report = Report()
        pairs = _pairs(config, name == VALID, report)
        Corpus.write(folder / name, encode_pairs(pairs, source, target, longest=longest, report=report))
        say(f"{Path(name).name}: {report}")


def _trained(config: Parallel, lines: Iterator[str]) -> Vocabulary:
    if config.subwords == "characters":
        return Characters.train(lines)
    return Subwords.train(lines, config.vocabulary, config.subwords)


def _sizes(source: Vocabulary, target: Vocabulary) -> str:
    return f"vocabularies: {len(source):,} and {len(target):,} subwords"


def _lines(config: Parallel, sides: Sequence[int]) -> Iterator[str]:
    return (pair[side] for pair in _pairs(config, held=False) for side in sides)


def _pairs(config: Parallel, held: bool, report: Report | None = None) -> Iterator[tuple[str, str]]:
    """Yield the training pairs, or the held-out ones."""
    report = Report() if report is None else report
    options: ReadOptions = {"badly_encoded": allowed(config.badly_encoded), "header": config.header}
    if config.valid:
        yield from read_pairs(config.valid if held else config.train, report, **options)
        return
    hold_out, kept, others = HOLD_OUT if config.hold_out is None else config.hold_out, 0, 0
    for pair in read_pairs(config.train, report, **options):
        if _is_held_out(pair[0], hold_out) == held:
            kept += 1
            yield pair
        else:
            others += 1
    report.kept -= others
    if not kept:
        side, change = ("held-out", "a larger --hold-out: 0.2") if held else ("training", "a smaller --hold-out")
        raise ValueError(f"data: {side} pairs (0) must be at least one. Give --valid FILE, or {change}.")


def _is_held_out(source: str, share: float) -> bool:
    """Decide by the text, so that no source sentence is both trained and evaluated."""
    return zlib.crc32(source.encode("utf-8")) < share * 2**32


NAME = "translate"


@dataclass(frozen=True)
class Recipe:
    """Settings shared by all translators."""

    data: Parallel
    training: Training = field(
        default_factory=lambda: Training(
            epochs=30, learning_rate=2e-3, warmup=0.05, average="exponential", patience=5, weight_decay=1e-4
        )
    )
    smoothing: float = 0.1
    """Label smoothing: probability that the loss spreads over all tokens."""
    start: Path | None = field(default=None, metadata=named("from") | LATER)
    """Run of `regard train translate` to continue, with its model and vocabularies."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return smoothing_errors(NAME, self.smoothing)


@dataclass(frozen=True)
class TransformerRecipe(Recipe):
    """Train a Transformer on parallel text."""

    model: TransformerConfig = field(default_factory=lambda: TransformerConfig(dropout=0.3, tie="all"))


@dataclass(frozen=True)
class RecurrentRecipe(Recipe):
    """Train a recurrent encoder-decoder on parallel text, with attention or a fixed context vector."""

    model: Seq2SeqConfig = field(default_factory=lambda: Seq2SeqConfig(dropout=0.3))


KINDS: dict[str, type[TransformerRecipe] | type[RecurrentRecipe]] = {
    "transformer": TransformerRecipe,
    "recurrent": RecurrentRecipe,
}


def train(
    recipe: TransformerRecipe | RecurrentRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the data, build the model and train it. If the folder holds the run, resume it."""
    folder = Path(folder)
    display = display or Display()
    settings = checked_settings(recipe, folder, NAME, KINDS)
    start = None if states(folder) else recipe.start  # a state has the weights: the run it began with is not needed
    refuse([] if start is None else _start_errors(recipe, start))
    prepared = prepare(recipe.data, folder, display.say, start=start)
    config = replace(recipe.model, source_vocabulary=len(prepared.source), target_vocabulary=len(prepared.target))
    torch.manual_seed(recipe.training.seed)  # seeds the initial weights
    translator = Translator(TRANSLATORS[type(config)](config), prepared.source, prepared.target)
    if start is not None:
        load_best(cast(nn.Module, translator.model), start)
    task = Translate(
        translator,
        *prepared.batches(recipe.data.tokens, recipe.training.seed),
        prepared.texts,
        smoothing=recipe.smoothing,
        longest=recipe.data.longest,
        tokenizer=_tokenizer(folder),
    )
    display.say(f"BLEU: {task.references.signatures['bleu']}")
    if not (folder / EVALUATION).exists():
        task.save_evaluation(folder)
    return fit(task, recipe.training, folder, recipe=settings, digests=prepared.digests, display=display)


def continued(start: str | os.PathLike[str]) -> TransformerRecipe | RecurrentRecipe:
    """Return the settings to continue a run with: those of the run, for ten epochs at a lower learning rate."""
    before = stored(start)
    limits = {"steps": None, "epochs": 10, "minutes": None}
    training = replace(before.training, **limits, learning_rate=5e-4, warmup=0.05)  # type: ignore[arg-type]  # None is no limit
    return replace(before, start=Path(start), training=training)


def _start_errors(recipe: TransformerRecipe | RecurrentRecipe, start: Path) -> list[str]:
    """Return one message for each setting that does not fit the run to continue."""
    before = stored(start)
    if type(before) is not type(recipe):
        kinds = {kind: name for name, kind in KINDS.items()}
        return [f"translate: kind ({kinds[type(recipe)]}) must be that of {start}; got {kinds[type(before)]}. Omit it."]
    names = ("vocabulary", "subwords", "joint")
    values = [(name, getattr(recipe.data, name), getattr(before.data, name)) for name in names]
    return [
        f"translate: {name} ({ours}) must be that of {start}, whose vocabularies are used; got another than {theirs}. "
        "Omit it."
        for name, ours, theirs in values
        if ours != theirs
    ]


def _tokenizer(folder: Path) -> str | None:
    """Return the BLEU tokenizer of a run, or None for a new run or one of an earlier version."""
    path = folder / EVALUATION
    if not path.exists():
        return None
    stored = read_json_object(
        path,
        "the evaluation settings of a run",
        "Delete it to choose a tokenizer by the references.",
        where="translate",
    )
    return str(stored.get("tokenizer"))


def stored(folder: str | os.PathLike[str]) -> TransformerRecipe | RecurrentRecipe:
    """Read the recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "a translator")
