"""Plain text as documents, sentences and passages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.data import Corpus, Report
from regard.data.documents import encode_passages, read_documents
from regard.data.wordpiece import WordPiece

TEXT = "One. Two!\nThree\n\n\nFour five.\n"


@pytest.mark.parametrize(
    "documents,wanted",
    [
        ("blank", [["One.", "Two!", "Three"], ["Four five."]]),
        ("line", [["One.", "Two!"], ["Three"], ["Four five."]]),
        ("file", [["One.", "Two!", "Three", "Four five."]]),
    ],
)
def test_what_ends_a_document(tmp_path: Path, documents: str, wanted: list[list[str]]) -> None:
    (tmp_path / "a").write_text(TEXT)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"Six"))
    report = Report(what="documents")
    result = list(read_documents([tmp_path / "a", tmp_path / "b.gz"], documents, report))  # type: ignore[arg-type]
    assert result == [*wanted, ["Six"]] and report.kept == len(result)


def test_bad_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"fine\nb\xffd\n")
    report = Report(what="documents")
    assert list(read_documents(tmp_path / "a", "line", report)) == [["fine"]]
    assert str(report) == "1 documents kept; left out: 1 badly encoded (line 2)"
    (tmp_path / "a").write_bytes(b"\n \n")
    with pytest.raises(ValueError, match="must hold some text; got 0 documents kept"):
        list(read_documents(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"documents \('page'\) must be one of blank, line, file"):
        read_documents(tmp_path / "a", "page")  # type: ignore[arg-type]


def test_passages_hold_whole_sentences_while_they_fit(tmp_path: Path) -> None:
    words = WordPiece.train(["a b c d e f g h"] * 3, 30)
    documents = [["a b", "c d", "e"], ["f"], ["a b c d e f g h"], ["a b c d", "e f"]]
    report = Report(kept=4, what="documents")
    corpus = Corpus.write(tmp_path / "corpus", encode_passages(iter(documents), words, 5, report))
    result = [(words.decode(ids), about.tolist()) for ids, about in corpus]
    assert result == [
        ("a b c d e", [0, 2, 2, 1]),
        ("a b c d e", [2, 5]),  # a sentence that is too long is cut
        ("f g h", [2, 3]),
        ("a b c d", [3, 4]),
        ("e f", [3, 2]),
    ]
    assert report.left_out["too short"] == 1
    with pytest.raises(ValueError, match=r"longest \(1\) must be at least 2"):
        list(encode_passages(iter(documents), words, 1))
