"""Helpers shared by commands: reading texts from arguments and the standard input, and naming numbered files."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from gzip import GzipFile
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO, get_type_hints

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


def read_file(path: Path, where: str) -> Iterator[str]:
    """Yield the lines of a file, plain or gzip. Errors begin with `where`; see `read_lines`."""
    from ..data.open_text import open_text

    with open_text(path, where) as file:
        yield from read_lines(file, str(path))


def add_settings(parser: argparse.ArgumentParser, kind: Any) -> None:
    """Add an option for each number of a dataclass. Attribute docstrings become the help texts.

    An option of a field that may be None accepts "none".
    """
    hints, texts = get_type_hints(kind), _attribute_docstrings(kind)
    for item in fields(kind):
        numeric: Any = float if hints[item.name] is float else int
        optional = hints[item.name] == int | None
        parser.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=_number_or_none if optional else numeric,
            default=item.default,
            metavar="N" if numeric is int else "X",
            help=f"{texts[item.name]} (default: %(default)s)",
        )


def settings_from(options: argparse.Namespace, kind: Any) -> Any:
    """Return the dataclass whose fields were added with `add_settings`."""
    return kind(**{item.name: getattr(options, item.name) for item in fields(kind)})


def _number_or_none(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


_number_or_none.__name__ = "number or none"  # argparse shows it in messages


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each attribute of a class, as a help text on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            text = " ".join(ast.literal_eval(after.value).split()).removesuffix(".").replace("; None for", "; none for")
            texts[one.target.id] = text[:1].lower() + text[1:]
    return texts


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
