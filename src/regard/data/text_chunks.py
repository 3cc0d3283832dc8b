"""Plain text for language models: chunks of whole lines, encoded once into one long sequence of ids.

Nothing is stripped, split at spaces or normalized here: line ends are part of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..core.chunks import chunks
from .corpus import Flat
from .encodings import Lines, is_utf8
from .open_text import open_text
from .text_files import Report
from .vocabulary import Vocabulary

CHUNK = 1 << 16
"""Number of characters of a chunk; chunks end with a line, so most are a little longer."""
LONGEST = 1 << 20
"""Number of bytes of a line that are read at once. Longer lines are cut between two characters."""
BATCH = 16
"""Number of chunks encoded at a time, in several threads."""


def read_chunks(
    paths: Sequence[str | Path], report: Report | None = None, *, badly_encoded: float = 1.0
) -> Iterator[str]:
    """Iterate over the text of files, one after another, in chunks of whole lines.

    Args:
        paths: plain or gzip, UTF-8, of any size. If a file does not end with a line end, one is added before the next.
        report: counts the lines that are kept and dropped.
        badly_encoded: share of a file's lines that may be dropped because they are not UTF-8.

    Raises:
        ValueError: for UTF-16, damaged gzip, files without text, and (after the last line of a file) if too many lines
            are badly encoded. The message has the likely encoding of the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "text"
    >>> _ = path.write_text("To be,\\n\\n  or not")
    >>> list(read_chunks([path, path]))
    ['To be,\\n\\n  or not', '\\n', 'To be,\\n\\n  or not']
    """
    report = Report(what="lines") if report is None else report
    last = "\n"
    for path in map(Path, paths):
        for number, chunk in enumerate(_chunks(_lines(path, report, badly_encoded))):
            if not number and not last.endswith("\n"):
                yield "\n"
            yield chunk
            last = chunk
    if not report.kept:
        raise ValueError(f"plain: {', '.join(map(str, paths))} must hold some text; got {report}.")


def part_of(texts: Iterable[str], start: int, stop: int | None = None) -> Iterator[str]:
    """Yield the characters from `start` to `stop` of a text in chunks.

    >>> list(part_of(["abc", "defg", "hi"], 1, 6))
    ['bc', 'def']
    """
    offset = 0
    for chunk in texts:
        if stop is not None and offset >= stop:
            return
        part = chunk[max(0, start - offset) : None if stop is None else stop - offset]
        offset += len(chunk)
        if part:
            yield part


def encode_chunks(texts: Iterable[str], vocabulary: Vocabulary) -> Iterator[tuple[Flat, Flat]]:
    """Encode the chunks of a text for `Corpus.write_flat`: its sources are their ids, its targets their lengths.

    `corpus.ids[0]` is then the whole text, and the sum of `corpus.ids[1]` is its number of characters.
    """
    for batch in chunks(texts, BATCH):
        encoded = [np.asarray(ids, np.int64) for ids in vocabulary.encode_all(batch)]
        lengths = np.array([len(ids) for ids in encoded], np.int32)
        characters = np.array([len(text) for text in batch], np.int64)
        yield (np.concatenate(encoded), lengths), (characters, np.ones(len(batch), np.int32))


def _lines(path: Path, report: Report, badly_encoded: float) -> Iterator[str]:
    """Yield the lines of a file with their line ends. Very long lines are yielded in parts."""
    lines = Lines([path], badly_encoded, "plain")
    with open_text(path, "plain") as file:
        rest, number = b"", 1
        while raw := rest + file.readline(LONGEST):
            raw, rest = (raw, b"") if raw.endswith(b"\n") or len(raw) < LONGEST else _cut(raw)
            good = is_utf8(raw)
            lines.add(not good)
            if good:
                report.kept += 1
                yield raw.decode("utf-8")
            else:
                report.add("badly encoded", number)
            number += raw.endswith(b"\n")
    lines.refuse()


def _cut(raw: bytes) -> tuple[bytes, bytes]:
    """Split off the last character, which may be incomplete."""
    start = len(raw) - 1
    while start > len(raw) - 4 and raw[start] & 0xC0 == 0x80:  # the second and later bytes of a character
        start -= 1
    return raw[:start], raw[start:]


def _chunks(lines: Iterator[str]) -> Iterator[str]:
    current: list[str] = []
    size = 0
    for line in lines:
        if size >= 4 * CHUNK or (size >= CHUNK and _separable(current[-1], line)):
            yield "".join(current)
            current, size = [], 0
        current.append(line)
        size += len(line)
    if current:
        yield "".join(current)


def _separable(before: str, after: str) -> bool:
    """Return whether no subword can contain the end of a line: white space would be joined."""
    return before.endswith("\n") and not before[-2:-1].isspace() and before != "\n" and not after[:1].isspace()
