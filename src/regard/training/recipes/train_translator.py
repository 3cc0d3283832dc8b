"""The recipe of `regard train translate`: parallel text and a kind of model → a run.

From top to bottom: settings of the data, vocabularies and corpora prepared from them, settings of the recipe, training.
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
from .recipe_settings import checked_settings, no_files, outside, read_recipe, wrong_smoothing

TRAIN, VALID = "data/train", "data/valid"


@dataclass(frozen=True)
class Parallel:
    """The texts to learn from, and what they are cut into."""

    train: tuple[Path, ...]
    """Pairs to learn from: two files with a sentence a line, or one of SOURCE TAB TARGET lines; plain or gzip."""
    valid: tuple[Path, ...]
    """Held-out pairs that tell how good it is, in the same form."""
    vocabulary: int = 8000
    """Subwords of a vocabulary, at most."""
    subwords: Literal["bpe", "unigram", "characters"] = "bpe"
    """How subwords are found; characters: each is a token, whatever the size of the vocabulary."""
    joint: bool = True
    """One vocabulary for both languages, or one for each."""
    longest: int = 100
    """Subwords of a sentence; pairs with a longer one are left out of training."""
    tokens: int = 1500
    """Subwords of a batch, padding counted, of source and of target alike."""
    badly_encoded: float | None = None
    """Share of lines that may be badly encoded (not UTF-8) and are left out; more are refused. Default 0.01."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = []
        for name, paths in (("train", self.train), ("valid", self.valid)):
            if not 1 <= len(paths) <= 2:
                found.append(f"data: {name} ({len(paths)} files) must be two files of lines, or one TSV.")
            found += no_files(name, paths)
        return [
            *found,
            *outside("vocabulary", self.vocabulary, 16, 2**20),
            *outside("longest", self.longest, 1, 2**20),
            *outside("tokens", self.tokens, 1, 2**30),
            *check_share(self.badly_encoded),
        ]


class Prepared(NamedTuple):
    """What is in the folder."""

    source: Vocabulary
    target: Vocabulary
    train: Corpus
    valid: Corpus
    texts: list[tuple[str, str]]
    """The held-out pairs as they are written."""
    digests: Mapping[str, str]
    """Of each file that was prepared, by its name, and of the inputs."""

    def batches(self, tokens: int, seed: int) -> tuple[Batches, Batches]:
        """Those to learn from, and the held-out ones."""
        return Batches(self.train, tokens, seed=seed), Batches(self.valid, tokens, shuffle=False)


def prepare(config: Parallel, folder: Path, say: Say = print) -> Prepared:
    """Vocabularies and corpora, from the folder if they are there, else made; `say` reports what was left out."""
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
    # held-out pairs are never left out for their length: what is hard counts too
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
    """What every translator is trained by."""

    data: Parallel
    training: Training = field(
        default_factory=lambda: Training(
            epochs=30, learning_rate=2e-3, warmup=500, average="exponential", patience=5, weight_decay=1e-4
        )
    )
    smoothing: float = 0.1
    """Share of the probability that all subwords have in the loss, so that the model is never wholly sure."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return wrong_smoothing(NAME, self.smoothing)


@dataclass(frozen=True)
class TransformerRecipe(Recipe):
    """A Transformer from parallel text."""

    model: TransformerConfig = field(default_factory=lambda: TransformerConfig(dropout=0.3, tie="all"))


@dataclass(frozen=True)
class RecurrentRecipe(Recipe):
    """A recurrent encoder and decoder from parallel text, with attention or with one fixed vector between them."""

    model: Seq2SeqConfig = field(default_factory=lambda: Seq2SeqConfig(dropout=0.3))


KINDS: dict[str, type[TransformerRecipe] | type[RecurrentRecipe]] = {
    "transformer": TransformerRecipe,
    "recurrent": RecurrentRecipe,
}


def train(
    recipe: TransformerRecipe | RecurrentRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the data, build the model, train; on a folder that holds the run, go on with it."""
    folder = Path(folder)
    display = display or Display()
    settings = checked_settings(recipe, folder, NAME, KINDS)
    prepared = prepare(recipe.data, folder, display.say)
    config = replace(recipe.model, source_vocabulary=len(prepared.source), target_vocabulary=len(prepared.target))
    torch.manual_seed(recipe.training.seed)  # of the first weights
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
    """The tokenizer that the BLEU of a run is computed with; None for a new run, or one of an earlier version."""
    path = folder / EVALUATION
    if not path.exists():
        return None
    stored = read_json_object(
        path, "how a run is evaluated", "Delete it to choose by the references.", where="translate"
    )
    return str(stored.get("tokenizer"))


def stored(folder: str | os.PathLike[str]) -> TransformerRecipe | RecurrentRecipe:
    """The recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "a translator")
