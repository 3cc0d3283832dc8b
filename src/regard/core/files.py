"""Files and folders that are written atomically."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: there processes that start together do the same work twice
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".regard-part"
"""How the names of temporary folders end: `.name.xxxxxxxx.regard-part`."""
FORMER = "former"
"""In a temporary folder: the folder that is being replaced."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file or a folder atomically: yields a temporary path that becomes `path` when the block ends.

    If the block raises, `path` stays as it was. A folder is written as a folder:
    `with replacing(out) as temporary: temporary.mkdir()`. Processes that have the former file open can read on.
    What a killed process left half-written beside `path` is removed.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "a.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent)
    with _workspace(path) as workspace:
        temporary = workspace / path.name
        yield temporary
        _sync_all(temporary)
        if temporary.is_dir() and path.exists():
            _replace_folder(temporary, path, workspace / FORMER)
        else:
            temporary.replace(path)
        sync(path.parent)


def visible_files(folder: Path) -> list[Path]:
    """The files in a folder and below it, sorted; none that is hidden, or in a hidden folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts))


class Unwritable(OSError):
    """A file of a run that could not be written, as on a full disk."""


def write(path: Path, data: bytes) -> None:
    """Write a file of a run atomically; the former one stays until then."""
    try:
        with replacing(path) as temporary:
            write_through(temporary, data)
    except OSError as error:
        raise unwritable(path, len(data), error) from error


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files of a run atomically."""
    try:
        with replacing(path) as temporary:
            temporary.mkdir()
            for name, data in files.items():
                write_through(temporary / name, data)
    except OSError as error:
        raise unwritable(path, sum(map(len, files.values())), error) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text in UTF-8, each ended by a line feed on every system."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def check_replaceable(where: str, folder: Path, names: Collection[str]) -> None:
    """Raise ValueError unless `folder` is missing or holds files of these names alone: it is replaced as a whole."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{where}: {folder} must be a folder or not exist; got a file. Choose another out.")
    others = sorted(p.name for p in folder.iterdir() if p.name not in names) if folder.exists() else []
    if others:
        raise ValueError(
            f"{where}: {folder} must hold nothing but an earlier result; got {', '.join(others[:3])}. Choose another "
            "out, or move them away."
        )


def write_through(path: Path, data: bytes) -> None:
    """Write a file that is to be renamed."""
    path.write_bytes(data)


def unwritable(path: Path, size: int, error: OSError) -> Unwritable:
    free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.exists() else 0.0
    return Unwritable(
        f"training: {path} ({size / 2**20:.1f} MiB) must be written; got {error.strerror or error} with {free:,.1f} "
        "MiB free. Make room and run the same command again: it goes on from the last state, which is as it was."
    )


def remove_stale(folder: Path) -> None:
    """Remove the temporary folders that killed processes left in a folder; those in use are locked, and stay."""
    if fcntl is None:
        return
    for workspace in folder.glob(f".*{TEMPORARY}"):
        try:
            with _locked(workspace, wait=False):
                _finish(workspace)
                shutil.rmtree(workspace, ignore_errors=True)
        except OSError:  # in use, or gone
            continue


def sync(folder: Path) -> None:
    """Wait until the disk has the names in a folder: without it a rename may be lost though the contents are not."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, locked: the lock tells that its process is alive."""
    with ExitStack() as stack:
        while True:
            workspace = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent))
            stack.callback(shutil.rmtree, workspace, ignore_errors=True)
            try:
                stack.enter_context(_locked(workspace, wait=True))
                break
            except FileNotFoundError:  # taken for a stale one before it was locked
                continue
        yield workspace


@contextmanager
def _locked(folder: Path, wait: bool) -> Iterator[None]:
    """Lock a folder; raises OSError if another process holds it (unless `wait`) or removed it meanwhile."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:
                raise  # a file system without locks: nothing is taken for stale there
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(handle)


def _replace_folder(new: Path, path: Path, former: Path) -> None:
    """A folder cannot replace another in one step; if the process is killed in between, `_finish` takes the second."""
    path.rename(former)
    try:
        new.rename(path)
    except OSError:
        former.rename(path)
        raise


def _finish(workspace: Path) -> None:
    """Complete the replacement of a folder that was killed between its two renames; the new folder was complete."""
    names = [path.name for path in workspace.iterdir() if path.name != FORMER]
    if len(names) == 1 and (workspace / FORMER).exists() and not (workspace.parent / names[0]).exists():
        (workspace / names[0]).rename(workspace.parent / names[0])
        sync(workspace.parent)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of several processes that make the same files in a folder one goes first; the others wait, and find them made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".making").open("w") as lock:  # the system takes the lock back however the process ends
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync_all(path: Path) -> None:
    """Have the contents on the disk before the name points at them: else a power cut can leave an empty file."""
    for part in (p for p in (path, *path.rglob("*")) if p.is_file()):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
