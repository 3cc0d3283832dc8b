"""Files and folders that are written atomically."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows has no fcntl: processes that start together then do the same work twice
    fcntl = None  # type: ignore[assignment]  # Windows has no fcntl

TEMPORARY = ".regard-part"
"""Suffix of temporary folders: `.name.xxxxxxxx.regard-part`."""
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
"""Errors of a folder that cannot be written to, however much space there is."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to an open file. Python reports them without a path."""
FORMER = "former"
"""Name of the folder being replaced, inside a temporary folder."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file or a folder atomically. Yields a temporary path that becomes `path` when the block ends.

    If the block raises, `path` stays unchanged. To write a folder, create it:
    `with replacing(out) as temporary: temporary.mkdir()`. Processes that have the previous file open can keep reading.
    Incomplete files that a killed process left beside `path` are removed.

    Raises:
        Unwritable: if `path` cannot be written, for example because the disk is full. The message has the path.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "a.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    path = _target(path)
    with _naming(path), _replacing(path) as temporary:
        yield temporary


@contextmanager
def replacing_files(folder: Path) -> Iterator[Path]:
    """Write files to a folder, each atomically. Yields a temporary folder, whose files move to `folder` at the end.

    Other files in `folder` stay. If the block raises, `folder` stays unchanged, or is not created.

    Raises:
        Unwritable: if the files cannot be written, for example because the disk is full. The message has the path.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_text(folder / "a.txt", "kept")
    >>> with replacing_files(folder) as temporary:
    ...     write_text(temporary / "b.txt", "new")
    >>> sorted(p.name for p in folder.iterdir())
    ['a.txt', 'b.txt']
    """
    is_new = not folder.exists()
    try:
        with _naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_stale(folder)
            with _workspace(folder / "files") as workspace:
                yield workspace
                _sync_all(workspace)
                for path in sorted(workspace.iterdir()):
                    path.replace(folder / path.name)
                sync(folder)
    except BaseException:
        if is_new:
            with suppress(OSError):  # absent, or some of the files are already in it
                folder.rmdir()
        raise


def checked_path(where: str, name: str, path: object) -> Path:
    """Return `path` as a Path.

    Raises:
        ValueError: if it is neither a string nor a path.

    >>> checked_path("load", "path", 5)
    Traceback (most recent call last):
    ValueError: load: path (5) must be a string or a path; got int.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{where}: {name} ({path!r}) must be a string or a path; got {type(path).__name__}.")
    return Path(path)


def _target(path: Path) -> Path:
    """Return the file that a symbolic link names, which is replaced instead of the link; `path` if it is no link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_stream(path: Path) -> bool:
    """Return whether `path` is a device, a pipe or a socket, which must be written in place and never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_output_file(path: Path) -> None:
    """Raise Unwritable if a file at `path` cannot be written. Call it before computing what is written to the file."""
    if is_stream(path):
        raise Unwritable(errno.EINVAL, f"{path} must be a file; got a device or a pipe. Give the path of a file.")
    if path.is_dir():
        raise Unwritable(errno.EISDIR, f"{path} must be a file; got a folder. Give the path of a file.")
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    if not existing.is_dir():
        raise _unwritable_path(path, f"the file {existing}", errno.EEXIST)
    if not os.access(existing, os.W_OK):
        raise _unwritable_path(path, os.strerror(errno.EACCES), errno.EACCES)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    path = _target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent)
    with _workspace(path) as workspace:
        temporary = workspace / path.name
        yield temporary
        _sync_all(temporary)
        if temporary.is_dir() and path.exists():
            _replace_folder(temporary, path, workspace / FORMER)
        else:
            check_output_file(path)
            temporary.replace(path)
        sync(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name `path` in errors that have no path, or that of a temporary file."""
    try:
        yield
    except Unwritable:
        raise
    except OSError as error:
        if not _concerns(path, error):
            raise
        reason = f"the file {error.filename}" if error.errno == errno.EEXIST else error.strerror or str(error)
        raise _unwritable_path(path, reason, error.errno) from error
    except SafetensorError as error:
        if "os error" not in str(error):
            raise
        raise _unwritable_path(path, str(error), errno.EIO) from error


def _concerns(path: Path, error: OSError) -> bool:
    """Return whether an error is one of writing `path`, and not one of reading or writing another file."""
    if error.filename is None:
        return error.errno in FULL
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
    return Path(name) in (path, *path.parents) or (Path(name).is_relative_to(path.parent) and TEMPORARY in name)


def _unwritable_path(path: Path, reason: str, number: int | None) -> Unwritable:
    remedy = "Free some space, or give another path." if number in FULL else "Give another path."
    final = Path(*(part for part in path.parts if not part.endswith(TEMPORARY)))
    return Unwritable(number, f"{final} must be writable; got {reason}. {remedy}")


def visible_files(folder: Path) -> list[Path]:
    """Return the sorted files in `folder` and its subfolders, without hidden files and hidden folders."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts))


class Unwritable(OSError):
    """A file could not be written, for example because the disk is full."""

    def __str__(self) -> str:
        return str(self.args[-1])  # without the number of the error


def write(path: Path, data: bytes) -> None:
    """Write a file of a run atomically. A failed write leaves the previous file unchanged."""
    try:
        with _replacing(path) as temporary:
            write_bytes(temporary, data)
    except OSError as error:
        raise unwritable(path, len(data), error) from error


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files of a run atomically."""
    try:
        with _replacing(path) as temporary:
            temporary.mkdir()
            for name, data in files.items():
                write_bytes(temporary / name, data)
    except OSError as error:
        raise unwritable(path, sum(map(len, files.values())), error) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text in UTF-8. Each ends with a line feed on every platform."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def check_replaceable(where: str, folder: Path, names: Collection[str]) -> None:
    """Raise ValueError if replacing `folder` would delete files other than `names`."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{where}: {folder} must be a folder or not exist; got a file. Choose another out.")
    others = sorted(p.name for p in folder.iterdir() if p.name not in names) if folder.exists() else []
    if others:
        raise ValueError(
            f"{where}: {folder} must contain only an earlier result; got {', '.join(others[:3])}. Choose another "
            "out, or move them away."
        )


