"""The recipe of `regard train language`: trains a GPT on plain text to predict the next token.

From top to bottom: data settings, preparation of vocabulary and ids, recipe settings, training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from ...core.setting_options import named
from ...core.settings import refuse
from ...data import ByteSubwords, Characters, Corpus, Report, Vocabulary, load_vocabulary
from ...data.bare_text import FILE
from ...data.byte_subwords import BYTES
from ...data.corpus import EmptyCorpus, Flat
from ...data.encodings import allowed, check_share
from ...data.text_chunks import encode_chunks, part_of, read_chunks
from ...data.token_windows import TokenWindows
from ...models.gpt import GPT
from ...tasks.language_model import LanguageModel
from ...tasks.language_modelling import LanguageModelling
from ...tasks.loading import GPT_CONFIG, gpt_config_of, gpt_positions, vocabulary_file
from ..config import Training
from ..logbook import Outcome
from ..loop import fit
from ..progress import Display
from .gpt_sizes import Sizes, initial_language_model
from .preparation import Say, has_state, prepare_once, write_model_config
from .recipe_settings import checked_settings, fraction_errors, missing_files, range_errors, read_recipe

TRAIN, VALID = "data/train", "data/valid"
MakeVocabulary = Callable[[Iterator[str]], Vocabulary]
"""Function that returns the vocabulary for the given training text, in chunks."""


@dataclass(frozen=True)
class Text:
    """Settings of the training text and its windows."""

    train: tuple[Path, ...]
    """Training text files, plain or gzip, read one after another."""
    valid: tuple[Path, ...] = ()
    """Held-out text files for evaluation. By default, the end of the training text is held out."""
    hold_out: float = 0.1
    """Fraction of characters at the end of the text to hold out if no validation file is given."""
    context: int | None = None
    """Number of tokens of a window, which is what the model reads at once. By default 256, or all that the model of
    --from can read."""
    batch: int = 16
    """Number of windows in a batch."""
    evaluate_tokens: int | None = None
    """Number of held-out tokens to predict in an evaluation, from windows at equal distances. By default all."""
    badly_encoded: float | None = None
    """Maximum fraction of lines that are not valid UTF-8. They are skipped; more are an error. Default 0.01."""

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        errors = [] if self.train else ["data: train (0 files) must be at least one file."]
        errors += [*missing_files("train", self.train), *missing_files("valid", self.valid)]
        errors += fraction_errors("hold_out", self.hold_out, 0.1)
        errors += range_errors("batch", self.batch, 1, 2**20)
        for name, value in (("context", self.context), ("evaluate_tokens", self.evaluate_tokens)):
            errors += [] if value is None else range_errors(name, value, 1, 2**30)
        return errors + check_share(self.badly_encoded)


class Prepared(NamedTuple):
    """Prepared data in the folder of a run."""

    vocabulary: Vocabulary
    train: Corpus
    valid: Corpus
    digests: Mapping[str, str]
    """Digests of the prepared files by name, and of the inputs."""


def prepare(
    config: Text,
    folder: Path,
    vocabulary: MakeVocabulary,
    say: Say = print,
    *,
    key: object = None,
    sources: Sequence[Path] = (),
) -> Prepared:
    """Return the vocabulary and the encoded text. Prepare them if the folder lacks them.

    Args:
        config: data settings.
        folder: folder of the run.
        vocabulary: function that returns the vocabulary for the training text.
        say: called with messages, such as the number of tokens.
        key: everything besides the text that the vocabulary depends on.
        sources: files that `vocabulary` reads, if any.
    """
    names = ("train", "valid", "hold_out", "badly_encoded")
    digests = prepare_once(
        folder,
        settings={**{name: asdict(config)[name] for name in names}, "vocabulary": key},
        inputs=(*config.train, *config.valid, *sources),
        outputs=(FILE, TRAIN, VALID),
        make=lambda: _make(config, folder, vocabulary, say),
    )
    train, valid = (Corpus.open(folder / name) for name in (TRAIN, VALID))
    return Prepared(load_vocabulary(folder / FILE), train, valid, digests)


def _make(config: Text, folder: Path, vocabulary: MakeVocabulary, say: Say) -> None:
    cut = None if config.valid else int((1 - config.hold_out) * sum(map(len, _chunks(config, config.train))))
    words = vocabulary(part_of(_chunks(config, config.train), 0, cut))
    words.save(folder / FILE)
    say(f"vocabulary: {len(words):,} tokens")
    for name in (TRAIN, VALID):
        report = Report(what="lines")
        chunks = _chunks(config, config.valid if name == VALID and config.valid else config.train, report)
        if cut is not None:
            chunks = part_of(chunks, cut) if name == VALID else part_of(chunks, 0, cut)
        corpus = _write_corpus(folder / name, encode_chunks(chunks, words))
        dropped = f"; {report}" if report.left_out["badly encoded"] else ""
        characters = int(corpus.ids[1].sum(dtype="int64"))
        say(f"{Path(name).name}: {characters:,} characters, {corpus.totals[0]:,} tokens{dropped}")


def _write_corpus(path: Path, chunks: Iterator[tuple[Flat, Flat]]) -> Corpus:
    try:
        return Corpus.write_flat(path, chunks)
    except EmptyCorpus as error:
        side = "held-out" if path.name == "valid" else "training"
        raise ValueError(f"data: {side} text (0 characters) must not be empty. Try another --hold-out.") from error


def _chunks(config: Text, paths: Sequence[Path], report: Report | None = None) -> Iterator[str]:
    return read_chunks(paths, report, badly_encoded=allowed(config.badly_encoded))


NAME = "language"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings shared by all language models."""

    text: Text


