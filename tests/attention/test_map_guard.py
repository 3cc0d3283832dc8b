"""Maps raise instead of showing wrong weights if the tensors of the call were overwritten in place."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.attention import attention_map
from regard.attention.backends import BACKENDS
from regard.attention.sink import attend_with_sink
from regard.layers import Cache, MultiHeadAttention

VERBS: dict[str, Callable[[regard.AttentionMap], Any]] = {
    "a cell": lambda m: m[0, 0, 0, 0],
    "picked rows": lambda m: m[..., [0, 2], :],
    "dense": lambda m: m.dense(),
    "top": lambda m: m.top(2),
    "pool": lambda m: m.pool(2, 2),
    "entropy": lambda m: m.entropy(),
    "received": lambda m: m.received(),
    "product": lambda m: m @ torch.ones(6),
    "head": lambda m: m.at(0, 1),
    "bands": lambda m: m.bands,
}


def call(changed: str = "", **options: Any) -> tuple[dict[str, Tensor], regard.AttentionMap]:
    x = {name: torch.randn(2, 4, 6, 8) for name in ("query", "key", "value")}
    if changed == "attn_mask":
        x["attn_mask"] = torch.randn(6, 6)
    if changed == "similarity":
        x["w"] = torch.randn(8)
        options["similarity"] = regard.Additive(x["w"])
    tensors = {name: value for name, value in x.items() if name != "w"}
    return x, regard.attend(**tensors, **options, return_map=True)[1]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("changed", ["query", "key", "attn_mask", "similarity"])
def test_every_verb_raises_after_a_write(changed: str, verb: str) -> None:
    x, m = call(changed)
    head = m.at(0)
    (x["w"] if changed == "similarity" else x[changed]).mul_(3)
    for stale in (m, head) if verb in ("dense", "entropy") else (m,):
        with pytest.raises(RuntimeError, match=rf"map: {changed} \(.*\) must not change after the call"):
            VERBS[verb](stale)
    assert m.shape == (2, 4, 6, 6) and m.dtype == torch.float32 and "AttentionMap(2×4×6×6" in repr(m)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_raises_after_a_write(backend: str) -> None:
    x, m = call(backend=backend)
    x["value"].mul_(3)  # not part of the weights
    assert bool(m.dense().isfinite().all())
    x["key"][..., 0] = 1
    with pytest.raises(RuntimeError, match="overwritten in place"):
        m.dense()


def test_weights_of_copies_do_not_change() -> None:
    x, m = call(similarity="cosine")  # the map refers to unit vectors
    before, clone = m.dense(), copy.deepcopy(m)
    for tensor in x.values():
        tensor.zero_()
    assert torch.equal(m.dense(), before) and torch.equal(clone.dense(), before)
    x, m = call()
    clone, shared = copy.deepcopy(m), copy.copy(m)
    x["query"].zero_()
    assert bool(clone.dense().isfinite().all())
    with pytest.raises(RuntimeError, match="overwritten in place"):
        shared.dense()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickle.dumps])
def test_a_map_with_overwritten_tensors_cannot_be_copied(duplicate: Callable[[regard.AttentionMap], Any]) -> None:
    x, m = call()
    x["query"].mul_(3)
    with pytest.raises(RuntimeError, match="overwritten in place"):
        duplicate(m)


def test_packed_maps_and_maps_with_sinks_raise_after_a_write() -> None:
    q, k, v = torch.randn(3, 9, 4, 8)
    _, maps = regard.attend_packed(q, k, v, [3, 2, 4], return_maps=True)
    one, batch = maps[1], maps.padded()
    q.mul_(2)
    for access in (one.dense, maps.padded, lambda: maps[0].dense()):
        with pytest.raises(RuntimeError, match="overwritten in place"):
            access()
    assert bool(batch.dense().isfinite().all())  # padding copies
    q, k, v = torch.randn(3, 1, 4, 6, 8)
    _, m = attend_with_sink(q, k, v, torch.zeros(4), scale=None, softcap=None, is_causal=False, attn_mask=None)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="overwritten in place"):
        m.dense()


@torch.no_grad()
def test_maps_of_decoding_steps_stay_right_though_the_cache_grows_and_is_truncated() -> None:
    attention, cache = MultiHeadAttention(8, 2).eval(), Cache(capacity=16)
    x, others = torch.randn(2, 2, 5, 8)
    maps = [attention(x[:, i : i + 1], is_causal=True, cache=cache, return_map=True)[1] for i in range(5)]
    before = [m.dense() for m in maps]
    cache.truncate(2)
    for i in range(2, 5):
        attention(others[:, i : i + 1], is_causal=True, cache=cache)
    for m, weights in zip(maps, before, strict=True):
        assert torch.equal(m.dense(), weights)


def test_results_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, m = call()
    monkeypatch.setattr(attention_map, "DENSE_LIMIT", 2 * 4 * 6 * 3 * 12)
    assert m.top(3).values.shape == (2, 4, 6, 3)
    with pytest.raises(
        ValueError, match=r"map: count \(4\) must give a result of at most 1.7 KiB; 2×4×6×4 takes 2.2 KiB"
    ):
        m.top(4)
    with pytest.raises(ValueError, match=r"map: image \(20×20\) must give a result of at most"):
        m.pool(20, 20)
