"""Atomic writes: a file is complete, or it does not exist."""

import errno
import multiprocessing
import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from regard.core.files import TEMPORARY, Unwritable, exclusive_lock, remove_stale, replacing


@pytest.mark.parametrize("former", [None, "old"])
def test_a_failed_write_keeps_the_previous_file(tmp_path: Path, former: str | None) -> None:
    path = tmp_path / "a.txt"
    if former:
        path.write_text(former)
    with pytest.raises(RuntimeError), replacing(path) as output:
        output.write_text("half")
        raise RuntimeError
    assert [p.read_text() for p in tmp_path.iterdir()] == ([former] if former else [])


def test_files_appear_only_when_they_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    for text in ("first", "second"):
        with replacing(path) as output:
            output.mkdir()
            (output / "x").write_text(text)
            assert not path.exists() if text == "first" else (path / "x").read_text() == "first"
        assert (path / "x").read_text() == text
    assert [p.name for p in path.parent.iterdir()] == ["folder"]
    with replacing(tmp_path / "b") as output:
        output.write_text("b")
    with replacing(tmp_path / "b") as output:
        output.write_text("c")
    assert (tmp_path / "b").read_text() == "c"


def test_exclusive_lock_makes_other_processes_wait(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive_lock(tmp_path / "new"):
            order.append("second")

    with exclusive_lock(tmp_path / "new"):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def leave_half_written(path: Path) -> None:
    """In a process of its own: kill −9 while a file is being written."""
    with replacing(path) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_stale_temporary_folders_are_removed_and_locked_ones_kept(tmp_path: Path) -> None:
    killed = multiprocessing.get_context("fork").Process(target=leave_half_written, args=(tmp_path / "a.txt",))
    killed.start()
    killed.join(60)
    (stale,) = tmp_path.iterdir()
    assert killed.exitcode == -signal.SIGKILL and stale.name.startswith(".a.txt.") and stale.suffix == TEMPORARY
    with replacing(tmp_path / "b.txt") as temporary:
        assert not stale.exists()
        remove_stale(tmp_path)
        temporary.write_text("whole")  # its folder is still there
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]


def replace_folder_until_killed(path: Path) -> None:
    """In a process of its own: kill −9 between the two renames that replace a folder by another."""
    rename = Path.rename

    def killed(self: Path, target: Path) -> None:
        rename(self, target)
        os.kill(os.getpid(), signal.SIGKILL)

    with replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "x").write_text("second")
        Path.rename = killed  # type: ignore[method-assign,assignment]


def test_a_folder_is_never_lost_between_its_two_renames(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with replacing(path) as temporary:
        temporary.mkdir()
        (temporary / "x").write_text("first")
    process = multiprocessing.get_context("fork").Process(target=replace_folder_until_killed, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL and not path.exists()
    remove_stale(tmp_path)
    assert (path / "x").read_text() == "second" and [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_folders_of_others_stay(tmp_path: Path) -> None:
    for name in (".git", ".cache.part", "a.regard-part"):
        (tmp_path / name).mkdir()
    remove_stale(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_path_that_is_not_writable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system", "/.out.txt.x.regard-part")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(Unwritable) as raised, replacing(tmp_path / "out.txt"):
        pass
    assert (
        str(raised.value) == f"{tmp_path / 'out.txt'} must be writable; got Read-only file system. Give another path."
    )


def test_a_lock_in_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(Unwritable, match=r"file/data must be writable; got Not a directory")
    with refused, exclusive_lock(tmp_path / "file/data"):
        pass
