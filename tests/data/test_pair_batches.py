"""Batches: every pair once an epoch, within the limits, in a reproducible order."""

import re
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import BOS, EOS, PAD, Batches, Corpus
from regard.data import pair_batches as module

FIRST = 4


def corpus_of(folder: Path, lengths: list[tuple[int, int]]) -> Corpus:
    """Sequences of the given lengths; what is in them tells their place."""
    return Corpus.write(folder / "corpus", [([FIRST + n] * s, [FIRST + n] * t) for n, (s, t) in enumerate(lengths)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    random = np.random.default_rng(7)
    source = np.clip(random.normal(13, 5, 3000), 1, 60).astype(int)
    target = np.clip(source + random.normal(0, 2, 3000), 1, 70).astype(int)
    return corpus_of(tmp_path_factory.mktemp("batches"), list(zip(source.tolist(), target.tolist(), strict=True)))


lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 90), st.integers(1, 9), st.booleans(), st.integers(1, 3))
def test_every_pair_is_in_one_batch_that_keeps_the_bound(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[tuple[int, int]],
    tokens: int,
    pool: int,
    shuffle: bool,
    world: int,
) -> None:
    corpus = corpus_of(tmp_path_factory.mktemp("batches"), lengths)
    batches, seen = Batches(corpus, tokens, pool=pool, shuffle=shuffle), []
    for batch in batches.epoch(3):
        cells = max(batch.source.numel(), batch.target[:, 1:].numel())
        assert cells <= tokens or len(batch) == 1
        seen += batch.indices.tolist()
        for row, index in enumerate(batch.indices.tolist()):
            s, t = lengths[index]
            ids = [FIRST + index]
            assert batch.source[row].tolist() == ids * s + [EOS] + [PAD] * (batch.source.shape[1] - s - 1)
            assert batch.target[row].tolist() == [BOS] + ids * t + [EOS] + [PAD] * (batch.target.shape[1] - t - 2)
            assert (batch.source_lengths[row], batch.target_lengths[row]) == (s + 1, t + 1)
        assert batch.source.shape[1] == batch.source_lengths.max()
        assert batch.target.shape[1] == batch.target_lengths.max() + 1
        real = int(batch.source_lengths.sum() + batch.target_lengths.sum())
        shown = batch.source.numel() + batch.target[:, 1:].numel()
        assert batch.padding == pytest.approx(1 - real / shown) and batch.tokens == batch.target_lengths.sum()
    assert sorted(seen) == list(range(len(lengths)))
    shares = [
        list(Batches(corpus, tokens, pool=pool, shuffle=shuffle).epoch(3, rank=r, world=world)) for r in range(world)
    ]
    for number, indices in enumerate(batches.plan(3)):
        for rank in range(world):
            assert shares[rank][number].indices.tolist() == indices[rank::world].tolist()


def test_cutting_is_greedy() -> None:
    """The next pair would not have fitted."""
    lengths = np.sort(np.random.default_rng(0).integers(1, 40, (500, 2)), 0)
    ends = module._cut(lengths, 100)
    starts = [0, *ends[:-1]]
    for start, end in zip(starts, ends[:-1], strict=False):
        assert lengths[start : end + 1].max() * (end + 1 - start) > 100


def test_resuming_yields_the_remaining_batches(corpus: Corpus) -> None:
    whole = list(Batches(corpus, 500, seed=3).epoch(2))
    for start in (0, 1, len(whole) // 2, len(whole)):
        rest = list(Batches(corpus, 500, seed=3).epoch(2, start=start))
        assert len(rest) == len(whole) - start
        for a, b in zip(whole[start:], rest, strict=True):
            assert torch.equal(a.source, b.source) and torch.equal(a.target, b.target)


def test_the_order_is_a_function_of_seed_and_epoch(corpus: Corpus) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(Batches(corpus, 500, seed=seed).plan(epoch)).tolist()

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1, 2) for epoch in (0, 1, 2)}) == 9
    still = Batches(corpus, 500, shuffle=False)
    assert np.concatenate(still.plan(0)).tolist() == np.concatenate(still.plan(1)).tolist()


def test_the_order_is_the_same_everywhere(tmp_path: Path) -> None:
    """Written down once: another platform or version of numpy that gives another would break resuming."""
    batches = Batches(corpus_of(tmp_path, [(n % 5, n % 3) for n in range(12)]), 12, seed=5, pool=2)
    assert [indices.tolist() for indices in batches.plan(1)] == [[10, 11, 1], [9, 4], [2, 8], [3], [0, 5, 6, 7]]


def test_plan_is_a_sequence(corpus: Corpus) -> None:
    plan = Batches(corpus, 500).plan(0)
    assert plan[-1].tolist() == plan[len(plan) - 1].tolist()
    assert [p.tolist() for p in plan[2:4]] == [plan[2].tolist(), plan[3].tolist()]
    assert plan[0].dtype == np.int32 and len(list(plan)) == len(plan)
    with pytest.raises(IndexError):
        plan[len(plan)]


