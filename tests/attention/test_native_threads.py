"""The native kernels on two threads, which divide the keys of a head in the backward pass and sum their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard.attention import attend
from regard.attention.native import additive, backend, engine
from regard.attention.native.plan import Plan
from tests.attention.oracle import Problem
from tests.attention.test_attend import check, some

pytestmark = pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
HALF_PRECISION = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backend, "KEYS_PER_TASK", 37)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_a_head_is_divided_here() -> None:
    """Otherwise the tests below would not test this."""
    assert engine.module is not None
    for mask in (None, (0,)):
        assert Plan(2, 1, 1, 1.0, 0.0, mask, ()).key_parts(131, 2, backend.KEYS_PER_TASK) == 3
        assert Plan(2, 1, 1, 1.0, 0.0, mask, ()).key_parts(131, 2, additive.KEYS_PER_TASK) == 2


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},  # no query attends to some parts
    "causal, late, capped": {"is_causal": True, "causal_offset": 61, "softcap": 3.0},
    "window": {"window": (11, 7), "causal_offset": 40},
    "lengths": {"lengths": [5, 97]},
    "boolean": {"attn_mask": some(131, seed=4) > 0},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("queries", [1, 3, 5, 67])
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
def test_parts_of_a_head(isa: str, similarity: str, queries: int, options: str) -> None:
    check(shared(similarity, queries, OPTIONS[options]), ["native"], torch.float32)


@pytest.mark.parametrize("dtype", HALF_PRECISION, ids=str)
@pytest.mark.parametrize("queries", [3, 67])
def test_parts_of_a_head_in_half_precision(isa: str, queries: int, dtype: torch.dtype) -> None:
    for options in ("none", "causal, late, capped", "lengths"):
        check(shared("scaled_dot", queries, OPTIONS[options]), ["native"], dtype)


def shared(similarity: str, queries: int, options: dict[str, Any]) -> Problem:
    """Two heads and 131 keys for two threads."""
    q, k, v = some(2, queries, 13), some(2, 131, 13, seed=1), some(2, 131, 7, seed=2)
    parameters = {"w": some(13, seed=3)} if similarity == "additive" else {}
    return Problem(q, k, v, similarity, parameters, options)


@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
@pytest.mark.parametrize("queries", [1, 3, 67])
def test_grouped_heads(isa: str, queries: int, similarity: str) -> None:
    q, k, v = some(2, 6, queries, 5), some(2, 2, 131, 5, seed=1), some(2, 2, 131, 13, seed=2)
    parameters = {"w": some(5, seed=3)} if similarity == "additive" else {}
    options = {"enable_gqa": True, "is_causal": True, "causal_offset": [61, 7]}
    check(Problem(q, k, v, similarity, parameters, options), ["native"], torch.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_flushed_only_inside_kernels(isa: str, threads: int) -> None:
    """Kernels flush denormals to zero, and restore the setting of every thread afterwards."""
    assert engine.module is not None
    torch.set_num_threads(threads)
    tiny = torch.full((2, 200_000), 1e-40)  # large enough for both threads of the pool
    before = tiny * 0.5
    q = torch.tensor([[[1.0]], [[1.0]]]).expand(2, 7, 1)
    k = torch.tensor([0.0, -80.0]).reshape(1, 2, 1).expand(2, 2, 1)
    v = torch.tensor([0.0, 1e-5]).reshape(1, 2, 1).expand(2, 2, 1)  # e^-80 · 1e-5 is 1.8e-40
    assert not attend(q, k, v, similarity="dot", backend="native").any()
    assert torch.equal(tiny * 0.5, before) and bool((before > 0).all())
