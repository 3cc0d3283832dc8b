"""Training states on disk: every damaged state is detected."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_bytes

from regard.core import files
from regard.core.digests import json_bytes, read_json
from regard.core.files import write
from regard.core.tensor_files import read_tensors, tensor_bytes
from regard.training import Damaged, Unwritable, checkpoint
from regard.training.checkpoint import Progress

TENSORS = {
    "model/a": torch.arange(7.0) / 3,
    "model/half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(3),
    "none": torch.empty(0, 2),
    "random": torch.get_rng_state(),
}


def save(folder: Path, step: int) -> Path:
    window = {"loss": 1 / 3, "extras": {"é": 2.5e-17}}
    return checkpoint.save(folder, Progress(step=step, seconds=0.1, best=1e300, window=window), TENSORS)


def test_a_state_is_restored_exactly(tmp_path: Path) -> None:
    save(tmp_path, 5)
    state = checkpoint.latest(tmp_path)
    assert state is not None
    assert state[0] == Progress(step=5, seconds=0.1, best=1e300, window={"loss": 1 / 3, "extras": {"é": 2.5e-17}})
    assert state[1].keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert state[1][name].dtype == value.dtype and torch.equal(state[1][name], value)


def test_latest_returns_none_without_states(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 90, 1000):
        save(tmp_path, step)
    assert [path.name for path in checkpoint.states(tmp_path)] == ["state-00000090", "state-00001000"]


def test_steps_of_nine_digits_come_last(tmp_path: Path) -> None:
    for step in (99_999_998, 99_999_999, 100_000_000):
        save(tmp_path, step)
    assert [path.name for path in checkpoint.states(tmp_path)] == ["state-99999999", "state-100000000"]
    state = checkpoint.latest(tmp_path)
    assert state is not None and state[0].step == 100_000_000


def test_copies_of_states_are_neither_read_nor_counted(tmp_path: Path) -> None:
    save(tmp_path, 5)
    copies = [tmp_path / name for name in ("state-00000005.bak", "state-backup", "state-5", "state-000000009")]
    for copy in copies:
        shutil.copytree(tmp_path / "state-00000005", copy)
    for step in (7, 8):
        save(tmp_path, step)
    assert [path.name for path in checkpoint.states(tmp_path)] == ["state-00000007", "state-00000008"]
    assert all(copy.exists() for copy in copies)
    shutil.copytree(tmp_path / "state-00000007", tmp_path / "state-00000009")
    with pytest.warns(RuntimeWarning, match="state-00000009 must be the state of its step; got that of step 7"):
        state = checkpoint.latest(tmp_path)
    assert state is not None and state[0].step == 8


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    """Flip one bit in the middle of a number."""
    data = bytearray(path.read_bytes())
    index = data.index(b'"step": 9') + 8 if path.suffix == ".json" else len(data) - 10
    data[index] ^= 1
    path.write_bytes(data)


def junk(path: Path) -> None:
    path.write_bytes(b"\xff" * 40)


@pytest.mark.parametrize("damage", [truncate, empty, remove, flip, junk])
@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.PROGRESS])
def test_a_damaged_state_is_named_and_the_previous_one_is_used(tmp_path: Path, name: str, damage: object) -> None:
    save(tmp_path, 5)
    path = save(tmp_path, 9) / name
    damage(path)  # type: ignore[operator]
    with pytest.warns(RuntimeWarning, match=f"state-00000009/{name} must .* The previous state is used"):
        state = checkpoint.latest(tmp_path)
    assert state is not None and state[0].step == 5


def test_only_damaged_states_raise(tmp_path: Path) -> None:
    for step in (5, 9):
        truncate(save(tmp_path, step) / checkpoint.TENSORS)
    with (
        pytest.warns(RuntimeWarning, match="state-0000000"),
        pytest.raises(ValueError, match=r"must have an undamaged state; got 2, all damaged\."),
    ):
        checkpoint.latest(tmp_path)


def test_another_number_of_threads_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    with pytest.warns(RuntimeWarning, match=r"threads 1, .*this process has .*threads 64, .*last bits may differ"):
        checkpoint.latest(tmp_path)


def test_a_state_with_other_fields_is_damaged(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / checkpoint.PROGRESS
    path.write_bytes(json_bytes({"progress": {"step": 5}, "environment": checkpoint.environment()}))
    with pytest.raises(Damaged, match="must have the fields of this version"):
        checkpoint.load(path.parent)


def full(path: Path, data: bytes) -> None:
    """Simulate a disk that fills up halfway."""
    path.write_bytes(data[: len(data) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_existing_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5)
    save(tmp_path, 9)
    write(tmp_path / "file", b"before")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.raises(
        Unwritable,
        match=r"state-00000012 \(0\.0 MiB\) must be written; got No space left on device with [\d,.]+ MiB free\. "
        r"Free some space and run the same command again",
    ):
        save(tmp_path, 12)
    with pytest.raises(Unwritable, match=r"/file \(0\.0 MiB\) must be written"):
        write(tmp_path / "file", b"after")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_bytes() == b"before"
    state = checkpoint.latest(tmp_path)
    assert state is not None and state[0].step == 9


def test_a_file_size_limit_raises(tmp_path: Path) -> None:
    save(tmp_path, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the generator states alone exceed it
    try:
        with pytest.raises(Unwritable, match="File too large"):
            save(tmp_path, 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["state-00000005"]


def test_incomplete_files_are_removed(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / ".state-00000009.part").mkdir()
    (tmp_path / ".state-00000009.part" / checkpoint.TENSORS).write_bytes(b"half")
    (tmp_path / ".model.safetensors.part").write_bytes(b"half")
    assert len(checkpoint.states(tmp_path)) == 1
    checkpoint.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["state-00000005"]


def test_files_of_other_programs_are_read_without_a_digest(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    assert torch.equal(read_tensors(tmp_path / "a.safetensors")["a"], torch.ones(2))


def test_json_without_a_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    with pytest.raises(Damaged, match=r"a\.json must be complete JSON"):
        read_json(tmp_path / "a.json")


def test_equal_contents_have_equal_bytes() -> None:
    """safetensors writes metadata in an order that changes with every call."""
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 5)}
    metadata = {f"key {n}": "é" * n for n in range(9)}
    first, *others = (tensor_bytes(tensors, metadata) for _ in range(5))
    assert all(other == first for other in others)
    assert load_bytes(first)["a"].equal(tensors["a"]) and load_bytes(first)["b"].equal(tensors["b"])
