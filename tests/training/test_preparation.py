"""Data preparation: done once for the same settings and inputs, and verified on every start."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.core.digests import input_digests
from regard.training.recipes.preparation import INPUTS, RECORD, prepare_once


class Job:
    """Prepares data by converting its input to upper case, and counts how often it does so."""

    def __init__(self, folder: Path) -> None:
        self.input, self.run, self.size, self.calls = folder / "input", folder / "run", 3, 0
        self.input.write_text("abc")

    def prepare(self) -> dict[str, str]:
        return prepare_once(
            self.run,
            settings={"size": self.size, "path": self.input},
            inputs=[self.input],
            outputs=("output", "data/train"),
            make=self.make,
        )

    def make(self) -> None:
        self.calls += 1
        (self.run / "output").write_text(self.input.read_text().upper() * self.size)
        (self.run / "data/train").mkdir()
        (self.run / "data/train/ids").write_bytes(b"12")

    def begin(self) -> None:
        """Mark the run as started, as training does. From then on, other data are refused."""
        (self.run / "config.json").write_text("{}")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("begun", [False, True])
def test_data_are_prepared_once(job: Job, begun: bool) -> None:
    first = job.prepare()
    assert first.keys() == {"output", "data/train/ids", INPUTS}
    if begun:
        job.begin()
    assert job.prepare() == first and job.calls == 1


def change_input(job: Job) -> None:
    job.input.write_text("abd")  # the same size


def change_settings(job: Job) -> None:
    job.size = 2


def change_output(job: Job) -> None:
    (job.run / "output").write_text("ABCABCABD")


def change_corpus(job: Job) -> None:
    (job.run / "data/train/ids").write_bytes(b"13")


def remove_corpus(job: Job) -> None:
    (job.run / "data/train/ids").unlink()


CHANGES = {
    change_input: "input must be unchanged since the run in .* was started; got other contents",
    change_settings: r"settings of .* \(size\) must be those its data were prepared with",
    change_output: "run/output must be unchanged since it was prepared; got other contents",
    change_corpus: "data/train/ids must be unchanged since it was prepared; got other contents",
    remove_corpus: "data/train/ids must be unchanged since it was prepared; got no such file",
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_before_the_start_of_a_run_prepare_again(job: Job, change: object) -> None:
    job.prepare()
    change(job)  # type: ignore[operator]
    job.prepare()
    assert job.calls == 2
    assert (job.run / "output").read_text() == job.input.read_text().upper() * job.size
    assert (job.run / "data/train/ids").read_bytes() == b"12"


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_start_of_a_run_are_refused_by_name(job: Job, change: object) -> None:
    job.prepare()
    job.begin()
    change(job)  # type: ignore[operator]
    for _ in range(2):  # and again
        with pytest.raises(ValueError, match=CHANGES[change]):  # type: ignore[index]
            job.prepare()
    assert job.calls == 1


def test_a_failed_preparation_is_repeated(job: Job) -> None:
    job.make, make = lambda: (make(), 1 / 0), job.make  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        job.prepare()
    job.make = make  # type: ignore[method-assign]
    job.prepare()
    assert job.calls == 2


def test_an_input_that_changes_while_it_is_read_is_refused(job: Job) -> None:
    make = job.make
    job.make = lambda: (make(), job.input.write_text("rewritten"))  # type: ignore[method-assign,assignment]
    with pytest.raises(ValueError, match="input must not change while it is read"):
        job.prepare()


def test_files_of_unknown_origin_are_kept(job: Job) -> None:
    job.run.mkdir()
    (job.run / "output").write_text("not ours")
    with pytest.raises(
        ValueError, match="must be a new folder or the folder of a run; got one with output of unknown origin"
    ):
        job.prepare()
    assert (job.run / "output").read_text() == "not ours"


def test_a_run_of_an_earlier_version_gets_a_record(job: Job) -> None:
    job.prepare()
    job.begin()
    (job.run / RECORD).unlink()
    job.prepare()
    assert job.calls == 1
    change_input(job)
    with pytest.raises(ValueError, match="input must be unchanged"):
        job.prepare()


@pytest.mark.parametrize("begun", [False, True])
def test_a_damaged_record(job: Job, begun: bool) -> None:
    job.prepare()
    (job.run / RECORD).write_bytes((job.run / RECORD).read_bytes().replace(b'"size": 3', b'"size": 4'))
    if not begun:
        job.prepare()
        assert job.calls == 2
        return
    job.begin()
    with pytest.raises(ValueError, match=r"prepared\.json must have the digest written into it; got another"):
        job.prepare()


def test_digests_of_a_folder_include_its_subfolders(tmp_path: Path) -> None:
    for name in ("a/1", "a/2", "b/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = input_digests([tmp_path])
    assert [Path(path).name for path in before] == ["a", "b"]
    (tmp_path / "a/.hidden").write_text("")
    assert input_digests([tmp_path]) == before
    (tmp_path / "b/1").rename(tmp_path / "b/2")
    changed = input_digests([tmp_path])
    assert [Path(path).name for path in before if before[path] != changed[path]] == ["b"]
