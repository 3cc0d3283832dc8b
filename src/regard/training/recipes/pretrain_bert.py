"""The recipe of `regard train pretrain`: trains a BERT on plain text with masked language modelling.

From top to bottom: data settings, preparation of vocabulary and passages, recipe settings, training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from ...core.setting_options import named
from ...data import Corpus, Report
from ...data.corpus import EmptyCorpus
from ...data.documents import Documents, encode_passages, read_documents
from ...data.encodings import allowed, check_share
from ...data.epoch_batches import generator
from ...data.masked_batches import MaskedBatches
from ...data.wordpiece import CONFIG, TOKENIZER, WordPiece
from ...models.bert import Bert
from ...models.bert_heads import MaskedTokens, Pretraining
from ...tasks.loading import BERT_CONFIG
from ...tasks.pretraining import Pretrain
from ..config import Training
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from .bert_sizes import Sizes
from .preparation import Say, prepare_once, write_model_config
from .recipe_settings import (
    checked_settings,
    fraction_errors,
    length_errors,
    missing_files,
    range_errors,
    read_recipe,
)

TRAIN, VALID = "data/train", "data/valid"


@dataclass(frozen=True)
class Plain:
    """Settings of the training text and its masking."""

    text: tuple[Path, ...] = field(metadata=named("train"))
    """Training text files, plain or gzip."""
    valid: tuple[Path, ...] = ()
    """Held-out text files for evaluation. By default, a fraction of the documents is held out."""
    hold_out: float = 0.02
    """Fraction of documents to hold out if no validation file is given."""
    documents: Documents = "blank"
    """Document separator: a blank line, every line, or the end of the file."""
    lower: bool = True
    """Convert text to lower case and remove accents."""
    longest: int = 128
    """Maximum number of tokens of a passage, including [CLS] and [SEP]."""
    tokens: int = 4096
    """Maximum number of tokens in a batch, including padding."""
    mask: float = 0.15
    """Fraction of tokens to predict: 80 % of them are masked, 10 % replaced at random, 10 % left unchanged."""
    whole_words: bool = False
    """Mask whole words: all tokens of a word, or none."""
    next_sentence: bool = False
    """Also predict whether the second part of a passage follows the first or comes from another document."""
    badly_encoded: float | None = None
    """Maximum fraction of lines that are not valid UTF-8. They are skipped; more are an error. Default 0.01."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        errors = [] if self.text else ["data: text (0 files) must be at least one file."]
        for name, paths in (("text", self.text), ("valid", self.valid)):
            errors += missing_files(name, paths)
        errors += fraction_errors("hold_out", self.hold_out, 0.02)
        if not 0 < self.mask <= 1:
            errors.append(f"data: mask ({self.mask}) must lie in (0, 1]. Try 0.15.")
        errors += [*range_errors("longest", self.longest, 5, 2**20), *range_errors("tokens", self.tokens, 1, 2**30)]
        return errors + check_share(self.badly_encoded)


class Prepared(NamedTuple):
    """Prepared data in the folder of a run."""

    words: WordPiece
    train: Corpus
    valid: Corpus
    digests: Mapping[str, str]
    """Digests of the prepared files by name, and of the inputs."""

    def batches(self, config: Plain, seed: int) -> tuple[MaskedBatches, MaskedBatches]:
        """Return the training and validation batches. Validation masks the same positions in every run."""
        options = {"share": config.mask, "whole_words": config.whole_words, "pairs": config.next_sentence}
        return (
            MaskedBatches(self.train, self.words, config.tokens, seed=seed, **options),  # type: ignore[arg-type]  # the values of a dictionary have one type
            MaskedBatches(self.valid, self.words, config.tokens, shuffle=False, **options),  # type: ignore[arg-type]  # the values of a dictionary have one type
        )


