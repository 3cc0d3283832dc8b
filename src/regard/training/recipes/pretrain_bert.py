"""The recipe of `regard train pretrain`: plain text → a BERT that has learnt to say what is hidden.

From top to bottom: settings of the data, vocabulary and passages prepared from them, settings of the recipe, training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from ...data import Corpus, Report
from ...data.documents import Documents, encode_passages, read_documents
from ...data.encodings import allowed, check_share
from ...data.epoch_batches import generator
from ...data.masked_batches import MaskedBatches
from ...data.wordpiece import CONFIG, TOKENIZER, WordPiece
from ...models.bert import Bert
from ...models.bert_heads import MaskedTokens, Pretraining
from ...tasks.pretraining import Pretrain
from ..config import Training
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from .bert_sizes import Sizes, keep_config
from .preparation import Say, prepare_once
from .recipe_settings import checked_settings, no_files, no_share, outside, read_recipe, too_long

TRAIN, VALID = "data/train", "data/valid"


@dataclass(frozen=True)
class Plain:
    """The text to learn from, and what is hidden of it."""

    text: tuple[Path, ...]
    """Text files to learn from; plain or gzip."""
    valid: tuple[Path, ...] = ()
    """Held-out text that tells how good it is; without, some of the documents are held out."""
    hold_out: float = 0.02
    """The share of documents that is held out where no file is given."""
    documents: Documents = "blank"
    """What ends a document: a blank line, every line, the end of its file."""
    lower: bool = True
    """Read capitals as small letters, and letters without their accents."""
    longest: int = 128
    """Pieces of a passage, [CLS] and [SEP] counted."""
    tokens: int = 4096
    """Pieces of a batch, padding counted."""
    mask: float = 0.15
    """The share of pieces that is to be said: of these 80 % are hidden, 10 % exchanged, 10 % left as they are."""
    whole_words: bool = False
    """All pieces of a word are to be said, or none."""
    next_sentence: bool = False
    """Also tell whether the second part of a passage follows the first, or comes from another document."""
    badly_encoded: float | None = None
    """Share of lines that may be badly encoded (not UTF-8) and are left out; more are refused. Default 0.01."""

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = [] if self.text else ["data: text (0 files) must be at least one file."]
        for name, paths in (("text", self.text), ("valid", self.valid)):
            found += no_files(name, paths)
        found += no_share("hold_out", self.hold_out, 0.02)
        if not 0 < self.mask <= 1:
            found.append(f"data: mask ({self.mask}) must lie in (0, 1]. Try 0.15.")
        found += [*outside("longest", self.longest, 5, 2**20), *outside("tokens", self.tokens, 1, 2**30)]
        return found + check_share(self.badly_encoded)


class Prepared(NamedTuple):
    """What is in the folder."""

    words: WordPiece
    train: Corpus
    valid: Corpus
    digests: Mapping[str, str]
    """Of each file that was prepared, by its name, and of the inputs."""

    def batches(self, config: Plain, seed: int) -> tuple[MaskedBatches, MaskedBatches]:
        """Those to learn from, and the held-out ones, of which the same places are hidden in every run."""
        how = {"share": config.mask, "whole_words": config.whole_words, "pairs": config.next_sentence}
        return (
            MaskedBatches(self.train, self.words, config.tokens, seed=seed, **how),  # type: ignore[arg-type]
            MaskedBatches(self.valid, self.words, config.tokens, shuffle=False, **how),  # type: ignore[arg-type]
        )


def prepare(config: Plain, folder: Path, vocabulary: int, seed: int, say: Say = print) -> Prepared:
    """Vocabulary (of at most so many pieces) and passages, from the folder if they are there, else made."""
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
    say(f"vocabulary: {len(words):,} pieces")
    for name in (TRAIN, VALID):
        _write_corpus(config, folder / name, words, seed, say)


def _write_corpus(config: Plain, path: Path, words: WordPiece, seed: int, say: Say) -> None:
    report, held = Report(what="documents"), path.name == "valid"
    longest = config.longest - (3 if config.next_sentence else 2)
    passages = encode_passages(_documents(config, seed, held, report), words, longest, report)
    try:
        corpus = Corpus.write(path, passages)
    except ValueError as error:
        if "pairs (0)" not in str(error):
            raise
        raise ValueError(
            f"data: {'held-out' if held else 'training'} text must hold at least one passage; got {report}. Give "
            "--valid FILE, another --hold-out, or say what ends a document (--documents line)."
        ) from error
    say(f"{path.name}: {report}; {len(corpus):,} passages, {corpus.totals[0]:,} pieces")


def _documents(config: Plain, seed: int, held: bool, report: Report | None = None) -> Iterator[list[str]]:
    """Documents to learn from, or those held out."""
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
    """A BERT from plain text. Its vocabulary is found on the way."""

    texts: Plain
    model: Sizes = field(default_factory=Sizes)
    training: Training = field(
        default_factory=lambda: Training(epochs=10, learning_rate=1e-3, warmup=0.05, weight_decay=0.01)
    )

    def errors(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        return too_long(self.texts.longest, self.model.positions)


KINDS = {"bert": PretrainRecipe}
"""For the command line; config.json of a run has no kind."""


def train(recipe: PretrainRecipe, folder: str | os.PathLike[str], display: Display | None = None) -> Outcome:
    """Prepare the text, build the model, train; on a folder that holds the run, go on with it."""
    folder = Path(folder)
    display = display or Display()
    seed = recipe.training.seed
    settings = checked_settings(recipe, folder, NAME)
    prepared = prepare(recipe.texts, folder, recipe.model.vocabulary, seed, display.say)
    config = recipe.model.config(prepared.words)
    torch.manual_seed(seed)  # of the first weights
    paired = recipe.texts.next_sentence
    model = Pretraining(Bert(config)) if paired else MaskedTokens(Bert(config, pooler=False))
    digests = {**prepared.digests, **keep_config(folder, config)}
    task = Pretrain(model, prepared.words, *prepared.batches(recipe.texts, seed))
    return fit(task, recipe.training, folder, recipe=settings, digests=digests, display=display)


def stored(folder: str | os.PathLike[str]) -> PretrainRecipe:
    """The recipe of a run."""
    return read_recipe(folder, NAME, {"": PretrainRecipe}, "pretraining")
