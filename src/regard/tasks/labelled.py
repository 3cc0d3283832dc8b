"""Labelled text made ready for training: vocabulary, labels and corpora in the folder of a run, made once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ..core.files import replacing
from ..core.json_files import read_json_object
from ..data import Corpus, Report
from ..data.corpus import CHUNK, Pair
from ..data.encodings import allowed, check_share
from ..data.labelled_text import Columns, Example, labels_of, numbers_of, read_labelled, split
from ..data.text_batches import TextBatches
from ..data.wordpiece import CONFIG, TOKENIZER, WordPiece
from ..training.recipes.limits import outside
from ..training.recipes.preparation import Say, prepare_once

Vocabulary = Callable[[Iterable[str]], WordPiece]
"""Makes the vocabulary, given the texts to learn from."""
LABELS = "labels.json"
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
        given = [("data", self.data)] + ([("valid", self.valid)] if self.valid is not None else [])
        found = [f"data: {name} ({path}) must be a file; got none there." for name, path in given if not path.is_file()]
        if not 0 < self.hold_out < 1:
            found.append(f"data: hold_out ({self.hold_out}) must be a share above 0 and below 1. Try 0.1.")
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


def read_labels(folder: Path) -> list[str]:
    """The labels of a run."""
    path = folder / LABELS
    labels = read_json_object(path, "the labels of a run", "Train it again.", where="labelled").get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labelled: {path} must hold a list of labels; got {labels!r}. Train it again.")
    return labels


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
    with replacing(folder / LABELS) as made:
        made.write_text(json.dumps({"labels": labels}, ensure_ascii=False) + "\n", encoding="utf-8")


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
