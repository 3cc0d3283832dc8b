"""Verses with links, from a tiny archive in the same format."""

import dataclasses
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from regard.data import bible
from regard.data.bible import ALIGNMENTS, ENGLISH, GREEK, WHEEL, prepare, read

SOURCE = "id\taltId\ttext\n" + "".join(
    f"n4000100{verse}00{word}\t-\t{text}\n"
    for verse, words in ((1, ["Βίβλος", "γενε\u0301σεως"]), (2, ['"υἱοῦ']), (3, ["καὶ"]))
    for word, text in enumerate(words, 1)
)
TARGET = (
    "id\tsource_verse\ttext\tskip_space_after\texclude\n"
    "40001001001\t40001001\tThe\t\t\n"
    "40001001002\t40001001\t,\t\ty\n"
    "40001001003\t40001001\tbook\t\t\n"
    "40001002001\t40001002\tson\t\t\n"
)
RECORDS = [
    {"source": ["n40001001001"], "target": ["40001001001", "40001001003", "40001001002"]},
    {"source": ["n40001001002", "n40001002001"], "target": ["40001001003"]},  # the second is of another verse
    {"source": ["n40001002001", "n40009009009"], "target": ["40001002001"]},  # a word that is not there
]


def packed(records: object = RECORDS) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr(GREEK, SOURCE)
        archive.writestr(ENGLISH, TARGET)
        archive.writestr(ALIGNMENTS, json.dumps({"records": records}))
    return output.getvalue()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An archive in place of the real one."""
    content = packed()
    output = dataclasses.replace(WHEEL, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    monkeypatch.setattr(bible, "WHEEL", output)
    monkeypatch.setattr(bible, "VERSES", 2)
    monkeypatch.setattr(bible, "LINKS", 4)
    path = tmp_path / "toy.whl"
    path.write_bytes(content)
    return path


def test_verses_have_their_words_and_links(toy: Path) -> None:
    first, second = read(toy)  # the third has no link
    assert first.greek == ["Βίβλος", "γενέσεως"]  # NFC
    assert first.english == ["The", "book"]  # no punctuation
    assert first.links == {(0, 0), (0, 1), (1, 1)}
    assert second.greek == ['"υἱοῦ'] and second.links == {(0, 0)}  # a quotation mark is no quoting


def test_files_are_written_twice(toy: Path, tmp_path: Path) -> None:
    for _ in range(2):
        folder = prepare(tmp_path / "out", toy)
    assert (folder / "verses.el").read_text("utf-8") == 'Βίβλος γενέσεως\n"υἱοῦ\n'
    assert (folder / "verses.en").read_text("utf-8") == "The book\nson\n"
    assert (folder / "links").read_text("utf-8") == "0-0 0-1 1-1\n0-0\n"
    assert "CC-BY 4.0" in (folder / "README").read_text("utf-8")


def test_another_archive_is_refused(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bible, "LINKS", 5)
    with pytest.raises(ValueError, match="2 verses and 5 links; got 2 and 4"):
        prepare(tmp_path / "out", toy)
    toy.write_bytes(packed([]))
    with pytest.raises(ValueError, match="sha256"):
        prepare(tmp_path / "out", toy)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_others_is_left_alone(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="Choose another out"):
        prepare(tmp_path / "out", toy)
    assert (tmp_path / "out/thesis.txt").read_text() == "mine"


def test_an_archive_without_the_texts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="must hold texts and links"):
        read(path)
