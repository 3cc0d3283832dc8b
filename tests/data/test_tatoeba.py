"""Tatoeba: a tiny archive in the same format is read, split and written."""

import dataclasses
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import package_index, read_pairs, tatoeba
from regard.data.tatoeba import PARTS, SDIST, SOURCES, Source, prepare, split

LINES = [
    f"Sentence {n // 2}.\tPhrase{space}{n}{accent}\tCC-BY 2.0 #{n} (ada)"
    for n, (space, accent) in enumerate([("\u202f", "!"), ("\u00a0", "e\u0301"), (" ", "\u2009?")] * 200)
]


def packed(lines: list[str], member: str = "toy-1/data/toy.zip", file: str = "toy.txt") -> bytes:
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(file, "".join(f"{line}\n" for line in lines))
    with tarfile.open(fileobj=outer, mode="w:gz") as archive:
        about = tarfile.TarInfo(member)
        about.size = len(inner.getvalue())
        archive.addfile(about, io.BytesIO(inner.getvalue()))
        setup = tarfile.TarInfo("toy-1/setup.py")
        archive.addfile(setup, io.BytesIO())
    return outer.getvalue()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Puts an archive in place of the real one; returns its path."""

    def make(content: bytes, count: int = len(LINES)) -> Path:
        output = dataclasses.replace(SDIST, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        monkeypatch.setattr(tatoeba, "SDIST", output)
        monkeypatch.setitem(SOURCES, "en-fr", Source("toy-1/data/toy.zip", "toy.txt", count))
        path = tmp_path / "toy.tar.gz"
        path.write_bytes(content)
        return path

    return make


def test_the_archive_becomes_files(toy, tmp_path: Path) -> None:
    done = prepare("en-fr", tmp_path / "out", toy(packed(LINES)), seed=3)
    assert sum(done.counts.values()) == 600 and done.folder == tmp_path / "out" / "en-fr"
    assert (
        str(done)
        == f"{done.folder}: {done.counts['train']} train, {done.counts['valid']} valid, {done.counts['test']} test"
    )
    result = []
    for part in PARTS:
        rows = list(read_pairs([done.folder / f"{part}.en", done.folder / f"{part}.fr"]))
        assert len(rows) == done.counts[part] > 0
        credits = (done.folder / f"{part}.credits").read_text().splitlines()
        result += [(*row, credit) for row, credit in zip(rows, credits, strict=True)]
    assert sorted(result) == sorted(
        (f"Sentence {n // 2}.", f"Phrase {n}{('!', 'é', ' ?')[n % 3]}", f"CC-BY 2.0 #{n} (ada)") for n in range(600)
    )
    about = (done.folder / "README").read_text()
    assert (
        "CC-BY 2.0" in about
        and "tatoeba.org" in about
        and "(seed 3)" in about
        and f"{done.counts['train']} train" in about
    )


def test_prepare_can_be_repeated(toy, tmp_path: Path) -> None:
    archive = toy(packed(LINES))
    first = prepare("en-fr", tmp_path, archive)
    contents = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    assert prepare("en-fr", tmp_path, archive) == first
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == contents
    prepare("en-fr", tmp_path, archive, seed=1)
    assert (first.folder / "train.en").read_bytes() != contents["train.en"]


def test_without_an_archive_it_is_fetched_and_kept(toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = toy(packed(LINES))
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    archive.rename(shelf / SDIST.name)
    monkeypatch.setattr(package_index, "pip_settings", lambda: package_index.Settings(folders=[shelf]))
    assert sum(prepare("en-fr", tmp_path / "out").counts.values()) == 600
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["en-fr", SDIST.name]


words = st.sampled_from(["Go.", "go", "GO!", "Walk.", "Hi.", "Hi!", "Run", "Stop?", "Sit.", "…", "!"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(words, words, st.just("ada")), max_size=12), st.integers(0, 9))
def test_no_sentence_is_in_two_parts(rows: list[tuple[str, str, str]], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tatoeba, "HELD_OUT", 0.33)
        parts = split(rows, seed)
    assert sorted(row for part in parts.values() for row in part) == sorted(rows)
    for side in (0, 1):
        cores = [{tatoeba._core(row[side]) for row in parts[part]} for part in PARTS]
        assert not cores[0] & cores[1] and not cores[0] & cores[2] and not cores[1] & cores[2]


def test_about_one_in_a_hundred_is_held_out() -> None:
    parts = split([(f"a{n}", f"b{n}", "") for n in range(20_000)])
    assert 150 < len(parts["valid"]) < 250 and 150 < len(parts["test"]) < 250


def test_error_messages(toy, tmp_path: Path) -> None:
    def refused(message: str, *arguments: object) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            prepare(*arguments)  # type: ignore[arg-type]

    archive = toy(packed(LINES))
    refused("tatoeba: pair (en-de) must be one of en-fr, en-es.", "en-de", tmp_path)
    (tmp_path / "other.tar.gz").write_bytes(b"other")
    refused(
        f"registry: {tmp_path / 'other.tar.gz'} must be {SDIST.name} with sha256",
        "en-fr",
        tmp_path,
        tmp_path / "other.tar.gz",
    )
    folder = tmp_path / "en-fr"
    folder.mkdir()
    (folder / "notes.txt").touch()
    refused(f"tatoeba: {folder} must contain only an earlier result; got notes.txt.", "en-fr", tmp_path, archive)
    (folder / "notes.txt").unlink()
    folder.rmdir()
    folder.touch()
    refused(f"tatoeba: {folder} must be a folder or not exist; got a file.", "en-fr", tmp_path, archive)
    folder.unlink()
    refused("must have 7 lines of three columns; got 600 of 600.", "en-fr", tmp_path, toy(packed(LINES), 7))
    refused("must have 3 lines of three columns; got 2 of 3.", "en-fr", tmp_path, toy(packed([*LINES[:2], "a\tb"]), 3))
    for content in (packed(LINES, member="toy-1/data/x.zip"), packed(LINES, file="x.txt")):
        refused("must hold toy-1/data/toy.zip with toy.txt in it; got ", "en-fr", tmp_path, toy(content))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_the_real_one_is_pinned() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", SDIST.sha256)
    assert {pair: source.count for pair, source in SOURCES.items()} == {"en-fr": 178_009, "en-es": 124_547}
