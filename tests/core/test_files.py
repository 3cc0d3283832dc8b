"""Atomic writes: a file is complete, or it does not exist."""

import errno
import multiprocessing
import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from safetensors import SafetensorError

from regard.commands.options import output
from regard.core.files import (
    TEMPORARY,
    Unwritable,
    exclusive_lock,
    remove_stale,
    replacing,
    replacing_files,
    write,
    write_text,
)


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


FULL = OSError(errno.ENOSPC, "No space left on device")
SAFETENSORS = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("error", [FULL, SAFETENSORS], ids=["os", "safetensors"])
@pytest.mark.parametrize("writer", [replacing, replacing_files])
def test_an_error_of_a_full_disk_has_the_path(tmp_path: Path, writer, error: Exception) -> None:
    path = tmp_path / "out"
    with pytest.raises(Unwritable) as raised, writer(path):
        raise error
    assert str(raised.value).startswith(f"{path} must be writable; got ")
    assert str(raised.value).endswith("Free some space, or give another path.")
    assert "No space left on device" in str(raised.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", [replacing, replacing_files])
def test_an_error_of_a_file_in_a_temporary_folder_has_its_final_path(tmp_path: Path, writer) -> None:
    path = tmp_path / "out"
    with (
        pytest.raises(Unwritable, match=f"^{path}/a.txt must be writable; got No space"),
        writer(path) as folder,
        replacing(folder / "a.txt"),
    ):
        raise FULL


def test_a_full_disk_without_room_for_the_temporary_folder_names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / f".out.x{TEMPORARY}"))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(Unwritable, match="must be writable; got No space left") as raised, replacing(tmp_path / "out"):
        pass
    assert TEMPORARY not in str(raised.value)


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, "No such file", "input.txt"), BrokenPipeError(errno.EPIPE, "Broken pipe")],
    ids=["input", "pipe"],
)
def test_errors_of_other_files_stay(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)) as raised, replacing(tmp_path / "out"):
        raise error
    assert raised.value is error


def test_a_full_disk_during_training_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise FULL

    monkeypatch.setattr("regard.core.files.write_bytes", full)
    with pytest.raises(Unwritable, match="it resumes from the last checkpoint"):
        write(tmp_path / "state", b"x")


def test_a_folder_is_refused_as_an_output_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").write_text("kept")
    refused = pytest.raises(Unwritable, match=r"/out must be a file; got a folder\. Give the path of a file\.")
    with refused, replacing(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "out/x").read_text() == "kept"


def test_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(Unwritable, match=r"pipe must be a file; got a device or a pipe\. Give the path of a file\."):
        write_text(pipe, "text")
    assert pipe.is_fifo()
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with output(pipe) as file:
        file.write("text")
    reader.join()
    assert received == ["text"] and pipe.is_fifo()


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "file"
    if exists:
        target.write_text("before")
    link.symlink_to(target)
    write_text(link, "text")
    assert link.is_symlink() and target.read_text() == "text"
    assert list((tmp_path / "folder").iterdir()) == [target]


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(Unwritable, match=r"file/out must be writable; got the file \S*/file\. Give another path")
    with refused, replacing(tmp_path / "file/out"):
        pass


def test_files_replace_those_of_the_same_name_and_others_stay(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with replacing_files(tmp_path) as temporary:
            (temporary / "a").write_text(text)
            assert text == "first" or (tmp_path / "a").read_text() == "first"
        (tmp_path / "other").write_text("kept")
    with pytest.raises(RuntimeError), replacing_files(tmp_path) as temporary:
        (temporary / "a").write_text("half")
        raise RuntimeError
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "second", "other": "kept"}


def test_a_lock_in_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(Unwritable, match=r"file/data must be writable; got Not a directory")
    with refused, exclusive_lock(tmp_path / "file/data"):
        pass