def prepare(config: Plain, folder: Path, vocabulary: int, seed: int, say: Say = print) -> Prepared:
    """Return the vocabulary (of at most `vocabulary` tokens) and passages. Prepare them if the folder lacks them."""
    digests = prepare_once(
        folder,
        settings={**asdict(config), "vocabulary": vocabulary, "seed": seed},
        inputs=(*config.text, *config.valid),
        outputs=(TOKENIZER, CONFIG, TRAIN, VALID),
        make=lambda: _make(config, folder, vocabulary, seed, say),
    )
    return Prepared(WordPiece.load(folder), Corpus.open(folder / TRAIN), Corpus.open(folder / VALID), digests)


def _make(config: Plain, folder: Path, vocabulary: int, seed: int, say: Say) -> None:
    lines = (sentence for document in _documents(config, seed, False) for sentence in document)
    words = WordPiece.train(lines, vocabulary, lower=config.lower)
    words.save(folder)
    say(f"vocabulary: {len(words):,} tokens")
    for name in (TRAIN, VALID):
        _write_corpus(config, folder / name, words, seed, say)


def _write_corpus(config: Plain, path: Path, words: WordPiece, seed: int, say: Say) -> None:
    report, held = Report(what="documents"), path.name == "valid"
    longest = config.longest - (3 if config.next_sentence else 2)
    passages = encode_passages(_documents(config, seed, held, report), words, longest, report)
    try:
        corpus = Corpus.write(path, passages)
    except EmptyCorpus as error:
        raise ValueError(
            f"data: {'held-out' if held else 'training'} text must hold at least one passage; got {report}. Give "
            "--valid FILE, another --hold-out, or another document separator (--documents line)."
        ) from error
    say(f"{path.name}: {report}; {len(corpus):,} passages, {corpus.totals[0]:,} tokens")


def _documents(config: Plain, seed: int, held: bool, report: Report | None = None) -> Iterator[list[str]]:
    """Yield the training documents, or the held-out ones."""
    share = allowed(config.badly_encoded)
    if config.valid:
        paths = config.valid if held else config.text
        yield from read_documents(paths, config.documents, report, badly_encoded=share)
        return
    random = generator(seed, 8)
    others = 0
    for document in read_documents(config.text, config.documents, report, badly_encoded=share):
        if (random.random() < config.hold_out) == held:
            yield document
        else:
            others += 1
    if report is not None:
        report.kept -= others


NAME = "pretrain"


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """Pretrain a BERT on plain text. Its vocabulary is learned from the text."""

    texts: Plain
    model: Sizes = field(default_factory=Sizes)
    training: Training = field(
        default_factory=lambda: Training(epochs=10, learning_rate=1e-3, warmup=0.05, weight_decay=0.01)
    )

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return length_errors(self.texts.longest, self.model.positions)


KINDS = {"bert": PretrainRecipe}
"""Kinds for the command line. The config.json of a run has no kind."""


def train(recipe: PretrainRecipe, folder: str | os.PathLike[str], display: Display | None = None) -> Outcome:
    """Prepare the text, build the model and train it. If the folder holds the run, resume it."""
    folder = Path(folder)
    display = display or Display()
    seed = recipe.training.seed
    settings = checked_settings(recipe, folder, NAME)
    prepared = prepare(recipe.texts, folder, recipe.model.vocabulary, seed, display.say)
    config = recipe.model.config(prepared.words)
    torch.manual_seed(seed)  # seeds the initial weights
    paired = recipe.texts.next_sentence
    model = Pretraining(Bert(config)) if paired else MaskedTokens(Bert(config, pooler=False))
    digests = {**prepared.digests, **write_model_config(folder / BERT_CONFIG, config)}
    task = Pretrain(model, prepared.words, *prepared.batches(recipe.texts, seed))
    return fit(task, recipe.training, folder, recipe=settings, digests=digests, display=display)


def stored(folder: str | os.PathLike[str]) -> PretrainRecipe:
    """Read the recipe of a run."""
    return read_recipe(folder, NAME, {"": PretrainRecipe}, "pretraining")
