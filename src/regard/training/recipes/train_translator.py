"""The recipe of `regard train translate`: trains a translator on parallel text.

From top to bottom: data settings, preparation of vocabularies and corpora, recipe settings, training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from ...core.json_files import read_json_object
from ...data import Batches, Characters, Corpus, Report, Subwords, Vocabulary, encode_pairs, load_vocabulary, read_pairs
from ...data.encodings import allowed, check_share
from ...models import Seq2SeqConfig, TransformerConfig
from ...tasks.loading import SOURCE, TARGET, TRANSLATORS
from ...tasks.translation import EVALUATION, Translate
from ...tasks.translator import Translator
from ..config import Training
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from .preparation import Say, prepare_once
from .recipe_settings import checked_settings, missing_files, range_errors, read_recipe, smoothing_errors

TRAIN, VALID = "data/train", "data/valid"


@dataclass(frozen=True)
class Parallel:
    """Settings of the parallel text and its tokenization."""

    train: tuple[Path, ...]
    """Training pairs: two files with one sentence per line, or one file of SOURCE TAB TARGET lines; plain or gzip."""
    valid: tuple[Path, ...]
    """Held-out pairs for evaluation, in the same format."""
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

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        errors = []
        for name, paths in (("train", self.train), ("valid", self.valid)):
            if not 1 <= len(paths) <= 2:
                errors.append(f"data: {name} ({len(paths)} files) must be two files of lines, or one TSV.")
            errors += missing_files(name, paths)
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


def prepare(config: Parallel, folder: Path, say: Say = print) -> Prepared:
    """Return the vocabularies and corpora. Prepare them if the folder lacks them; `say` reports skipped pairs."""
    digests = prepare_once(
        folder,
        settings=asdict(config),
        inputs=(*config.train, *config.valid),
        outputs=(SOURCE, TARGET, TRAIN, VALID),
        make=lambda: _make(config, folder, say),
    )
    source, target = (load_vocabulary(folder / name) for name in (SOURCE, TARGET))
    train, valid = (Corpus.open(folder / name) for name in (TRAIN, VALID))
    return Prepared(source, target, train, valid, list(_pairs(config, config.valid)), digests)


def _make(config: Parallel, folder: Path, say: Say) -> None:
    sides: Sequence[Sequence[int]] = ((0, 1),) if config.joint else ((0,), (1,))
    trained = [_trained(config, _lines(config, chosen)) for chosen in sides]
    source, target = trained[0], trained[-1]
    source.save(folder / SOURCE)
    target.save(folder / TARGET)
    say(f"vocabulary: {len(source):,} subwords for both" if config.joint else _sizes(source, target))
    # long held-out pairs are not skipped, so that the evaluation includes hard sentences
    for name, paths, longest in ((TRAIN, config.train, config.longest), (VALID, config.valid, None)):
        report = Report()
        pairs = _pairs(config, paths, report)
        Corpus.write(folder / name, encode_pairs(pairs, source, target, longest=longest, report=report))
        say(f"{Path(name).name}: {report}")


def _trained(config: Parallel, lines: Iterator[str]) -> Vocabulary:
    if config.subwords == "characters":
        return Characters.train(lines)
    return Subwords.train(lines, config.vocabulary, config.subwords)


def _sizes(source: Vocabulary, target: Vocabulary) -> str:
    return f"vocabularies: {len(source):,} and {len(target):,} subwords"


def _lines(config: Parallel, sides: Sequence[int]) -> Iterator[str]:
    return (pair[side] for pair in _pairs(config, config.train) for side in sides)


def _pairs(config: Parallel, paths: Sequence[Path], report: Report | None = None) -> Iterator[tuple[str, str]]:
    return read_pairs(paths, report, badly_encoded=allowed(config.badly_encoded))


NAME = "translate"


@dataclass(frozen=True)
class Recipe:
    """Settings shared by all translators."""

    data: Parallel
    training: Training = field(
        default_factory=lambda: Training(
            epochs=30, learning_rate=2e-3, warmup=500, average="exponential", patience=5, weight_decay=1e-4
        )
    )
    smoothing: float = 0.1
    """Label smoothing: probability that the loss spreads over all tokens."""

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
    prepared = prepare(recipe.data, folder, display.say)
    config = replace(recipe.model, source_vocabulary=len(prepared.source), target_vocabulary=len(prepared.target))
    torch.manual_seed(recipe.training.seed)  # seeds the initial weights
    translator = Translator(TRANSLATORS[type(config)](config), prepared.source, prepared.target)
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
