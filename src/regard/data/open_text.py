"""Text files of unknown origin, plain or gzip, opened with their byte order mark skipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def opened(path: Path, where: str) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a text file, plain or gzip (detected by its first bytes), after its byte order mark.

    Raises:
        ValueError: for UTF-16 and for damaged gzip, wherever in the block it shows; `where` begins the message.

    >>> import tempfile
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
            mark = file.read(4)
            file.seek(3 if mark[:3] == b"\xef\xbb\xbf" else 0)
            if wide := _wide(mark):
                raise ValueError(f"{where}: {path} must be UTF-8; got {wide}. Try `iconv -f {wide} -t UTF-8`.")
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{where}: {path} must be whole gzip; got {error}. Fetch it again.") from error


def _wide(mark: bytes) -> str:
    """The encoding that a byte order mark stands for, if it is not UTF-8."""
    if mark in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "UTF-32"
    return "UTF-16" if mark[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
