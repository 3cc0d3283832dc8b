"""Helpers shared by commands: reading texts from arguments and the standard input, and naming numbered files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from gzip import GzipFile
from io import StringIO
from pathlib import Path
from typing import IO, Any, TextIO

from ..core.option_parser import argument
from ..core.setting_options import options_of

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
        raise not_utf8(name, error) from None


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
            raise not_utf8(where, error) from None


def add_file_and_out(parser: argparse.ArgumentParser, what: str, out: str = "write to a file") -> None:
    """Add the options `--file` and `--out`. `what` describes the lines of a file."""
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"{what} the lines of a file, plain or .gz; repeatable",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"{out} (default: the standard output)")


def read_texts(options: argparse.Namespace, *, are_files: bool = False) -> Iterable[str]:
    """Return the texts of the arguments, the lines of `--file`, or those of the standard input if there are none.

    A text that is the name of an existing file gets a hint on the standard error, unless the texts `are_files`.

    Raises:
        ValueError: if there are texts and files, or a file does not exist.
    """
    texts: list[str] = options.texts
    files: list[Path] = options.file
    if texts and files:
        raise ValueError(f"texts ({len(texts)}) and files ({len(files)}) must not both be given.")
    for path in files:
        if not path.is_file():
            raise ValueError(f"file ({path}) must {'be a file; got a folder' if path.is_dir() else 'exist'}.")
    if files:
        return (line for path in files for line in read_file(path, options.command))
    if len(texts) == 1 and not are_files and _is_file(texts[0]):
        print(
            f"regard {options.command}: {texts[0]} is read as a text. It is also the name of a file: --file {texts[0]} "
            "reads its lines.",
            file=sys.stderr,
        )
    return texts or read_lines(sys.stdin)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """Yield the standard output, or a file that replaces `path` at the end.

    After Ctrl-C or invalid input, the file has the results so far; without any, `path` is unchanged. A device or a
    pipe, such as /dev/stdout, is written in place.
    """
    if path is None:
        yield sys.stdout
        return
    from ..core.files import check_output_file, is_stream, replacing

    if is_stream(path):
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    check_output_file(path)
    stopped: BaseException | None = None
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        try:
            yield file
        except (KeyboardInterrupt, ValueError) as error:
            if not file.tell():
                raise
            stopped = error
    if stopped is not None:
        print(f"{path} has the results so far.", file=sys.stderr)
        raise stopped


@contextmanager
def text_counter(*, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to the number of texts shown on the standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("texts"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("texts", total=None)
        yield lambda count: progress.advance(task, count)


def read_file(path: Path, where: str) -> Iterator[str]:
    """Yield the lines of a file, plain or gzip. Errors begin with `where`; see `read_lines`."""
    from ..data.open_text import open_text

    with open_text(path, where) as file:
        yield from read_lines(file, str(path))


def add_settings(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for each setting of a dataclass. Attribute docstrings become the help texts."""
    for option in options_of(kind):
        parser.add_argument(*option.flags, default=option.default, **argument(option))


def settings_from(options: argparse.Namespace, kind: Any) -> Any:
    """Return the dataclass whose fields were added with `add_settings`."""
    return kind(**{item.name: getattr(options, item.name) for item in fields(kind)})


def plot_errors(path: Path | None) -> list[str]:
    """Return an error if a picture cannot be written to this path, to be raised before anything is computed.

    >>> plot_errors(Path("map.bmp"))
    ['plot (map.bmp) must end in .png, .svg or .pdf.']
    """
    is_picture = path is None or path.suffix.lower() in (".png", ".svg", ".pdf")
    return [] if is_picture else [f"plot ({path}) must end in .png, .svg or .pdf."]


def numbered(path: Path, number: int) -> Path:
    """Return the path of picture `number`, counted from 0, in a folder that exists.

    The first has the given name, the others a number.

    >>> [numbered(Path("a.png"), n).name for n in (0, 1)]
    ['a.png', 'a-2.png']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path if not number else path.with_stem(f"{path.stem}-{number + 1}")


def not_utf8(name: str, error: UnicodeDecodeError) -> ValueError:
    """Return the error for text that is not UTF-8, with its likely encoding."""
    from ..data.encodings import guess_encoding

    byte, likely = error.object[error.start], guess_encoding(error.object)
    remedy = "" if likely.startswith("an ") else f" It seems to be {likely}: try `iconv -f {likely} -t UTF-8`."
    return ValueError(f"{name} must be text in UTF-8; got byte 0x{byte:02x} at position {error.start}.{remedy}")
