"""Layers on packed sequences give the same results as on each sequence alone."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data import pack
from regard.layers import (
    Cache,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RotaryPosition,
    SinusoidalPosition,
)

LENGTHS, KEY_LENGTHS, WIDTH, HEADS = [5, 1, 8, 3], [2, 9, 1, 4], 24, 4

ATTENTIONS: dict[str, Callable[[], MultiHeadAttention]] = {
    "plain": lambda: MultiHeadAttention(WIDTH, HEADS),
    "grouped": lambda: MultiHeadAttention(WIDTH, HEADS, kv_heads=2, bias=False),
    "rotary": lambda: MultiHeadAttention(WIDTH, HEADS, position=RotaryPosition()),
    # rotary scores know distances only: this one tells whether a place is that in the sequence
    "sinusoidal": lambda: MultiHeadAttention(WIDTH, HEADS, position=SinusoidalPosition(WIDTH // HEADS)),
    "additive": lambda: MultiHeadAttention(WIDTH, HEADS, similarity="additive"),
    "bilinear": lambda: MultiHeadAttention(WIDTH, HEADS, similarity="bilinear"),
    "window": lambda: MultiHeadAttention(WIDTH, HEADS, attend=partial(regard.attend, window=(2, 1), softcap=5.0)),
}


def rand(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def compare(module: nn.Module, result: Tensor, expected: Tensor) -> None:
    """Compare values and the gradients of all parameters."""
    close = {"rtol": 1e-8, "atol": 1e-9} if result.dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(result, expected, **close)
    grad, parameters = torch.randn_like(expected), list(module.parameters())
    for got, true in zip(
        torch.autograd.grad(result, parameters, grad), torch.autograd.grad(expected, parameters, grad), strict=True
    ):
        torch.testing.assert_close(got, true, rtol=close["rtol"], atol=close["atol"] * max(1, float(true.abs().max())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_self_attention(name: str, is_causal: bool, dtype: torch.dtype) -> None:
    attention, x = ATTENTIONS[name]().to(dtype), rand(sum(LENGTHS), WIDTH, dtype=dtype)
    result, maps = attention(x, packed=torch.tensor(LENGTHS), is_causal=is_causal, return_map=True)
    alone = [attention(one, is_causal=is_causal, return_map=True) for one in x.split(LENGTHS)]
    compare(attention, result, torch.cat([output for output, _ in alone]))
    for m, (_, expected) in zip(maps, alone, strict=True):
        torch.testing.assert_close(m.dense(), expected.dense(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_cross_attention(name: str) -> None:
    attention = ATTENTIONS[name]().double()
    x, key = rand(sum(LENGTHS), WIDTH), rand(sum(KEY_LENGTHS), WIDTH)
    value = rand(sum(KEY_LENGTHS), WIDTH)
    result = attention(x, key, value, packed=(LENGTHS, KEY_LENGTHS))
    parts = zip(x.split(LENGTHS), key.split(KEY_LENGTHS), value.split(KEY_LENGTHS), strict=True)
    compare(attention, result, torch.cat([attention(*one) for one in parts]))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_encoder_block(norm_first: bool, is_causal: bool) -> None:
    block = EncoderBlock(ATTENTIONS["rotary"](), FeedForward(WIDTH, 40), norm_first=norm_first).double()
    padded = rand(len(LENGTHS), max(LENGTHS), WIDTH)
    result, maps = block(pack(padded, LENGTHS).values, packed=LENGTHS, is_causal=is_causal, return_map=True)
    compare(block, result, pack(block(padded, lengths=LENGTHS, is_causal=is_causal), LENGTHS).values)
    assert [m.shape for m in maps] == [(HEADS, n, n) for n in LENGTHS]


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_block(norm_first: bool) -> None:
    block = DecoderBlock(
        ATTENTIONS["rotary"](), ATTENTIONS["plain"](), FeedForward(WIDTH, 40), norm_first=norm_first
    ).double()
    padded, memory = rand(len(LENGTHS), max(LENGTHS), WIDTH), rand(len(LENGTHS), max(KEY_LENGTHS), WIDTH)
    x, states = pack(padded, LENGTHS).values, pack(memory, KEY_LENGTHS).values
    result, maps = block(x, states, packed=(LENGTHS, KEY_LENGTHS), return_maps=True)
    compare(block, result, pack(block(padded, memory, memory_lengths=KEY_LENGTHS), LENGTHS).values)
    assert [m.shape for m in maps.attention] == [(HEADS, n, n) for n in LENGTHS]
    assert [m.shape for m in maps.cross_attention] == [(HEADS, n, k) for n, k in zip(LENGTHS, KEY_LENGTHS, strict=True)]


def test_positions_are_applied_as_in_a_batch() -> None:
    rotary, x = RotaryPosition(), rand(7, 3, 1, 8)
    at = torch.tensor([4, 0, 1, 2, 9, 0, 3])
    expected = torch.stack([rotary(one, int(n)) for one, n in zip(x, at, strict=True)])
    assert torch.equal(rotary(x, at), expected)
    assert torch.equal(rotary(x, at - 4), torch.stack([rotary(one, int(n)) for one, n in zip(x, at - 4, strict=True)]))


def plain(*options: Any, **named: Any) -> Any:
    return regard.attend(*options, **named)


WRONG: list[tuple[Callable[[Tensor], Any], str]] = [
    (
        lambda x: MultiHeadAttention(WIDTH, HEADS)(x, packed=LENGTHS, lengths=LENGTHS),
        "multihead: lengths must be None if sequences are packed; got list. Pass a padded batch with lengths.",
    ),
    (lambda x: MultiHeadAttention(WIDTH, HEADS)(x, packed=LENGTHS, cache=Cache()), "multihead: cache must be None"),
    (
        lambda x: MultiHeadAttention(WIDTH, HEADS)(x, packed=LENGTHS, attn_mask=torch.ones(17, 17, dtype=torch.bool)),
        "multihead: attn_mask must be None",
    ),
    (
        lambda x: MultiHeadAttention(WIDTH, HEADS)(x, x, packed=LENGTHS),
        "multihead: packed must be (lengths, lengths of the keys) in cross-attention; got list.",
    ),
    (
        lambda x: MultiHeadAttention(WIDTH, HEADS, attend=plain)(x, packed=LENGTHS),
        "multihead: attend (plain) must be regard.attend, with or without options, if sequences are packed.",
    ),
    (
        lambda x: MultiHeadAttention(WIDTH, HEADS, attend=partial(regard.attend, causal_offset=2))(x, packed=LENGTHS),
        "multihead: attend may have scale, weighting, softcap, window, backend bound if sequences are packed; got "
        "causal_offset.",
    ),
    (
        lambda x: MultiHeadAttention(WIDTH, HEADS)(x, packed=[5, 5]),
        "attend_packed: lengths must be at least 0 and add up to the number of queries (17",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:45] for _, message in WRONG])
def test_wrong_calls_say_why(call: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call(rand(sum(LENGTHS), WIDTH, dtype=torch.float32))
