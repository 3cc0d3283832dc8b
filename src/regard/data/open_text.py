"""Opening of text files of unknown origin: plain or gzip, with or without byte order mark."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def open_text(path: Path, where: str) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a text file, plain or gzip (detected by its first bytes), and skip its byte order mark.

    Raises:
        ValueError: for a folder, for UTF-16, and for damaged gzip, also while the block reads. The message begins with
            `where`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "text"
    >>> _ = path.write_bytes(gzip.compress("\ufefftwo\\nlines".encode()))
    >>> with open_text(path, "example") as file:
    ...     list(file)
    [b'two\\n', b'lines']
    """
    with ExitStack() as stack:
        if path.is_dir():
            raise ValueError(f"{where}: {path} must be a file; got a folder. Give the path of a file.")
        file: IO[bytes] | gzip.GzipFile = stack.enter_context(path.open("rb"))
        if file.read(2) == b"\x1f\x8b":
            file = stack.enter_context(gzip.GzipFile(path))
        file.seek(0)
        try:
            mark = file.read(4)
            file.seek(3 if mark[:3] == b"\xef\xbb\xbf" else 0)
            if encoding := _encoding_of_mark(mark):
                raise ValueError(f"{where}: {path} must be UTF-8; got {encoding}. Try `iconv -f {encoding} -t UTF-8`.")
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{where}: {path} must be complete gzip; got {error}. Fetch it again.") from error


def _encoding_of_mark(mark: bytes) -> str:
    """Return the encoding that a byte order mark indicates, or "" for UTF-8."""
    if mark in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "UTF-32"
    return "UTF-16" if mark[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
