"""Labelled texts from .tsv, .csv and .jsonl files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..core.json_files import parse_json
from ..core.messages import few
from .encodings import Lines, is_utf8
from .epoch_batches import generator
from .open_text import open_text
from .text_files import Report

TEXT, LABEL = ("text", "sentence"), ("label",)
"""Default column names."""
Row = tuple[int, str | None, str | None] | tuple[int, str]
"""Line, text and label (None if missing); or line and error."""


class Example(NamedTuple):
    """A text, its label and its line number in the file, from 1."""

    text: str
    label: str
    line: int


@dataclass(frozen=True)
class Columns:
    """Columns to read; by default those named text (or sentence) and label.

    >>> Columns().texts, Columns(label="stars").labels
    (('text', 'sentence'), ('stars',))
    >>> Columns(label="stars").column_positions(["id", "text", "stars"], Path("films.csv"))
    (1, 2)
    >>> Columns().is_header(["sentence", "label"]), Columns().is_header(["a fine film", "good"])
    (True, False)
    >>> Columns().is_header(["review", "Label"])
    True
    """

    text: str = ""
    label: str = ""
    header: bool | None = None
    """Whether the first line of a .tsv file names the columns. None: if it has the names of both, or if the second of
    two is label."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Accepted names of the text column."""
        return (self.text,) if self.text else TEXT

    @property
    def labels(self) -> tuple[str, ...]:
        """Accepted names of the label column."""
        return (self.label,) if self.label else LABEL

    def column_positions(self, header: Sequence[str], path: Path) -> tuple[int, int]:
        """Return the positions of both columns in a header.

        Raises:
            ValueError: if one is missing. The message lists the columns that exist.
        """
        positions = []
        for option, wanted in (("text-column", self.texts), ("label-column", self.labels)):
            position = next((header.index(name) for name in wanted if name in header), None)
            if position is None:
                raise ValueError(
                    f"labelled: {path} must have a column named {' or '.join(wanted)} in its first line; got "
                    f"{', '.join(header)[:200]}. Name yours with --{option}; if the columns have no "
                    "names, insert a line with them."
                )
            positions.append(position)
        return positions[0], positions[1]

    def is_header(self, fields: Sequence[str]) -> bool:
        """Return whether the first line of a .tsv file is a header."""
        if self.header is not None:
            return self.header
        if self.text or self.label:
            return True
        names = [field.strip().lower() for field in fields]
        if len(names) == 2 and names[1] in LABEL:  # such as review TAB label: a text of class "label" is less likely
            return True
        return all(any(name in names for name in wanted) for wanted in (self.texts, self.labels))


def read_labelled(
    path: str | Path,
    report: Report | None = None,
    *,
    columns: Columns | None = None,
    badly_encoded: float = 1.0,
) -> Iterator[Example]:
    """Iterate over the examples of a file.

    Args:
        path: the format depends on the extension, before an optional .gz:
            .tsv: `text TAB label` lines, or any columns with a header;
            .csv: columns with a header, quoted if they contain commas, quotes or line ends. Semicolons or tabs may
                separate the columns, if the first line has no comma;
            .jsonl: one object per line. Plain or gzip, UTF-8.
        report: counts the examples that are kept and dropped (empty text, missing label, …).
        columns: columns to read.
        badly_encoded: share of lines that may not be UTF-8. Texts on such lines are dropped.

    Raises:
        ValueError: for another extension, a missing column, UTF-16, damaged gzip, an unclosed quote, a file without
            examples, and (after the last line) if too many lines are badly encoded. The message then has the likely
            encoding of the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "some.tsv"
    >>> _ = path.write_text("a fine film\\tgood\\n\\tbad\\nwho knows\\t\\n")
    >>> report = Report(what="texts")
    >>> [(example.text, example.label) for example in read_labelled(path, report)], str(report)
    ([('a fine film', 'good')], '1 texts kept; left out: 1 empty (line 2), 1 without label (line 3)')
    """
    path = Path(path)
    suffix = next((end for end in reversed(path.suffixes) if end != ".gz"), "")
    if suffix not in READERS:
        ends = ", ".join(READERS)
        got = "a folder" if path.is_dir() else suffix or "no extension"
        raise ValueError(
            f"labelled: {path} must end in {ends} (or that and .gz); got {got}. Rename a file of TEXT TAB LABEL lines "
            "to .tsv, and one of JSON objects, one per line, to .jsonl."
        )
    report = Report(what="texts") if report is None else report
    return _examples(path, READERS[suffix], report, columns or Columns(), Lines([path], badly_encoded, "labelled"))


def _examples(path: Path, reader: Reader, report: Report, columns: Columns, counted: Lines) -> Iterator[Example]:
    with open_text(path, "labelled") as file:
        for line, *values in reader(_decoded(file, counted), path, columns):
            result = _text_and_label(values)
            if isinstance(result, str):
                report.add(result, line)
            else:
                report.kept += 1
                yield Example(*result, line)
    counted.refuse()
    if not report.kept:
        raise ValueError(f"labelled: {path} must hold at least one text with a label; got {report}.")


def _decoded(file: Iterable[bytes], counted: Lines) -> Iterator[str]:
    """Decode lines. Bytes that are not UTF-8 become lone surrogates; texts and labels with these are dropped later."""
    for line in file:
        counted.add(not is_utf8(line))
        yield line.decode("utf-8", "surrogateescape")


def _text_and_label(values: Sequence[str | None]) -> tuple[str, str] | str:
    """Return (text, label), or the reason to drop the row."""
    if len(values) == 1:
        return str(values[0])
    text, label = ((value or "").strip() for value in values)
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in text + label):
        return "badly encoded"
    if not text:
        return "empty"
    return (text, label) if label else "without label"


