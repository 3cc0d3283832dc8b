"""Plain text → documents → passages of whole sentences, as ids on disk: what a model is pretrained on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from .corpus import Pair
from .encodings import Lines, is_utf8
from .open_text import opened
from .text_files import Report
from .wordpiece import WordPiece

Documents = Literal["blank", "line", "file"]
ENDS = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"'”’)\]])\s+|(?<=[。！？])")
CHUNK = 1 << 10
"""Documents that are encoded at a time."""
LEAST = 2
"""Ids of a passage: of one alone nothing can be learnt."""


def read_documents(
    paths: str | Path | Sequence[str | Path],
    documents: Documents = "blank",
    report: Report | None = None,
    *,
    badly_encoded: float = 1.0,
) -> Iterator[list[str]]:
    """The documents of text files, one at a time, each as its sentences.

    Args:
        paths: plain or gzip, UTF-8.
        documents: what ends one: a blank line ("blank"), every line ("line"), the end of its file ("file").
        report: counts documents that are kept, and lines that are left out.
        badly_encoded: share of a file's lines that may be left out because they are not UTF-8.

    Sentences end with their line, and after . ! ? and the like within it.

    Raises:
        ValueError: for UTF-16, damaged gzip, no text at all, and (after the last line) for more than the share of
            badly encoded lines, with the encoding that the file is likely to have.

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
            held: list[str] = []
            for number, raw in enumerate(stack.enter_context(opened(path, "plain")), 1):
                good = is_utf8(raw)
                lines.add(not good)
                if not good:
                    report.add("badly encoded", number)
                    continue
                line = raw.decode("utf-8").strip()
                held += sentences(line)
                if held and (documents == "line" or (documents == "blank" and not line)):
                    report.kept += 1
                    yield held
                    held = []
            if held:
                report.kept += 1
                yield held
        lines.refuse()
    if not report.kept:
        raise ValueError(f"plain: {', '.join(map(str, files))} must hold some text; got {report}.")


def sentences(line: str) -> list[str]:
    """A line cut after . ! ? … and what closes a quotation.

    >>> sentences('He said "No." Why? 3.5 reasons。二。')
    ['He said "No."', 'Why?', '3.5 reasons。', '二。']
    """
    return [part for part in ENDS.split(line) if part.strip()]


def encode_passages(
    documents: Iterator[list[str]], words: WordPiece, longest: int, report: Report | None = None
) -> Iterator[Pair]:
    """Documents as passages of whole sentences with at most `longest` ids: what `Corpus.write` takes.

    Each comes as (ids without [CLS] and [SEP], (number of its document, ids of each of its sentences)). A sentence that
    is longer is cut. Passages of a single id are left out, and counted.
    """
    if longest < LEAST:
        raise ValueError(f"plain: longest ({longest}) must be at least {LEAST}, the ids of a passage.")
    rest, number = iter(documents), 0
    while chunk := list(islice(rest, CHUNK)):
        encoded = iter(words.encode_bare([sentence for document in chunk for sentence in document]))
        for document in chunk:
            for passage in _packed([ids for ids in islice(encoded, len(document)) if ids], longest):
                ids = [id for sentence in passage for id in sentence]
                if len(ids) >= LEAST:
                    yield ids, [number, *map(len, passage)]
                elif report is not None:
                    report.add("too short")
            number += 1


def _packed(encoded: list[list[int]], longest: int) -> Iterator[list[list[int]]]:
    """Sentences put together while they fit."""
    held: list[list[int]] = []
    size = 0
    pieces = (ids[start : start + longest] for ids in encoded for start in range(0, len(ids), longest))
    for ids in pieces:
        if size + len(ids) > longest:
            yield held
            held, size = [], 0
        held.append(ids)
        size += len(ids)
    if held:
        yield held