def test_there_is_little_padding(corpus: Corpus) -> None:
    def share(batches: Batches) -> float:
        cells = [(b.source.numel() + b.target[:, 1:].numel(), b.padding) for b in batches.epoch(0)]
        return sum(n * p for n, p in cells) / sum(n for n, _ in cells)

    assert share(Batches(corpus, 500)) < 0.08
    assert share(Batches(corpus, 500, pool=1)) > 0.2


def test_packed_batches_are_random(corpus: Corpus) -> None:
    """Without a pool, texts of any lengths come together, as many as fit when nothing is padded."""
    batches = Batches(corpus, 500, seed=2, pool=0)
    plan = batches.plan(1)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(corpus)))
    sides = [(corpus.lengths[indices] + 1).sum(0) for indices in plan]
    assert max(max(side) for side in sides) <= 500
    for indices, after, side in zip(plan[:-1], plan[1:], sides, strict=False):  # not one more would have fitted
        assert max(side + corpus.lengths[after[0]] + 1) > 500, len(indices)
    spread = np.mean([corpus.lengths[indices, 0].std() for indices in plan])
    assert spread > 0.8 * corpus.lengths[:, 0].std()
    assert [p.tolist() for p in plan] == [p.tolist() for p in Batches(corpus, 500, seed=2, pool=0).plan(1)]
    assert [p.tolist() for p in plan] != [p.tolist() for p in batches.plan(2)]


def test_a_text_too_long_is_packed_alone(tmp_path: Path) -> None:
    batches = Batches(corpus_of(tmp_path, [(9, 9), (1, 1), (99, 1), (1, 99), (1, 1)]), 20, pool=0)
    result = [sorted(indices.tolist()) for indices in batches.plan(0)]
    assert [2] in result and [3] in result and sorted(n for indices in result for n in indices) == list(range(5))


def test_turning_targets_by_turns_saves_padding(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = len(Batches(corpus, 500).plan(0))
    monkeypatch.setattr(module, "_by_length", lambda lengths: np.lexsort((lengths[:, 1], lengths[:, 0])))
    assert turned < len(Batches(corpus, 500).plan(0))


def test_lengths_are_accepted_in_any_order(corpus: Corpus) -> None:
    """Batches are shuffled: long ones are not kept for the end."""
    longest = [batch.source.shape[1] for batch in Batches(corpus, 500).epoch(0)]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def test_a_plan_takes_four_bytes_a_pair(tmp_path: Path) -> None:
    count = 400_000
    ones = np.ones(count, np.int64)
    side = (np.full(3 * count, 9, np.uint16), 3 * ones)
    corpus = Corpus.write_flat(tmp_path / "c", [(side, side)])
    tracemalloc.start()
    try:
        batches = Batches(corpus, 1000)
        plan = batches.plan(0)
        held, peak = tracemalloc.get_traced_memory()
        assert held < 5 * count and peak < 15 * count
        list(islice(batches.epoch(0, start=len(plan) // 2), 9))
        assert tracemalloc.get_traced_memory()[0] < 5 * count
    finally:
        tracemalloc.stop()


def test_to_a_device(corpus: Corpus) -> None:
    batch = next(Batches(corpus, 100).epoch(0)).to("meta")
    assert {batch.source.device.type, batch.indices.device.type} == {"meta"}


def test_ranks_without_a_pair_get_an_empty_batch(tmp_path: Path) -> None:
    batches = Batches(corpus_of(tmp_path, [(9, 9)]), 5)
    (empty,) = batches.epoch(0, rank=2, world=3)
    assert len(empty) == empty.tokens == 0 and empty.padding == 0.0
    assert empty.source.shape == (0, 1) and empty.target.shape == (0, 2)


def test_error_messages(corpus: Corpus) -> None:
    for name, least in (("tokens", 1), ("seed", 0), ("pool", 0)):
        with pytest.raises(ValueError, match=re.escape(f"batches: {name} ({least - 1}) must be at least {least}.")):
            Batches(corpus, **{"tokens": 9, name: least - 1})
    batches = Batches(corpus, 500)
    count = len(batches.plan(0))
    with pytest.raises(ValueError, match=re.escape("batches: epoch (-1) must be at least 0.")):
        batches.plan(-1)
    with pytest.raises(
        ValueError, match=re.escape(f"batches: start ({count + 1}) must lie in 0 … {count}, the batches of epoch 0.")
    ):
        batches.epoch(0, start=count + 1)
    for rank, world in ((2, 2), (-1, 1)):
        with pytest.raises(
            ValueError, match=re.escape(f"batches: rank ({rank}) must lie in 0 … world − 1; got a world of {world}.")
        ):
            batches.epoch(0, rank=rank, world=world)
