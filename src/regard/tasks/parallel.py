"""Parallel text made ready for training: vocabularies and corpora in the folder of a run, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..data import Batches, Characters, Corpus, Report, Subwords, Vocabulary, encode_pairs, load_vocabulary, read_pairs
from ..data.files import one_at_a_time
from .limits import outside

Say = Callable[[str], None]


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
        ]


class Prepared(NamedTuple):
    """What is in the folder."""

    source: Vocabulary
    target: Vocabulary
    train: Corpus
    valid: Corpus
    texts: list[tuple[str, str]]
    """The held-out pairs as they are written."""

    def batches(self, tokens: int, seed: int) -> tuple[Batches, Batches]:
        """Those to learn from, and the held-out ones."""
        return Batches(self.train, tokens, seed=seed), Batches(self.valid, tokens, shuffle=False)


def prepare(config: Parallel, folder: Path, say: Say = print) -> Prepared:
    """Vocabularies and corpora, from the folder if they are there, else made; `say` is told what was left out.

    Each file appears when it is whole, so that what is there after an interruption can be used; of several processes
    one makes them.
    """
    with one_at_a_time(folder / "data"):
        source, target = _vocabularies(config, folder, say)
        train = _corpus(folder / "data/train", config.train, source, target, config.longest, say)
        # held-out pairs are never left out for their length: what is hard counts too
        valid = _corpus(folder / "data/valid", config.valid, source, target, None, say)
    return Prepared(source, target, train, valid, list(read_pairs(config.valid)))


def _corpus(
    place: Path, paths: Sequence[Path], source: Vocabulary, target: Vocabulary, longest: int | None, say: Say
) -> Corpus:
    if not place.exists():
        report = Report()
        Corpus.write(place, encode_pairs(read_pairs(paths, report), source, target, longest=longest, report=report))
        say(f"{place.name}: {report}")
    return Corpus.open(place)


def _vocabularies(config: Parallel, folder: Path, say: Say) -> tuple[Vocabulary, Vocabulary]:
    paths = folder / "source.json", folder / "target.json"
    if all(path.exists() for path in paths):
        return load_vocabulary(paths[0]), load_vocabulary(paths[1])
    sides: Sequence[Sequence[int]] = ((0, 1),) if config.joint else ((0,), (1,))
    made = [_trained(config, _lines(config.train, chosen)) for chosen in sides]
    source, target = made[0], made[-1]
    source.save(paths[0])
    target.save(paths[1])
    say(f"vocabulary: {len(source):,} subwords for both" if config.joint else _sizes(source, target))
    return source, target


def _trained(config: Parallel, lines: Iterator[str]) -> Vocabulary:
    if config.subwords == "characters":
        return Characters.train(lines)
    return Subwords.train(lines, config.vocabulary, config.subwords)


def _sizes(source: Vocabulary, target: Vocabulary) -> str:
    return f"vocabularies: {len(source):,} and {len(target):,} subwords"


def _lines(paths: Sequence[Path], sides: Sequence[int]) -> Iterator[str]:
    return (pair[side] for pair in read_pairs(paths) for side in sides)
