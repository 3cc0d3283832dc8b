"""Files that are there whole or not at all, and text files as they are found."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows: there processes that start together do the same work twice
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; it becomes `path` when the block ends, and vanishes when the block fails.

    A folder is written as a folder: `with replacing(out) as made: made.mkdir()`. What was at `path` stays readable to
    whoever has it open, and is gone for everybody else.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "a.txt") as made:
    ...     _ = made.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        made = workshop / path.name
        yield made
        _settle(made)
        if made.is_dir() and path.exists():  # a folder cannot replace another at one stroke
            path.rename(workshop / "former")
        made.replace(path)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of several processes that make the same files in a folder one goes first; the others wait, and find them made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".making").open("w") as lock:  # the system takes the lock back however the process ends
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def opened(path: Path, where: str) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """A text file, plain or gzip (told by its first bytes), from after its byte order mark.

    Raises:
        ValueError: for UTF-16 and for damaged gzip, wherever in the block it shows; `where` begins the message.

    >>> path = Path(tempfile.mkdtemp()) / "text"
    >>> _ = path.write_bytes(gzip.compress("\ufefftwo\\nlines".encode()))
    >>> with opened(path, "example") as file:
    ...     list(file)
    [b'two\\n', b'lines']
    """
    with ExitStack() as stack:
        file: IO[bytes] | gzip.GzipFile = stack.enter_context(path.open("rb"))
        if file.read(2) == b"\x1f\x8b":
            file = stack.enter_context(gzip.GzipFile(path))
        file.seek(0)
        try:
            if (mark := file.read(3)) != b"\xef\xbb\xbf":
                file.seek(0)
            if mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise ValueError(f"{where}: {path} must be UTF-8; got UTF-16. Try `iconv -f UTF-16 -t UTF-8`.")
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{where}: {path} must be whole gzip; got {error}. Fetch it again.") from error


def _settle(made: Path) -> None:
    """Have the contents on the disk before the name points at them: else a power cut can leave an empty file."""
    for part in (p for p in (made, *made.rglob("*")) if p.is_file()):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
