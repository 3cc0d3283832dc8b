"""The backend that `auto` selects: the native kernels if they support the request, and the exceptions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.attention import backends
from regard.attention.request import Request

CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (3, 3)},
    "softcap": {"softcap": 2.0},
    "lengths": {"lengths": 3},
    "cosine": {"similarity": "cosine"},
}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the kernels are available and support every request."""
    monkeypatch.setattr(backends.native, "refusal", lambda request: None)


def chosen(dtype: torch.dtype = torch.float32, grad: bool = False, tokens: int = 16, **options: Any) -> backends.Choice:
    q, k, v = (torch.empty(2, 4, tokens, 64, dtype=dtype, requires_grad=grad) for _ in range(3))
    return backends.choose(Request.of(q, k, v, **options))


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 64, 1024])
@pytest.mark.parametrize("call", CALLS)
def test_native_if_it_supports_the_request(
    built: None, monkeypatch: pytest.MonkeyPatch, call: str, tokens: int, grad: bool, amx: bool
) -> None:
    monkeypatch.setattr(backends, "_has_amx", lambda: amx)
    options = {**CALLS[call], **({"lengths": 1} if call == "lengths" else {})}
    assert chosen(grad=grad, tokens=tokens, **options).backend.name == "native"


def test_bfloat16_on_a_processor_with_amx(built: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_has_amx", lambda: True)
    choice = chosen(torch.bfloat16, tokens=64)
    assert choice.backend.name == "torch" and "AMX" in choice.why
    assert chosen(torch.bfloat16, tokens=64, is_causal=True).backend.name == "torch"
    assert chosen(torch.float16, tokens=64).backend.name == "native"
    assert chosen(torch.bfloat16, tokens=63).backend.name == "native"
    assert chosen(torch.bfloat16, tokens=64, grad=True).backend.name == "native"
    assert chosen(torch.bfloat16, tokens=64, softcap=2.0).backend.name == "native"  # SDPA has no soft cap
    assert chosen(torch.bfloat16, tokens=64, lengths=3).backend.name == "native"  # SDPA would need a dense mask
    one, keys = torch.empty(2, 4, 1, 64, dtype=torch.bfloat16), torch.empty(2, 4, 5000, 64, dtype=torch.bfloat16)
    assert backends.choose(Request.of(one, keys, keys)).backend.name == "native"
    with torch.no_grad():
        assert chosen(torch.bfloat16, tokens=64, grad=True).backend.name == "torch"
    monkeypatch.setattr(backends, "_has_amx", lambda: False)
    assert chosen(torch.bfloat16, tokens=64).backend.name == "native"


def test_without_the_kernels_sdpa_then_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.native, "refusal", lambda request: "not built")
    assert chosen().backend.name == "torch" and "native: not built" in chosen().why
    assert chosen(softcap=2.0).backend.name == "blocked"
    monkeypatch.setattr(backends, "LARGEST_MASK", 3)
    assert chosen(lengths=3).backend.name == "blocked"
