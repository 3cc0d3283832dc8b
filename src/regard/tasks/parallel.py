"""Parallel text made ready for training: vocabularies and corpora in the folder of a run, made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..data import Batches, Characters, Corpus, Report, Subwords, Vocabulary, encode_pairs, load_vocabulary, read_pairs
from ..data.encodings import allowed, check_share
from ..training.recipes.limits import outside
from ..training.recipes.preparation import Say, prepare_once

SOURCE, TARGET = "source.json", "target.json"
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
            found += [f"data: {name} ({path}) must be a file; got none there." for path in paths if not path.is_file()]
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
