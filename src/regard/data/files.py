"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def _settle(made: Path) -> None:
    """Have the contents on the disk before the name points at them: else a power cut can leave an empty file."""
    for part in (p for p in (made, *made.rglob("*")) if p.is_file()):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
