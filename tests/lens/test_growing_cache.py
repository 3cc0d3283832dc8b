"""Steps of a generation whose cache appends in place are recorded without copying keys, and never joined wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.layers.cache import Cache
from regard.lens.growing_cache import GrowingCache
from regard.lens.recorded_call import is_apart

WITHIN = 1e-6


def random(count: int, length: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, length, 4, generator=generator) for _ in range(count)]


class Attention(nn.Module):
    """Appends to a cache and attends to it."""

    def __init__(self, sdpa: bool = False) -> None:
        super().__init__()
        self.sdpa = sdpa

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache, **options: Any) -> Tensor:
        k, v = cache.append(k, v)
        causal = q.shape[-2] > 1
        if self.sdpa:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, **options)
        output: Tensor = regard.attend(q, k, v, is_causal=causal, causal_offset=k.shape[-2] - q.shape[-2], **options)
        return output


class Model(nn.Module):
    def __init__(self, sdpa: bool = False) -> None:
        super().__init__()
        self.first, self.second = Attention(sdpa), Attention(sdpa)


def weights(queries: list[Tensor], keys: list[Tensor], scale: float = 0.5) -> Tensor:
    """Return causal weights, with the last query at the last key."""
    q, k = torch.cat(queries, -2), torch.cat(keys, -2)
    scores = q @ k.mT * scale
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The result of each attempt to extend a recorded generation by the short way."""
    results: list[bool] = []
    extend = GrowingCache.extend

    def recorded(self: GrowingCache, *args: Any) -> bool:
        results.append(extend(self, *args))
        return results[-1]

    monkeypatch.setattr(GrowingCache, "extend", recorded)
    return results


@pytest.mark.parametrize("sdpa", [False, True])
@pytest.mark.parametrize("capacity", [64, 7])
@torch.no_grad()
def test_steps_are_joined_without_copies(sdpa: bool, capacity: int, counted: list[bool]) -> None:
    model, cache = Model(sdpa), Cache(capacity)
    steps = [random(3, 5, 0), *(random(3, 1, seed) for seed in range(1, 12))]
    with regard.watch(model) as seen:
        for q, k, v in steps:
            model.first(q, k, v, cache)
    assert seen.names == ["first"] and not seen.missed
    assert sum(counted) >= (10 if capacity == 64 else 8)  # the first one is general, and those after a reallocation
    expected = weights([q for q, _, _ in steps], [k for _, k, _ in steps])
    assert torch.allclose(seen[0].dense(), expected, atol=WITHIN)


@torch.no_grad()
def test_modules_that_share_a_cache_are_recorded_apart() -> None:
    model, cache = Model(), Cache()
    queries: dict[str, list[Tensor]] = {"first": [], "second": []}
    keys = []
    with regard.watch(model) as seen:
        for seed in range(6):
            (q, k, v, other) = random(4, 1, seed)
            keys.append(k)
            model.first(q, k, v, cache)
            model.second(other, k[..., :0, :], v[..., :0, :], cache)
            queries["first"].append(q)
            queries["second"].append(other)
    for name in ("first", "second"):
        m = torch.cat([m.dense() for call, m in seen.items() if call.startswith(name)][:1], -2)
        assert torch.allclose(m, weights(queries[name], keys)[..., : m.shape[-2], : m.shape[-1]], atol=WITHIN)
    assert not seen.missed


@torch.no_grad()
def test_another_option_begins_another_map() -> None:
    model, cache = Model(), Cache()
    steps = [random(3, 1, seed) for seed in range(8)]
    with regard.watch(model) as seen:
        for number, (q, k, v) in enumerate(steps):
            model.first(q, k, v, cache, scale=0.5 if number < 5 else 2.0)
    assert [m.shape[-2:] for m in seen] == [(5, 5), (3, 8)]
    full = weights([q for q, _, _ in steps], [k for _, k, _ in steps], 2.0)
    assert torch.allclose(seen[1].dense(), full[..., 5:, :], atol=WITHIN)


@torch.no_grad()
def test_keys_that_are_overwritten_are_copied_first() -> None:
    model, cache = Model(), Cache()
    steps = [random(3, 1, seed) for seed in range(6)]
    with regard.watch(model) as seen:
        for q, k, v in steps[:4]:
            model.first(q, k, v, cache)
        cache.truncate(2)
        for q, k, v in steps[4:]:
            model.first(q, k, v, cache)
    assert [m.shape[-2:] for m in seen] == [(4, 4), (2, 4)] and not seen.missed
    first, later = steps[:4], [*steps[:2], *steps[4:]]
    assert torch.allclose(seen[0].dense(), weights([q for q, _, _ in first], [k for _, k, _ in first]), atol=WITHIN)
    expected = weights([q for q, _, _ in later], [k for _, k, _ in later])[..., 2:, :]
    assert torch.allclose(seen[1].dense(), expected, atol=WITHIN)


@torch.no_grad()
def test_a_write_that_was_not_noticed_is_reported() -> None:
    model, cache = Model(), Cache()
    with regard.watch(model) as seen:
        for seed in range(4):
            model.first(*random(3, 1, seed), cache)
    cache.held[0].zero_()
    with pytest.raises(RuntimeError, match="overwritten in place"):
        seen[0].dense()


def test_views_are_apart_only_if_no_address_is_shared() -> None:
    base = torch.zeros(2, 9, 3, 4).transpose(1, 2)  # (2, 3, 9, 4)
    for start, end in ((0, 5), (2, 3), (4, 9)):
        for begin in range(9):
            written = base[..., begin : begin + 1, :]
            assert is_apart(base[..., start:end, :], written) == (not start <= begin < end)
    assert not is_apart(base[..., :5, :], base)
    assert not is_apart(base[:, :2, :5], base[:, 1:, 5:])  # cut along two dimensions: not decided, so it is copied
    assert not is_apart(torch.zeros(9).as_strided((3, 3), (1, 1)), torch.zeros(9).as_strided((3, 3), (1, 1), 3))
    assert is_apart(base[:1], base[1:]) and is_apart(base[1:], base[:1])
