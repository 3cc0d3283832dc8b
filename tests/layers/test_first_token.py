"""Attention from one query of each sequence equals that of all queries, for every kind of attention."""

from functools import partial
from typing import Any

import pytest
import torch

import regard
from regard.layers import MultiHeadAttention, RotaryPosition
from regard.layers import first_token as module
from regard.layers.first_token import attend_first

B, T, W, H = 3, 7, 20, 5
LENGTHS = torch.tensor([7, 1, 4])


@pytest.mark.parametrize(
    ("options", "moves"),
    [
        ({}, True),
        ({"bias": False}, True),
        ({"position": RotaryPosition()}, False),
        ({"kv_heads": 1}, False),
        ({"similarity": "cosine"}, False),
        ({"similarity": "additive"}, False),
        ({"dropout": 0.5}, True),  # not in training
        ({"attend": partial(regard.attend, softcap=2.0)}, False),
    ],
)
def test_the_same_as_of_all(options: dict[str, Any], moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, of a batch and of packed sequences."""
    attention = MultiHeadAttention(W, H, **options).double().eval()
    for p in attention.parameters():
        torch.nn.init.normal_(p, std=0.5)
    calls: list[int] = []
    monkeypatch.setattr(module, "attend", lambda *a, **k: (calls.append(1), regard.attend(*a, **k))[1])
    monkeypatch.setattr(module, "_is_plain", partial(moved, module._is_plain))
    x = torch.randn(B, T, W, dtype=torch.float64, requires_grad=True)
    flat = torch.cat([x[i, :n] for i, n in enumerate(LENGTHS.tolist())])
    starts = LENGTHS.cumsum(0) - LENGTHS
    pairs = [
        (attend_first(attention, x[:, 0], x), attention(x[:, :1], x)[:, 0]),
        (attend_first(attention, flat[starts], flat, LENGTHS), attention(x, lengths=LENGTHS)[:, 0]),
    ]
    assert len(calls) == (2 if moves else 0)
    for result, expected in pairs:
        torch.testing.assert_close(result, expected)
        weights = torch.randn_like(result)
        slopes = [torch.autograd.grad((y * weights).sum(), [x, *attention.parameters()]) for y in (result, expected)]
        for a, b in zip(*slopes, strict=True):
            torch.testing.assert_close(a, b)


def moved(decide: Any, attention: MultiHeadAttention) -> bool:
    """Decide with the original operator, not with the one that counts its calls."""
    counting, module.attend = module.attend, regard.attend
    try:
        return bool(decide(attention))
    finally:
        module.attend = counting


def test_who_looks_at_keys_or_drops_weights_gets_them() -> None:
    attention, x, seen = MultiHeadAttention(W, H, dropout=0.5), torch.randn(B, T, W), []
    assert not module._is_plain(attention.train()) and module._is_plain(attention.eval())
    attention.key.register_forward_hook(lambda *_: seen.append(1))
    attend_first(attention, x[:, 0], x)
    assert seen == [1]


def test_watch_records_the_first_token() -> None:
    attention, x = MultiHeadAttention(W, H).eval(), torch.randn(B, T, W)
    with regard.watch(attention) as seen:
        attend_first(attention, x[:, 0], x)
    _, expected = attention(x[:, :1], x, return_map=True)
    torch.testing.assert_close(seen[0].dense(), expected.dense(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("missing", ["key", "value"])
def test_one_missing_bias_does_not_disable_the_others(missing: str) -> None:
    attention, x = MultiHeadAttention(W, H).double().eval(), torch.randn(B, T, W, dtype=torch.float64)
    for p in attention.parameters():
        torch.nn.init.normal_(p, std=0.5)
    getattr(attention, missing).bias = None
    torch.testing.assert_close(attend_first(attention, x[:, 0], x), attention(x[:, :1], x)[:, 0])