def _tsv(lines: Iterable[str], path: Path, columns: Columns) -> Iterator[Row]:
    positions: tuple[int, int] | None = None
    width = 2
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and columns.is_header(fields):
            named = columns.text or columns.label or len(fields) != 2 or _has_both_names(fields)
            positions, width = columns.column_positions(fields, path) if named else (0, 1), len(fields)
            yield number, f"header {', '.join(map(repr, fields))}"
        elif len(fields) != width:
            yield number, "without exactly one tab" if width == 2 else f"not of {width} columns"
        else:
            text, label = positions or (0, 1)
            yield number, fields[text], fields[label]


def _has_both_names(fields: Sequence[str]) -> bool:
    return all(any(name in fields for name in names) for names in (TEXT, LABEL))


def _csv(lines: Iterable[str], path: Path, columns: Columns) -> Iterator[Row]:
    rest = iter(lines)
    first = next(rest, "")
    rows = csv.reader(chain([first], rest), delimiter=_delimiter(first), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        text, label = columns.column_positions(header, path)
        start = rows.line_num + 1
        for row in rows:
            if len(row) == len(header):
                yield start, row[text], row[label]
            elif row:  # empty lines are skipped
                yield start, f"not of {len(header)} columns"
            start = rows.line_num + 1  # a row may take several lines
    except csv.Error as error:
        raise ValueError(
            f"labelled: {path}, line {rows.line_num}, must be CSV; got {error}. Is a quote open before it?"
        ) from error


def _delimiter(first: str) -> str:
    """Return the character between the columns of a CSV file, from its first line.

    Spreadsheets write semicolons in languages whose numbers have a decimal comma.

    >>> [_delimiter(line) for line in ("text,label", "text;label", "text\\tlabel", "text, or review;label", "text")]
    [',', ';', '\\t', ',', ',']
    """
    return next((character for character in ",;\t" if character in first), ",")


def _jsonl(lines: Iterable[str], path: Path, columns: Columns) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            yield number, "no JSON object"
            continue
        text, label = (
            next((record[name] for name in names if name in record), None) for names in (columns.texts, columns.labels)
        )
        # JSON numbers and booleans are valid labels, in JSON notation
        plain = json.dumps(label) if isinstance(label, bool | int | float) else label
        yield number, text if isinstance(text, str) else None, plain if isinstance(plain, str) else None


Reader = Callable[[Iterable[str], Path, Columns], Iterator[Row]]
READERS: dict[str, Reader] = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}


def labels_of(examples: Iterable[Example]) -> list[str]:
    """Return the sorted labels. Integers are sorted by value.

    Raises:
        ValueError: if there are fewer than two.

    >>> labels_of([Example("x", "10", 1), Example("y", "9", 2)])
    ['9', '10']
    """
    labels = {example.label for example in examples}
    if len(labels) < 2:
        raise ValueError(
            f"labelled: labels ({', '.join(labels) or 'none'}) must be at least two different ones; got {len(labels)}."
        )
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def check_labels(examples: Sequence[Example], labels: Sequence[str], path: Path, header: bool | None) -> None:
    """Raise ValueError if the labels look like texts, or the first line like the names of columns.

    A header that is read as a text adds a class with one text, and a share of the accuracy is then meaningless.

    >>> check_labels([Example("text", "a", 1), Example("text", "b", 2)], ["a", "b"], Path("a.tsv"), None)
    """
    if len(examples) >= 20 and 2 * len(labels) > len(examples):
        raise ValueError(
            f"labelled: labels ({len(labels):,} different ones) of {path} must repeat; got {len(examples):,} texts, "
            f"the first with the label {_short(examples[0].label)!r}. A line of a .tsv file is text TAB label, in this "
            "order; --text-column and --label-column name the columns if a first line does."
        )
    first = examples[0]
    alone = first.line == 1 and len(labels) > 2 and sum(example.label == first.label for example in examples) == 1
    if alone and header is None and ".tsv" in path.suffixes:
        raise ValueError(
            f"labelled: label ({first.label}) in line 1 of {path} must occur more than once; got no other text with "
            "it. If the line names the columns, add --header; if it is a text, add --no-header."
        )


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:30]}…"


def numbers_of(examples: Iterable[Example], labels: Sequence[str], path: Path) -> list[int]:
    """Return the index of each example's label.

    Raises:
        ValueError: for a label that does not occur in training. The message has its line.
    """
    indices = {label: number for number, label in enumerate(labels)}
    result = []
    for example in examples:
        if example.label not in indices:
            raise ValueError(
                f"labelled: label ({example.label}) in line {example.line} of {path} must be one of training: "
                f"{few(labels, 10)}; got an unknown one. Fix the line, or train on texts with this label."
                + " If the line names the columns, add --header."
                * (example.line == 1)
            )
        result.append(indices[example.label])
    return result


def split(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Split examples into training examples and a held-out share of about `share`. No text is in both.

    Raises:
        ValueError: if one part would be empty.

    >>> learn, held = split([Example(f"text {n % 9}", "a", n) for n in range(18)], 1 / 3, seed=0)
    >>> len(learn), len(held), {example.text for example in learn} & {example.text for example in held}
    (12, 6, set())
    """
    texts = list(dict.fromkeys(example.text for example in examples))
    held_count = max(1, round(share * len(texts)))
    if not 0 < share < 1 or held_count >= len(texts):
        raise ValueError(
            f"labelled: hold-out ({share}) must be a share above 0 and below 1 that leaves texts on both sides; got "
            f"{len(texts)} different ones."
        )
    random = generator(seed, 7)
    held = {texts[index] for index in random.permutation(len(texts))[:held_count]}
    return [e for e in examples if e.text not in held], [e for e in examples if e.text in held]