def write_bytes(path: Path, data: bytes) -> None:
    """Write a temporary file, which the caller then renames. Tests replace this function to simulate a full disk."""
    path.write_bytes(data)


def unwritable(path: Path, size: int, error: OSError) -> Unwritable:
    free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.exists() else 0.0
    if isinstance(error, Unwritable):
        return error
    if error.errno in FORBIDDEN:
        return Unwritable(
            f"training: {path} must be writable; got {error.strerror}. Change its permissions, or give another folder."
        )
    return Unwritable(
        f"training: {path} ({size / 2**20:.1f} MiB) must be written; got {error.strerror or error} with {free:,.1f} "
        "MiB free. Free some space and run the same command again: it resumes from the last checkpoint."
    )


def remove_stale(folder: Path) -> None:
    """Remove temporary folders of killed processes. Folders in use are locked and stay."""
    if fcntl is None:
        return
    for workspace in folder.glob(f".*{TEMPORARY}"):
        try:
            with _locked(workspace, wait=False):
                _finish(workspace)
                shutil.rmtree(workspace, ignore_errors=True)
        except OSError:  # in use, or already removed
            continue


def sync(folder: Path) -> None:
    """Flush the directory entries of `folder` to disk. Without this, a power cut can undo a rename."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open a folder
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary_folder(path: Path) -> Path:
    """Create a temporary folder beside `path`. An error names `path`, not the temporary folder."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.parent))
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        raise _unwritable_path(path, error.strerror or str(error), error.errno) from error


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`. It stays locked while its process is alive."""
    with ExitStack() as stack:
        while True:
            workspace = _temporary_folder(path)
            stack.callback(shutil.rmtree, workspace, ignore_errors=True)
            try:
                stack.enter_context(_locked(workspace, wait=True))
                break
            except FileNotFoundError:  # another process removed it as stale before it was locked
                continue
        yield workspace


@contextmanager
def _locked(folder: Path, wait: bool) -> Iterator[None]:
    """Lock a folder. Raise OSError if another process removed it, or holds it and `wait` is false."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:
                raise  # file system without locks: no folder counts as stale
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(handle)


def _replace_folder(new: Path, path: Path, former: Path) -> None:
    """Replace a folder by another with two renames. `_finish` does the second if the process is killed in between."""
    path.rename(former)
    try:
        new.rename(path)
    except OSError:
        former.rename(path)
        raise


def _finish(workspace: Path) -> None:
    """Do the second rename of `_replace_folder` if the process was killed after the first."""
    names = [path.name for path in workspace.iterdir() if path.name != FORMER]
    if len(names) == 1 and (workspace / FORMER).exists() and not (workspace.parent / names[0]).exists():
        (workspace / names[0]).rename(workspace.parent / names[0])
        sync(workspace.parent)


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time create the files in `folder`. The others wait and then find them there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".making").open("w")
    except OSError as error:
        raise unwritable(folder, 0, error) from error
    with file:  # the system releases the lock even if the process is killed
        lock(file, wait=True)
        yield


def lock(file: IO[str], *, wait: bool) -> None:
    """Lock a file until it is closed. Raise OSError if another process holds it and `wait` is false."""
    if fcntl is not None:  # without it, two processes in one folder are not detected
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _sync_all(path: Path) -> None:
    """Flush file contents to disk before the rename. Otherwise a power cut can leave an empty file."""
    for part in (p for p in (path, *path.rglob("*")) if p.is_file()):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
