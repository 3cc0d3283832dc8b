"""Masked batches: share and kind of masked tokens, and reproducibility."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data import Corpus
from regard.data.masked_batches import MaskedBatch, MaskedBatches
from regard.data.wordpiece import WordPiece

LONGEST = 40


@pytest.fixture(scope="module")
def words() -> WordPiece:
    return WordPiece.train(["lowest newest widest slowest lower newer wider slower low new wide slow"] * 9, 40)


@pytest.fixture(scope="module")
def corpus(words: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Thirty documents of ten passages of one to three sentences."""
    random = np.random.default_rng(5)
    ordinary = [id for id in range(len(words)) if id not in (words.pad, words.unk, words.cls, words.sep, words.mask)]
    rows = []
    for number in range(300):
        lengths = [int(size) for size in random.integers(1, 12, random.integers(1, 4))]
        ids = random.choice(ordinary, sum(lengths)).tolist()
        rows.append(([*ids, ordinary[0]], [number // 10, *lengths[:-1], lengths[-1] + 1]))  # two ids at least
    return Corpus.write(tmp_path_factory.mktemp("masking") / "corpus", rows)


def masked(corpus: Corpus, words: WordPiece, **options: object) -> MaskedBatches:
    return MaskedBatches(corpus, words, 400, **options)  # type: ignore[arg-type]


def real(batch: MaskedBatch) -> torch.Tensor:
    return batch.ids.masked_scatter(batch.chosen, batch.wanted)


def same(a: MaskedBatch, b: MaskedBatch) -> bool:
    return all(torch.equal(torch.as_tensor(x), torch.as_tensor(vars(b)[name])) for name, x in vars(a).items())


def test_the_passages_are_all_there_under_their_masks(corpus: Corpus, words: WordPiece) -> None:
    batches, seen = masked(corpus, words), []
    for indices, batch in zip(batches.plan(3), batches.epoch(3), strict=True):
        for index, ids, length in zip(indices, real(batch).tolist(), batch.lengths.tolist(), strict=True):
            assert ids[:length] == [words.cls, *corpus[int(index)][0].tolist(), words.sep]
            assert set(ids[length:]) <= {words.pad}
            seen.append(int(index))
        assert len(batch.other) == 0 and not batch.segments.any()
    assert sorted(seen) == list(range(len(corpus)))


def test_the_statistics_are_those_of_the_paper(corpus: Corpus, words: WordPiece) -> None:
    tokens = chosen = hidden = changed = 0
    batches = masked(corpus, words)
    for epoch in range(20):
        for batch in batches.epoch(epoch):
            tokens += int(batch.lengths.sum()) - 2 * len(batch)
            chosen += len(batch.wanted)
            shown = batch.ids[batch.chosen]
            hidden += int((shown == words.mask).sum())
            changed += int(((shown != words.mask) & (shown != batch.wanted)).sum())
            assert bool((batch.chosen.sum(1) >= 1).all()), "at least one in each passage"
            assert not batch.chosen[(batch.ids == words.cls) | (batch.ids == words.sep)].any()
    assert chosen / tokens == pytest.approx(0.15, abs=0.02)  # rounded in each passage
    assert hidden / chosen == pytest.approx(0.8, abs=0.01)
    assert changed / chosen == pytest.approx(0.1 * (1 - 1 / (len(words) - 5)), abs=0.01)  # some draw what was there


def test_whole_words_are_chosen_or_left(corpus: Corpus, words: WordPiece) -> None:
    tokens = chosen = split = 0
    for batch in masked(corpus, words, whole_words=True).epoch(0):
        for ids, marks, length in zip(real(batch).tolist(), batch.chosen.tolist(), batch.lengths.tolist(), strict=True):
            numbers = words.words(ids[1 : length - 1])
            by_word: dict[int, set[bool]] = {}
            for number, mark in zip(numbers, marks[1 : length - 1], strict=True):
                by_word.setdefault(number, set()).add(mark)
            assert all(len(result) == 1 for result in by_word.values())
            split += len(numbers) > len(by_word)
            tokens, chosen = tokens + len(numbers), chosen + sum(marks)
    assert split, "no word of several pieces: nothing was tested"
    assert 0.14 < chosen / tokens < 0.3


def test_masks_are_fresh_and_a_function_of_seed_epoch_and_number(corpus: Corpus, words: WordPiece) -> None:
    once, again = (list(masked(corpus, words, seed=1, pairs=True).epoch(2)) for _ in range(2))
    assert all(map(same, once, again))
    late = list(masked(corpus, words, seed=1, pairs=True).epoch(2, start=3))
    assert all(map(same, once[3:], late))
    for other in (masked(corpus, words, seed=1, pairs=True).epoch(1), masked(corpus, words, pairs=True).epoch(2)):
        assert not same(once[0], next(other))
    held = masked(corpus, words, shuffle=False)
    assert all(map(same, held.epoch(0), held.epoch(5)))


def test_the_same_passage_has_other_masks_in_every_epoch(words: WordPiece, tmp_path: Path) -> None:
    one = Corpus.write(tmp_path / "one", [(list(range(5, 25)), [0, 20])])
    batches = masked(one, words)
    assert len({tuple(next(batches.epoch(epoch)).chosen[0].tolist()) for epoch in range(9)}) > 6


def test_shares_of_a_batch_are_those_of_the_whole(corpus: Corpus, words: WordPiece) -> None:
    batches = masked(corpus, words, pairs=True)
    whole = next(batches.epoch(0))
    for rank in range(3):
        share = next(batches.epoch(0, rank=rank, world=3))
        assert torch.equal(share.ids, whole.ids[rank::3]) and torch.equal(share.other, whole.other[rank::3])
        assert torch.equal(real(share), real(whole)[rank::3]) and share.each == whole.each
    assert len(next(batches.epoch(0, rank=999, world=1000))) == 0
    with pytest.raises(ValueError, match=r"rank \(3\) must lie in 0 … world − 1; got a world of 3"):
        batches.epoch(0, rank=3, world=3)


def test_half_of_the_pairs_come_from_another_document(corpus: Corpus, words: WordPiece) -> None:
    batches, others, count = masked(corpus, words, pairs=True), 0, 0
    starts = (
        (passage, int(about[1:n].sum())) for passage in corpus for about in [passage[1]] for n in range(1, len(about))
    )
    tails = [(about[0], ids[start:].tolist()) for (ids, about), start in starts]
    for epoch in range(3):
        for indices, batch in zip(batches.plan(epoch), batches.epoch(epoch), strict=True):
            rows = zip(
                indices,
                real(batch).tolist(),
                batch.segments.tolist(),
                batch.lengths.tolist(),
                batch.other.tolist(),
                strict=True,
            )
            for index, ids, segments, length, other in rows:
                ids_here, about = corpus[int(index)]
                middle = ids.index(words.sep)
                assert ids[length - 1] == words.sep and ids[:length].count(words.sep) == 2
                assert segments == [0] * (middle + 1) + [1] * (length - middle - 1) + [0] * (len(ids) - length)
                first, second = ids[1:middle], ids[middle + 1 : length - 1]
                assert first and second and first == ids_here[: len(first)].tolist()
                assert len(about) == 2 or len(first) in np.cumsum(about[1:-1])
                if other:
                    assert any(tail[: len(second)] == second for number, tail in tails if number != about[0])
                else:
                    assert second == ids_here[len(first) :].tolist()
                assert length <= len(ids_here) + 3
                others, count = others + other, count + 1
    assert others / count == pytest.approx(0.5, abs=0.06)


def test_bad_settings_are_named(corpus: Corpus, words: WordPiece, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"share \(0.0\) must lie in \(0, 1\]"):
        masked(corpus, words, share=0.0)
    one = Corpus.write(tmp_path / "one", [([7, 8], [0, 2]), ([8, 9], [0, 2])])
    with pytest.raises(ValueError, match="pairs need a second document to take sentences from; got one"):
        masked(one, words, pairs=True)
