"""Caches: they return the appended keys and values, at a cost that does not grow with each step."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.native import engine
from regard.layers import Cache, DecoderCache
from regard.layers.cache import CAPACITY_STEP, BeamCache
from regard.models.beam_search import _without_gaps

B, H, D, DV = 2, 3, 5, 7


def pair(length: int, batch: int = B, **options) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, H, length, D, **options), torch.randn(batch, H, length, DV, **options)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(1, 9), st.booleans())
def test_a_cache_returns_the_appended_keys_and_values(steps: list[int], capacity: int, grad: bool) -> None:
    cache, keys, values = Cache(capacity), [], []
    with torch.set_grad_enabled(grad):
        for length in steps:
            key, value = pair(length)
            keys.append(key)
            values.append(value)
            held = cache.append(key, value)
    assert cache.length == sum(steps)
    for result, expected in zip(
        (*held, *cache.held), (*[torch.cat(keys, -2), torch.cat(values, -2)] * 2,), strict=True
    ):
        assert torch.equal(result, expected)


@torch.no_grad()
def test_appending_is_amortised() -> None:
    cache, indices = Cache(capacity=4), set()
    for _ in range(1000):
        key, _ = cache.append(*pair(1, batch=1))
        indices.add(key.data_ptr())
    assert len(indices) <= 9  # 4, 10, 22, … doublings


@torch.no_grad()
def test_views_of_earlier_steps_stay() -> None:
    cache = Cache(capacity=64)
    first, _ = cache.append(*pair(3))
    kept = first.clone()
    cache.append(*pair(2))
    cache.reorder(torch.tensor([1, 0]))
    cache.append(*pair(2))
    assert torch.equal(first, kept)


def test_gradients_flow_through_every_step() -> None:
    cache, input_pairs = Cache(), [pair(1, requires_grad=True) for _ in range(3)]
    total = torch.tensor(0.0)
    for key, value in input_pairs:
        held_key, held_value = cache.append(key, value)
        total = total + (held_key**2).sum() + (held_value**2).sum()
    total.backward()
    for step, (key, value) in enumerate(input_pairs):
        assert torch.allclose(key.grad, 2 * (3 - step) * key)
        assert torch.allclose(value.grad, 2 * (3 - step) * value)


def test_keys_that_a_backward_pass_reads_are_not_written_over() -> None:
    cache, query = Cache(), torch.randn(B, H, 1, D, requires_grad=True)
    key, _ = cache.append(*pair(1))  # without gradients themselves
    product = (query * key).sum()
    cache.append(*pair(1))
    product.backward()
    assert torch.equal(query.grad, key)


def test_modes_may_change_between_steps() -> None:
    cache, parts = Cache(), [pair(1) for _ in range(4)]
    modes = (torch.inference_mode(), torch.no_grad(), torch.enable_grad(), torch.no_grad())
    for mode, (key, value) in zip(modes, parts, strict=True):
        with mode:
            cache.append(key, value)
    assert torch.equal(cache.held[0], torch.cat([key for key, _ in parts], -2))


@pytest.mark.parametrize("grad", [False, True])
def test_reorder_takes_entries_and_may_change_the_batch(grad: bool) -> None:
    index = torch.tensor([1, 1, 0, 1])
    cache, (key, value), (later_key, later_value) = Cache(), pair(3), pair(1, batch=4)
    with torch.set_grad_enabled(grad):
        cache.append(key, value)
        cache.reorder(index)
        held_key, held_value = cache.append(later_key, later_value)
    assert torch.equal(held_key, torch.cat((key[index], later_key), -2))
    assert torch.equal(held_value, torch.cat((value[index], later_value), -2))


def test_once_computes_once() -> None:
    calls, (key, value), cache = [], pair(4), Cache()

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return key, value

    for _ in range(3):
        result = cache.once(compute, 4)
        assert torch.equal(result[0], key) and torch.equal(result[1], value)
    assert len(calls) == 1 and cache.complete and cache.length == 4


def test_decoder_cache_reorders_both() -> None:
    cache, own, cross = DecoderCache(), pair(2), pair(3)
    cache.attention.append(*own)
    cache.cross_attention.once(lambda: cross, 3)
    cache.reorder(torch.tensor([1, 0]))
    assert cache.length == 2
    assert torch.equal(cache.attention.held[0], own[0].flip(0))
    assert torch.equal(cache.cross_attention.held[1], cross[1].flip(0))
    DecoderCache().reorder(torch.tensor([0]))  # nothing held, nothing to do


def test_error_messages() -> None:
    with pytest.raises(ValueError, match=re.escape("cache: capacity (0) must be at least 1")):
        Cache(0)
    cache = Cache()
    cache.append(*pair(4))
    with pytest.raises(
        ValueError, match=re.escape("cache: key (3×3×1×5, float32) must continue the cached tensor (2×3×4×5, float32)")
    ):
        cache.append(*pair(1, batch=3))
    with pytest.raises(ValueError, match=re.escape("cache: key (2×3×1×5, float64) must continue")):
        cache.append(*pair(1, dtype=torch.float64))
    key, value = pair(1)
    with pytest.raises(ValueError, match=re.escape("cache: value (2×3×1×6, float32) must continue")):
        cache.append(key, value[..., :6])
    with pytest.raises(
        ValueError, match=re.escape("cache: index (2) must be integers, one per new batch entry; got float32")
    ):
        cache.reorder(torch.tensor([0.0, 1.0]))
    with pytest.raises(
        ValueError, match=re.escape("must be the one of the first step, of length 4 and of self-attention")
    ):
        cache.once(lambda: pair(4), 4)
    complete = Cache()
    complete.once(lambda: pair(4), 4)
    with pytest.raises(
        ValueError, match=re.escape("cache: key (length 6) must be the one of the first step, of length 4; got")
    ):
        complete.once(lambda: pair(6), 6)
    with pytest.raises(ValueError, match="cache: append must not follow once"):
        complete.append(*pair(1))
    with pytest.raises(ValueError, match=re.escape("cache: index (2) must be integers, one per new batch entry")):
        flat = Cache()
        flat.append(torch.randn(H, 2, D), torch.randn(H, 2, D))
        flat.reorder(torch.tensor([1, 0]))


def test_reordering_copies_used_positions_and_keeps_spare_capacity() -> None:
    cache, key = Cache(capacity=500), torch.randn(3, 2, 4, 5)
    with torch.no_grad():
        before, _ = cache.append(key, -key)
        cache.reorder(torch.tensor([2, 0, 0, 1]))
        assert cache._key.untyped_storage().nbytes() < 500 * 10 * 4  # not all of the room that was set aside
        after, value = cache.append(torch.ones(4, 2, 1, 5), torch.ones(4, 2, 1, 5))
        cache.reorder(torch.tensor([1]))
    assert torch.equal(before, key)  # what was given out before stays
    assert torch.equal(after[:, :, :4], key[[2, 0, 0, 1]]) and torch.equal(value[:, :, :4], -key[[2, 0, 0, 1]])
    assert torch.equal(cache.held[0], torch.cat((key[:1], torch.ones(1, 2, 1, 5)), 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("each", [1, 4])
def test_rows_go_on_where_they_are(each: int, dtype: torch.dtype) -> None:
    # what they hold is what copies of whole rows would hold, through any mix of parents while sentences leave
    random = torch.Generator().manual_seed(each)
    sentences = 23
    state = BeamCache(torch.arange(sentences), [torch.arange(sentences)[:, None] * 1.0])
    copies: list[torch.Tensor] = []
    for step in range(3 * CAPACITY_STEP):
        rows = sentences * each
        state.extend(torch.zeros(rows, 6, dtype=dtype), 2)
        state.target_kv[0][:, step] = torch.randn(rows, 2, 2, 3, generator=random, dtype=torch.float32).to(dtype)
        copies = [held.clone() for held in [*copies, state.target_kv[0][:, step]]]
        state.length += 1
        stay = torch.arange(sentences)
        if step % 5 == 4:
            stay = torch.tensor(
                _without_gaps(torch.randperm(sentences, generator=random)[: sentences - 1].sort()[0].tolist())
            )
        parents = torch.randint(0, each, (len(stay), each), generator=random)
        chosen = (stay[:, None] * each + parents).flatten()
        state.reorder(chosen, None if len(stay) == sentences else stay)
        copies, sentences = [held[chosen] for held in copies], len(stay)
        assert torch.equal(state.target_kv[0][:, : step + 1], torch.stack(copies, 1))
        assert torch.equal(state.source_kv[0][:, 0].long(), state.lengths)


def test_only_rows_that_differ_are_copied() -> None:
    if engine.module is None:
        pytest.skip(f"native: {engine.reason}")
    state = BeamCache(torch.tensor([5, 5]), [torch.zeros(2, 5, 2, 1, 1)])
    for _ in range(3):
        state.extend(torch.zeros(4, 1), 1)
        state.target_kv[0][:, state.length] = torch.arange(4.0).view(4, 1, 1, 1)
        state.length += 1
    index = state.target_kv[0].data_ptr()
    state.reorder(torch.tensor([1, 1, 2, 3]))
    assert state.target_kv[0].data_ptr() == index and state.target_kv[0][0, :3, 0].flatten().tolist() == [1, 1, 1]
    state.target_kv[0][0, 0] = 9  # both rows of the first sentence hold the same from here on: nothing is to be copied
    state.reorder(torch.tensor([1, 0, 3, 2]))
    assert state.target_kv[0][:, 0, 0].flatten().tolist() == [9, 1, 3, 2]


@pytest.mark.parametrize("grad", [False, True])
def test_entries_of_different_lengths_append_to_their_own_end(grad: bool) -> None:
    keys, values = torch.randn(2, 3, 2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind()  # (3, 2, 5, 4) each
    lengths = torch.tensor([5, 2, 3])
    new = torch.randn(2, 3, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.set_grad_enabled(grad):
        cache = Cache(capacity=6)
        cache.append(keys, values)
        cache.truncate(lengths)
        assert cache.length == 5 and torch.equal(torch.as_tensor(cache.start), lengths)
        cache.append(new[0][..., :1, :], new[1][..., :1, :])
        held = cache.append(new[0][..., 1:, :], new[1][..., 1:, :])  # several at once, beyond the capacity
    assert cache.length == 9 and torch.equal(torch.as_tensor(cache.start), lengths + 4)
    for row, length in enumerate(lengths.tolist()):
        for side, (stored, old) in enumerate(zip(held, (keys, values), strict=True)):
            assert torch.equal(stored[row, :, :length], old[row, :, :length])
            assert torch.equal(stored[row, :, length : length + 4], new[side, row])
    with torch.set_grad_enabled(grad):
        cache.reorder(torch.tensor([2, 0]))
        assert torch.equal(torch.as_tensor(cache.start), torch.tensor([7, 9]))
        cache.reorder(torch.tensor([0]))
    assert cache.start == cache.length == 7  # one length again


def test_positions_after_truncate_are_overwritten() -> None:
    first, second = torch.arange(5.0).view(1, 1, 5, 1), torch.full((1, 1, 1, 1), 9.0)
    with torch.no_grad():
        cache = Cache()
        cache.append(first, first)
        cache.truncate(3)
        key, _ = cache.append(second, second)
    assert key.flatten().tolist() == [0, 1, 2, 9]
    cache.truncate(0)
    assert cache.length == 0


def test_impossible_lengths_are_refused() -> None:
    cache, x = Cache(), torch.zeros(2, 1, 3, 4)
    cache.append(x, x)
    for lengths, shown in ((4, "4"), (-1, "-1"), (torch.tensor([3, 4]), r"\[3, 4\]")):
        with pytest.raises(ValueError, match=rf"lengths \({shown}\) must lie in 0…3, the cached positions"):
            cache.truncate(lengths)
    cache.truncate(torch.tensor([3, 1]))
    with pytest.raises(ValueError, match=r"lengths \(2\) must lie in 0…\[3, 1\]"):
        cache.truncate(2)
    cross = Cache()
    cross.once(lambda: (x, x), 3)
    with pytest.raises(ValueError, match="got the cache of a cross-attention"):
        cross.truncate(1)
