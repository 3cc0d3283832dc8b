"""Labelled text: a text and its label, from .tsv, .csv and .jsonl files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core.json_files import parse_json
from .encodings import Lines, is_utf8
from .epoch_batches import generator
from .open_text import opened
from .text_files import Report

TEXT, LABEL = ("text", "sentence"), ("label",)
"""Names that a column may have where none is given."""
Row = tuple[int, str | None, str | None] | tuple[int, str]
"""Line, text and label, None for what is missing; or line and fault."""


class Example(NamedTuple):
    """A text, its label and the line of the file that it stands on, from 1."""

    text: str
    label: str
    line: int


@dataclass(frozen=True)
class Columns:
    """Which columns are read; by default those named text (or sentence) and label."""

    text: str = ""
    label: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """Names that the column of texts may have."""
        return (self.text,) if self.text else TEXT

    @property
    def labels(self) -> tuple[str, ...]:
        """Names that the column of labels may have."""
        return (self.label,) if self.label else LABEL

    def places(self, header: Sequence[str], path: Path) -> tuple[int, int]:
        """Where they stand in a header.

        Raises:
            ValueError: for one that is missing, with those that are there.
        """
        found = []
        for option, wanted in (("text-column", self.texts), ("label-column", self.labels)):
            place = next((header.index(name) for name in wanted if name in header), None)
            if place is None:
                raise ValueError(
                    f"labelled: {path} must have a column named {' or '.join(wanted)} in its first line; got "
                    f"{', '.join(header)[:200]}. Name yours with --{option}."
                )
            found.append(place)
        return found[0], found[1]

    def head(self, fields: Sequence[str]) -> bool:
        """Whether the first line of a file without a fixed form is a header."""
        return all(any(name in fields for name in names) for names in (self.texts, self.labels))


def read_labelled(
    path: str | Path,
    report: Report | None = None,
    *,
    columns: Columns | None = None,
    badly_encoded: float = 1.0,
) -> Iterator[Example]:
    """The examples of a file, one at a time.

    Args:
        path: by its ending, before a .gz:
            .tsv: `text TAB label` lines, or any columns under a header that names them;
            .csv: columns under a header, quoted where they hold commas, quotes or line ends;
            .jsonl: an object a line. Plain or gzip, UTF-8.
        report: counts what is kept and what is left out (empty text, missing label, …).
        columns: which to read.
        badly_encoded: share of lines that may be other than UTF-8; texts on such lines are left out.

    Raises:
        ValueError: for another ending, a column that is not there, UTF-16, damaged gzip, a quote that never ends, a
            file of which nothing is kept, and (after the last line) for more than the share of badly encoded lines,
            with the encoding that the file is likely to have.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "some.tsv"
    >>> _ = path.write_text("a fine film\\tgood\\n\\tbad\\nwho knows\\t\\n")
    >>> report = Report(what="texts")
    >>> [(one.text, one.label) for one in read_labelled(path, report)], str(report)
    ([('a fine film', 'good')], '1 texts kept; left out: 1 empty (line 2), 1 without label (line 3)')
    """
    path = Path(path)
    suffix = next((end for end in reversed(path.suffixes) if end != ".gz"), "")
    if suffix not in READERS:
        ends = ", ".join(READERS)
        raise ValueError(f"labelled: {path} must end in {ends} (or that and .gz); got {suffix or 'none'}.")
    report = Report(what="texts") if report is None else report
    return _examples(path, READERS[suffix], report, columns or Columns(), Lines([path], badly_encoded, "labelled"))


def _examples(path: Path, reader: Reader, report: Report, columns: Columns, counted: Lines) -> Iterator[Example]:
    with opened(path, "labelled") as file:
        for line, *found in reader(_decoded(file, counted), path, columns):
            judged = _judged(found)
            if isinstance(judged, str):
                report.add(judged, line)
            else:
                report.kept += 1
                yield Example(*judged, line)
    counted.refuse()
    if not report.kept:
        raise ValueError(f"labelled: {path} must hold at least one text with a label; got {report}.")


def _decoded(file: Iterable[bytes], counted: Lines) -> Iterator[str]:
    """What is not UTF-8 becomes lone surrogates, and is left out if it is part of a text or a label."""
    for line in file:
        counted.add(not is_utf8(line))
        yield line.decode("utf-8", "surrogateescape")


def _judged(found: Sequence[str | None]) -> tuple[str, str] | str:
    """Text and label, or the fault."""
    if len(found) == 1:
        return str(found[0])
    text, label = ((value or "").strip() for value in found)
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in text + label):
        return "badly encoded"
    if not text:
        return "empty"
    return (text, label) if label else "without label"


def _tsv(lines: Iterable[str], path: Path, columns: Columns) -> Iterator[Row]:
    places: tuple[int, int] | None = None
    many = 2
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and (columns.text or columns.label or columns.head(fields)):
            places, many = columns.places(fields, path), len(fields)
        elif len(fields) != many:
            yield number, "without exactly one tab" if many == 2 else f"not of {many} columns"
        else:
            text, label = places or (0, 1)
            yield number, fields[text], fields[label]


def _csv(lines: Iterable[str], path: Path, columns: Columns) -> Iterator[Row]:
    rows = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        text, label = columns.places(header, path)
        start = rows.line_num + 1
        for row in rows:
            if len(row) == len(header):
                yield start, row[text], row[label]
            elif row:  # an empty line is nothing
                yield start, f"not of {len(header)} columns"
            start = rows.line_num + 1  # a row may take several lines
    except csv.Error as error:
        raise ValueError(
            f"labelled: {path}, line {rows.line_num}, must be CSV; got {error}. Is a quote open before it?"
        ) from error


def _jsonl(lines: Iterable[str], path: Path, columns: Columns) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            yield number, "no JSON object"
            continue
        text, label = (
            next((found[name] for name in names if name in found), None) for names in (columns.texts, columns.labels)
        )
        # numbers and truth values are labels too, as JSON writes them
        plain = json.dumps(label) if isinstance(label, bool | int | float) else label
        yield number, text if isinstance(text, str) else None, plain if isinstance(plain, str) else None


Reader = Callable[[Iterable[str], Path, Columns], Iterator[Row]]
READERS: dict[str, Reader] = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}


def labels_of(examples: Iterable[Example]) -> list[str]:
    """The labels, sorted; whole numbers by their value.

    Raises:
        ValueError: for fewer than two.

    >>> labels_of([Example("x", "10", 1), Example("y", "9", 2)])
    ['9', '10']
    """
    found = {example.label for example in examples}
    if len(found) < 2:
        raise ValueError(
            f"labelled: labels ({', '.join(found) or 'none'}) must be two or more to be told apart; got {len(found)}."
        )
    if all(label.removeprefix("-").isdecimal() for label in found):
        return sorted(found, key=lambda label: (int(label), label))
    return sorted(found)


def numbers_of(examples: Iterable[Example], labels: Sequence[str], path: Path) -> list[int]:
    """The number of each example's label.

    Raises:
        ValueError: for a label that was not seen in training, with its line.
    """
    places = {label: number for number, label in enumerate(labels)}
    found = []
    for example in examples:
        if example.label not in places:
            shown = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
            raise ValueError(
                f"labelled: label ({example.label}) in line {example.line} of {path} must be one of training: {shown}; "
                "got one unseen. Mend the line, or train on texts that have it."
            )
        found.append(places[example.label])
    return found


def split(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Examples to learn from, and about a `share` of them held out; a text is never on both sides.

    Raises:
        ValueError: where one side would be empty.

    >>> learn, held = split([Example(f"text {n % 9}", "a", n) for n in range(18)], 1 / 3, seed=0)
    >>> len(learn), len(held), {one.text for one in learn} & {one.text for one in held}
    (12, 6, set())
    """
    texts = list(dict.fromkeys(example.text for example in examples))
    many = max(1, round(share * len(texts)))
    if not 0 < share < 1 or many >= len(texts):
        raise ValueError(
            f"labelled: hold-out ({share}) must be a share above 0 and below 1 that leaves texts on both sides; got "
            f"{len(texts)} different ones."
        )
    random = generator(seed, 7)
    held = {texts[place] for place in random.permutation(len(texts))[:many]}
    return [e for e in examples if e.text not in held], [e for e in examples if e.text in held]
