"""Plain text in chunks: nothing is lost, and chunks have the same subwords as the whole text."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from regard.data import ByteSubwords, Characters, Corpus, Report, text_chunks
from regard.data.text_chunks import encode_chunks, part_of, read_chunks

TEXT = "".join(f"{'  ' * (n % 3)}line {n},\n{chr(10) * (n % 4)}月光 {n} 👩‍👧\n" for n in range(400))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK", 100)


def test_chunks_are_the_text(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    packed.write_bytes(gzip.compress(TEXT.encode()))
    report = Report(what="lines")
    chunks = list(read_chunks([plain, packed], report))
    assert "".join(chunks) == TEXT * 2 and len(chunks) > 100 and report.kept == 2 * TEXT.count("\n")
    assert max(map(len, chunks)) < 500


def test_chunks_have_the_subwords_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    subwords = ByteSubwords.train([TEXT], 400)
    corpus = Corpus.write_flat(tmp_path / "ids", encode_chunks(read_chunks([tmp_path / "text"]), subwords))
    assert corpus.ids[0].tolist() == subwords.encode(TEXT)
    assert corpus.ids[0].dtype == np.uint16 and int(corpus.ids[1].sum()) == len(TEXT)


@pytest.mark.parametrize("text", ["月" * 700, "a" * 1000, "é" * 511 + "\n" + "x"])
def test_lines_of_any_length_are_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(text_chunks, "LONGEST", 64)
    (tmp_path / "text").write_text(text)
    assert "".join(read_chunks([tmp_path / "text"], badly_encoded=0.0)) == text


def test_files_without_a_last_line_end_are_separated(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "two\n"), ("c", ""), ("d", "three")):
        (tmp_path / name).write_text(text)
    assert "".join(read_chunks([tmp_path / name for name in "abcdd"])) == "one\ntwo\nthree\nthree"


def test_parts_by_characters() -> None:
    chunks = ["ab", "", "cde", "f"]
    for cut in range(8):
        assert "".join(part_of(chunks, 0, cut)) == "abcdef"[:cut]
        assert "".join(part_of(chunks, cut)) == "abcdef"[cut:]


def test_characters_that_are_not_in_the_vocabulary_are_unknown(tmp_path: Path) -> None:
    letters = Characters.train(["ab\n"])
    ((ids, lengths), _) = next(encode_chunks(["a?b\n"], letters))
    assert letters.decode(ids) == "a⁇b\n" and lengths.tolist() == [4]


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match=r"plain: .*empty must hold some text; got 0 lines kept; left out: none"):
        list(read_chunks([tmp_path / "empty"]))
    (tmp_path / "latin").write_bytes("été\nà\nok\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"latin must be UTF-8; got 2 of 3 lines \(67%\) that are not: WINDOWS-1252"):
        list(read_chunks([tmp_path / "latin"], badly_encoded=0.01))
    report = Report(what="lines")
    assert list(read_chunks([tmp_path / "latin"], report)) == ["ok\n"]
    assert str(report) == "1 lines kept; left out: 2 badly encoded (lines 1, 2)"
