"""What `auto` makes of the measured table: on tables made for the occasion, and the one that ships."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.attention import choose, engine, measured
from regard.attention.request import Request

TABLE = """# made up
dtype,mask,gradient,entries,queries,keys,width,native,torch,reference
float32,open,no,8,16,16,64,0.50,1.00,0.40
float32,open,no,8,1024,1024,64,1.00,0.80,
float32,open,yes,8,16,16,64,0.20,0.30,1.00
float32,causal,no,8,16,16,64,0.99,1.00,0.98
bfloat16,open,no,8,16,16,64,,1.00,0.40
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "lines", lambda: measured.parse(TABLE))
    forget_lines()
    monkeypatch.setattr(choose.native, "refusal", lambda request: None)  # as where it is built


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    forget_lines()


def forget_lines() -> None:
    measured.nearest.cache_clear()
    measured._nearest.cache_clear()


def chosen(queries: int = 16, keys: int = 0, grad: bool = False, dtype: Any = torch.float32, **options: Any) -> str:
    keys = keys or queries
    q, k, v = (torch.empty(2, 4, t, 64, dtype=dtype).requires_grad_(grad) for t in (queries, keys, keys))
    return choose.choose(Request.of(q, k, v, **options)).backend.name


def test_auto_takes_the_fastest_of_the_nearest_line(table: None) -> None:
    assert chosen(16) == "torch" and chosen(100) == "torch"
    assert chosen(200) == "native" and chosen(4096, 300) == "native"
    assert chosen(16, grad=True) == "reference"
    with torch.no_grad():
        assert chosen(16, grad=True) == "torch"


def test_speeds_that_are_alike_go_to_the_first_backend(table: None) -> None:
    assert chosen(is_causal=True) == "native"


def test_a_backend_that_refuses_is_passed_over(table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.native, "refusal", lambda request: "not today")
    assert chosen(1024) == "torch" and chosen(is_causal=True) == "torch"


def test_explicit_weights_stay_small(table: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LARGEST_EXPLICIT", 8 * 16 * 16 - 1)
    assert chosen(16, grad=True) == "torch"


def test_explicit_weights_are_for_heads_with_keys_of_their_own(table: None) -> None:
    q, k = torch.empty(2, 4, 16, 64, requires_grad=True), torch.empty(2, 2, 16, 64)
    assert choose.choose(Request.of(q, k, k, enable_gqa=True)).backend.name == "torch"


def test_half_precision_has_lines_of_its_own(table: None) -> None:
    assert chosen(dtype=torch.bfloat16) == chosen(dtype=torch.float16) == "torch"


@pytest.mark.parametrize(
    "options", [{"window": (3, 3)}, {"softcap": 2.0}, {"lengths": 3}, {"similarity": "cosine"}], ids=str
)
def test_where_the_table_does_not_speak_the_first_that_serves_does(table: None, options: dict[str, Any]) -> None:
    assert chosen(**options) == "native"


def test_the_reason_quotes_the_line(table: None) -> None:
    x = torch.empty(1, 8, 20, 64)
    assert choose.choose(Request.of(x, x, x)).why == (
        "the nearest measured call has 8 heads in all, 16 queries, 16 keys, 64 wide (forward, float32); "
        "speeds there as parts of the best: torch 1.00, native 0.50, reference 0.40"
    )


def test_a_length_that_grows_finds_its_line_kept(table: None) -> None:
    for keys in range(1, 2000):
        measured.nearest("float32", False, False, 8, 1, keys, 64)
    assert measured._nearest.cache_info().misses < 25


def test_nothing_to_attend_to_has_a_line_too(table: None) -> None:
    assert regard.attend(torch.ones(2, 0, 4), torch.ones(2, 3, 4), torch.ones(2, 3, 4)).shape == (2, 0, 4)
    assert regard.attend(torch.ones(0, 2, 4), torch.ones(0, 3, 4), torch.ones(0, 3, 4)).shape == (0, 2, 4)


@pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
def test_a_traced_call_asks_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(*_: Any) -> None:
        raise AssertionError("sizes may be symbols here")

    monkeypatch.setattr(choose, "nearest", unasked)
    x = torch.randn(1, 2, 4, 8)
    got = torch.compile(regard.attend, fullgraph=True, backend="aot_eager", dynamic=True)(x, x, x)
    torch.testing.assert_close(got, regard.attend(x, x, x, backend="reference"))


def test_the_table_that_ships() -> None:
    lines = measured.lines()
    kinds = {(line.causal, line.gradient) for line in lines if line.dtype == "float32"}
    assert len(lines) >= 60 and len(kinds) == 4
    for line in lines:
        speeds = dict(line.speeds)
        assert max(speeds.values()) == 1.0 and min(speeds.values()) >= 0 and set(speeds) <= set(measured.BACKENDS)
        assert all(size >= 1 for size in line.sizes) and line.dtype in measured.KINDS.values()
    assert len({(line.dtype, line.causal, line.gradient, line.sizes) for line in lines}) == len(lines)
