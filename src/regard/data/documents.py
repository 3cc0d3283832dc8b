"""Plain text → documents → passages of whole sentences, stored as ids for pretraining."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from ..core.chunks import chunks
from .corpus import Pair
from .encodings import Lines, is_utf8
from .open_text import open_text
from .text_files import Report
from .wordpiece import WordPiece

Documents = Literal["blank", "line", "file"]
ENDS = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+|(?<=[。！？])")
CHUNK = 1 << 10
"""Number of documents encoded at a time."""
MIN_IDS = 2
"""Minimum number of ids of a passage: nothing can be learned from a single one."""


def read_documents(
    paths: str | Path | Sequence[str | Path],
    documents: Documents = "blank",
    report: Report | None = None,
    *,
    badly_encoded: float = 1.0,
) -> Iterator[list[str]]:
    """Iterate over the documents of text files, each a list of sentences.

    Args:
        paths: plain or gzip, UTF-8.
        documents: end of a document: a blank line ("blank"), every line ("line"), or the end of the file ("file").
        report: counts the documents that are kept and the lines that are dropped.
        badly_encoded: share of a file's lines that may be dropped because they are not UTF-8.

    Sentences end at line ends, and within a line after . ! ? and similar characters.

    Raises:
        ValueError: for UTF-16, damaged gzip, files without text, and (after the last line) if too many lines are
            badly encoded. The message has the likely encoding of the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "text"
    >>> _ = path.write_text("One. Two!\\nThree\\n\\nAnother one.")
    >>> list(read_documents(path))
    [['One.', 'Two!', 'Three'], ['Another one.']]
    """
    if documents not in get_args(Documents):
        raise ValueError(f"plain: documents ({documents!r}) must be one of {', '.join(get_args(Documents))}.")
    files = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    report = Report(what="documents") if report is None else report
    return _documents(files, documents, report, badly_encoded)


def _documents(files: list[Path], documents: Documents, report: Report, badly_encoded: float) -> Iterator[list[str]]:
    for path in files:
        lines = Lines([path], badly_encoded, "plain")
        with ExitStack() as stack:
            current: list[str] = []
            for number, raw in enumerate(stack.enter_context(open_text(path, "plain")), 1):
                good = is_utf8(raw)
                lines.add(not good)
                if not good:
                    report.add("badly encoded", number)
                    continue
                line = raw.decode("utf-8").strip()
                current += sentences(line)
                if current and (documents == "line" or (documents == "blank" and not line)):
                    report.kept += 1
                    yield current
                    current = []
            if current:
                report.kept += 1
                yield current
        lines.refuse()
    if not report.kept:
        raise ValueError(f"plain: {', '.join(map(str, files))} must hold some text; got {report}.")


def sentences(line: str) -> list[str]:
    """Split a line after . ! ? … and closing quotation marks.

    >>> sentences('He said "No." Why? 3.5 reasons。二。')
    ['He said "No."', 'Why?', '3.5 reasons。', '二。']
    """
    return [part for part in ENDS.split(line) if part.strip()]


def encode_passages(
    documents: Iterator[list[str]], words: WordPiece, longest: int, report: Report | None = None
) -> Iterator[Pair]:
    """Encode documents as passages of whole sentences with at most `longest` ids, for `Corpus.write`.

    Each passage is (ids without [CLS] and [SEP], (number of its document, number of ids of each sentence)). Longer
    sentences are split. Passages of a single id are dropped and counted.

    >>> words = WordPiece.train(["a low lower lowest", "a new newer newest"] * 9, 40)
    >>> passages = encode_passages(iter([["a low new", "a newest"], ["lowest low"]]), words, longest=8)
    >>> [(words.decode(ids), description) for ids, description in passages]
    [('a low new a newest', [0, 3, 2]), ('lowest low', [1, 2])]
    """
    if longest < MIN_IDS:
        raise ValueError(f"plain: longest ({longest}) must be at least {MIN_IDS}, the ids of a passage.")
    number = 0
    for chunk in chunks(documents, CHUNK):
        encoded = iter(words.encode_bare([sentence for document in chunk for sentence in document]))
        for document in chunk:
            for passage in _packed([ids for ids in islice(encoded, len(document)) if ids], longest):
                ids = [id for sentence in passage for id in sentence]
                if len(ids) >= MIN_IDS:
                    yield ids, [number, *map(len, passage)]
                elif report is not None:
                    report.add("too short")
            number += 1


def _packed(encoded: list[list[int]], longest: int) -> Iterator[list[list[int]]]:
    """Group consecutive sentences into passages of at most `longest` ids."""
    current: list[list[int]] = []
    size = 0
    parts = (ids[start : start + longest] for ids in encoded for start in range(0, len(ids), longest))
    for ids in parts:
        if size + len(ids) > longest:
            yield current
            current, size = [], 0
        current.append(ids)
        size += len(ids)
    if current:
        yield current
