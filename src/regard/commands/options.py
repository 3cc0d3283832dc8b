"""Helpers shared by commands: reading texts from arguments and the standard input, and naming numbered files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from gzip import GzipFile
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO

LONGEST_LINE = 2**22
"""Maximum number of bytes in a line of the standard input."""


def decode_argument(argument: str, name: str) -> str:
    """Decode a command-line argument as UTF-8, independently of the locale.

    Raises:
        ValueError: if the argument is not UTF-8.

    >>> decode_argument("Grüße", "TEXT")
    'Grüße'
    """
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, passed by a caller in Python
        raise ValueError(f"{name} ({argument!r}) must be text; got half of a surrogate pair.") from None
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from None


def read_lines(stream: TextIO | IO[bytes] | GzipFile, name: str = "the standard input") -> Iterator[str]:
    """Yield the lines of a stream, decoded as UTF-8, without line ends and byte order mark.

    Raises:
        ValueError: if a line is not UTF-8 or longer than `LONGEST_LINE`; the message gives its number.
    """
    if isinstance(stream, StringIO):  # already decoded, as in a test
        yield from (line.rstrip("\r\n") for line in stream)
        return
    source: Any = getattr(stream, "buffer", stream)
    number = 0
    while line := source.readline(LONGEST_LINE + 1):
        number += 1
        where = f"line {number:,} of {name}"
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{where} must have at most {LONGEST_LINE:,} bytes. Put each sentence on its own line.")
        try:
            yield (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise _not_utf8(where, error) from None


def read_texts(options: argparse.Namespace) -> Iterable[str]:
    """Return the texts of the arguments, or the lines of the standard input if there are none."""
    texts: list[str] = options.texts
    return texts or read_lines(sys.stdin)


def chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of at most `size` lines, within which texts of similar length are batched.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(lines)
    while chunk := list(islice(rest, size)):
        yield chunk


def numbered(path: Path, number: int) -> Path:
    """Return the path of picture `number`, counted from 0. The first has the given name, the others a number.

    >>> [numbered(Path("a.png"), n).name for n in (0, 1)]
    ['a.png', 'a-2.png']
    """
    return path if not number else path.with_stem(f"{path.stem}-{number + 1}")


def _not_utf8(name: str, error: UnicodeDecodeError) -> ValueError:
    byte = error.object[error.start]
    likely = "UTF-16" if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
    return ValueError(
        f"{name} must be text in UTF-8; got byte 0x{byte:02x} at position {error.start}. If it is {likely}, try `iconv "
        f"-f {likely} -t UTF-8`."
    )
