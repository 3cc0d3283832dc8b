"""The corpus on disk: it returns the pairs that were written, and incomplete folders are refused."""

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import Characters, Corpus, Report, encode_pairs
from regard.data import corpus as module

ids = st.lists(st.integers(0, 70_000), max_size=7)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=20), st.integers(1, 5))
def test_a_corpus_returns_the_pairs_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[list[int], list[int]]], chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        corpus = Corpus.write(tmp_path_factory.mktemp("corpus") / "corpus", iter(pairs))
    assert len(corpus) == len(pairs)
    assert [(source.tolist(), target.tolist()) for source, target in corpus] == pairs
    assert corpus.lengths.dtype == np.int32
    assert corpus.lengths.tolist() == [[len(source), len(target)] for source, target in pairs]
    for side in (0, 1):
        largest = max((id for pair in pairs for id in pair[side]), default=0)
        assert corpus.ids[side].dtype == (np.uint16 if largest < 1 << 16 else np.uint32)


def test_indexing(tmp_path: Path) -> None:
    corpus = Corpus.write(tmp_path / "c", [([1], [2]), ([3, 4], []), ([5], [6])])
    assert corpus[-1][0].tolist() == [5] and corpus[np.int32(1)][0].tolist() == [3, 4]
    assert repr(corpus) == "Corpus(3 pairs, 4 + 2 ids)"
    with pytest.raises(IndexError):
        corpus[3]
    with pytest.raises(ValueError, match="read-only"):
        corpus[0][0][0] = 9


def test_arrays_are_written_unchanged(tmp_path: Path) -> None:
    def chunks() -> Iterator[tuple]:
        yield (np.array([1, 2, 3]), np.array([1, 2])), (np.array([4, 5]), np.array([2, 0]))
        yield (np.array([6], np.uint16), np.array([1])), (np.array([7], np.uint16), np.array([1]))

    corpus = Corpus.write_flat(tmp_path / "c", chunks())
    assert [(s.tolist(), t.tolist()) for s, t in corpus] == [([1], [4, 5]), ([2, 3], []), ([6], [7])]


def test_writing_and_reading_take_little_memory(tmp_path: Path) -> None:
    pairs = (([n % 1000] * 10, [n % 1000] * 10) for n in range(100_000))
    tracemalloc.start()
    try:
        corpus = Corpus.write(tmp_path / "c", pairs)
        assert corpus[99_999][0].tolist() == [999] * 10
        assert tracemalloc.get_traced_memory()[1] < 25 << 20
    finally:
        tracemalloc.stop()


def failing() -> Iterator[tuple[list[int], list[int]]]:
    yield [1], [2]
    raise RuntimeError("the disk is full, say")


def test_half_of_a_corpus_is_none_and_leaves_the_former(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        Corpus.write(tmp_path / "c", failing())
    assert list(tmp_path.iterdir()) == []
    former = Corpus.write(tmp_path / "c", [([1], [2])])
    with pytest.raises(RuntimeError):
        Corpus.write(tmp_path / "c", failing())
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert Corpus.open(tmp_path / "c")[0][0].tolist() == [1]
    later = Corpus.write(tmp_path / "c", [([3], [4])])
    assert later[0][0].tolist() == [3] and former[0][0].tolist() == [1]  # which is still open
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_an_incomplete_corpus_is_refused(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            Corpus.open(tmp_path / "c")

    about = tmp_path / "c" / "corpus.json"
    refused(f"corpus: {about} must exist; got no such file. Write the corpus again.")
    Corpus.write(tmp_path / "c", [([1, 2], [3])])
    good = about.read_text()
    for content in ("{", "[]", "{}", json.dumps({**json.loads(good), "format": 7})):
        about.write_text(content)
        refused(f"corpus: {about} must describe a corpus of format 1; got ")
    about.write_text(good)
    (tmp_path / "c" / "source.ids").write_bytes(b"123")
    refused(f"corpus: {tmp_path / 'c' / 'source.ids'} must have 4 bytes; got 3. Write the corpus again.")
    (tmp_path / "c" / "source.ids").unlink()
    refused(f"corpus: {tmp_path / 'c' / 'source.ids'} must exist")


def test_error_messages(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("corpus: pairs (0) must be at least 1; got an end without any.")):
        Corpus.write(tmp_path / "c", [])
    with pytest.raises(ValueError, match=re.escape("corpus: ids of target (-1 … 3) must lie in 0 … 4294967295")):
        Corpus.write(tmp_path / "c", [([1], [3, -1])])
    with pytest.raises(ValueError, match=re.escape("corpus: ids of source (4294967296 … 4294967296) must lie in")):
        Corpus.write(tmp_path / "c", [([1 << 32], [3])])
    with pytest.raises(ValueError, match=re.escape("corpus: lengths of source (sum 3) must add up to its ids; got 2.")):
        one = (np.array([1]), np.array([1]))
        Corpus.write_flat(tmp_path / "c", [((np.array([1, 2]), np.array([3])), one)])
    assert list(tmp_path.iterdir()) == []


def test_text_to_corpus(tmp_path: Path) -> None:
    letters, report = Characters.train(["abc"]), Report(kept=3)
    pairs = [("ab", "c"), ("abcabc", "a"), ("c", "ba")]
    corpus = Corpus.write(tmp_path / "c", encode_pairs(pairs, letters, letters, longest=5, report=report))
    assert [(letters.decode(s), letters.decode(t)) for s, t in corpus] == [("ab", "c"), ("c", "ba")]
    assert str(report) == "2 pairs kept; left out: 1 too long"