@dataclass(frozen=True, kw_only=True)
class ScratchRecipe(Recipe):
    """Settings of a language model that is trained from scratch."""

    vocabulary: Literal["characters"] | int = 8000
    """Tokens: characters, or the maximum number of byte-level subwords, which are learned from the text."""
    training: Training = field(
        default_factory=lambda: Training(
            epochs=10, learning_rate=1e-3, warmup=0.05, final_rate=0.1, betas=(0.9, 0.99), weight_decay=0.1
        )
    )

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        return [] if self.vocabulary == "characters" else range_errors("vocabulary", self.vocabulary, BYTES + 1, 2**20)


@dataclass(frozen=True, kw_only=True)
class GPT2Recipe(ScratchRecipe):
    """Train a language model in the form of GPT-2 on plain text."""

    model: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe(ScratchRecipe):
    """Train a language model in the form of Llama on plain text."""

    model: Sizes = field(default_factory=Sizes.llama)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(Recipe):
    """Continue the training of a language model on plain text, with its vocabulary."""

    start: Path = field(metadata=named("from"))
    """Model to start from: a run of `regard train language` or a Hugging Face model directory of a GPT."""
    dropout: float | None = None
    """Dropout of the embeddings and of the output of each sublayer. By default, that of the model."""
    attention_dropout: float = 0.0
    """Dropout of attention weights. The fast kernels do not support it."""
    training: Training = field(
        default_factory=lambda: Training(
            epochs=3, learning_rate=1e-4, warmup=0.05, final_rate=0.1, betas=(0.9, 0.99), weight_decay=0.1
        )
    )

    def errors(self) -> list[str]:
        """Return one message for each invalid setting."""
        values = (("dropout", self.dropout or 0.0), ("attention_dropout", self.attention_dropout))
        return [
            f"language: {name} ({value}) must lie in [0, 1). Try 0." for name, value in values if not 0 <= value < 1
        ]

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that replace those of the model."""
        kept = {} if self.dropout is None else {"dropout": self.dropout}
        return {"attention_dropout": self.attention_dropout, **kept}


KINDS: dict[str, type[GPT2Recipe] | type[LlamaRecipe] | type[FinetuneRecipe]] = {
    "gpt2": GPT2Recipe,
    "llama": LlamaRecipe,
    "finetune": FinetuneRecipe,
}


def train(
    recipe: GPT2Recipe | LlamaRecipe | FinetuneRecipe, folder: str | os.PathLike[str], display: Display | None = None
) -> Outcome:
    """Prepare the text, build the model and train it. If the folder holds the run, resume it."""
    folder = Path(folder)
    display = display or Display()
    seed = recipe.training.seed
    settings = checked_settings(recipe, folder, NAME, KINDS)
    context = _context(recipe, folder)
    prepared = _prepared(recipe, folder, display.say)
    torch.manual_seed(seed)  # seeds the initial weights
    model = _model(recipe, folder, len(prepared.vocabulary), context)
    digests = {**prepared.digests, **write_model_config(folder / GPT_CONFIG, model.config)}
    task = LanguageModelling(
        LanguageModel(model, prepared.vocabulary),
        TokenWindows(prepared.train.ids[0], context, recipe.text.batch, seed=seed),
        prepared.valid,
        most_tokens=recipe.text.evaluate_tokens,
    )
    return fit(task, recipe.training, folder, recipe=settings, digests=digests, display=display)


def stored(folder: str | os.PathLike[str]) -> GPT2Recipe | LlamaRecipe | FinetuneRecipe:
    """Read the recipe of a run."""
    return read_recipe(folder, NAME, KINDS, "a language model")


def _context(recipe: Recipe, folder: Path) -> int:
    """Return the number of tokens of a window. Raise ValueError if the model of --from cannot read so many."""
    context = recipe.text.context
    if not isinstance(recipe, FinetuneRecipe):
        return 256 if context is None else context
    positions = gpt_positions(folder if has_state(folder) else recipe.start)
    if context is not None and context > positions:
        refuse([f"model: positions ({positions}) must be at least context; got {context}. Try --context {positions}."])
    return positions if context is None else context


def _prepared(recipe: ScratchRecipe | FinetuneRecipe, folder: Path, say: Say) -> Prepared:
    if isinstance(recipe, FinetuneRecipe):
        start = recipe.start
        # a resumed run does not need the model that it started from any more
        sources = [] if has_state(folder) else [vocabulary_file(start)]
        return prepare(recipe.text, folder, lambda _: load_vocabulary(vocabulary_file(start)), say, sources=sources)
    size = recipe.vocabulary

    def learn(chunks: Iterator[str]) -> Vocabulary:
        return Characters.train(chunks) if size == "characters" else ByteSubwords.train(chunks, size)

    return prepare(recipe.text, folder, learn, say, key=size)


def _model(recipe: GPT2Recipe | LlamaRecipe | FinetuneRecipe, folder: Path, vocabulary: int, context: int) -> GPT:
    if has_state(folder) and (folder / GPT_CONFIG).exists():  # the state has the weights
        return GPT(gpt_config_of(folder))
    if isinstance(recipe, FinetuneRecipe):
        return initial_language_model(recipe.start, **recipe.changes).model
    return GPT(recipe.model.config(vocabulary, context))
