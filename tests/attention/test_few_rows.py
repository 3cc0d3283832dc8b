"""Calls of decoding steps compared with float64 on every instruction set, and with their PyTorch forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.attention.native import engine, few_rows
from regard.attention.native.few_rows import (
    EPILOGUES,
    MOST_ROWS,
    Epilogue,
    Rotation,
    RowNorm,
    bind_attention,
    bind_linear,
    bind_norm,
    bind_rotate_append,
)

SIZES = [(1, 1, 1), (1, 576, 37), (2, 67, 13), (3, 19, 331), (5, 64, 64), (7, 131, 5), (8, 96, 40), (11, 17, 29)]
needs_kernels = pytest.mark.skipif(engine.module is None, reason="there are no native kernels here")


@pytest.fixture(params=["kernels", "torch"])
def way(request: pytest.FixtureRequest, isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with the kernels of each instruction set, and with PyTorch operators."""
    if request.param == "torch":
        monkeypatch.setattr(few_rows, "served", lambda *tensors: False)
    return str(request.param)


def norm_of(width: int, centered: bool) -> RowNorm:
    return RowNorm(torch.randn(width), torch.randn(width) if centered else None, 1e-5, centered)


def exact_norm(norm: RowNorm, x: Tensor) -> Tensor:
    x = x.double()
    x = x - x.mean(-1, keepdim=True) if norm.centered else x
    y = x / (x.square().mean(-1, keepdim=True) + norm.epsilon).sqrt() * norm.gain.double()
    return y if norm.shift is None else y + norm.shift.double()


@pytest.mark.parametrize(("rows", "width", "out"), SIZES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("biased", [False, True])
def test_products(way: str, rows: int, width: int, out: int, epilogue: Epilogue, biased: bool) -> None:
    whole = 2 * out if epilogue == "gate" else out
    x, weight, y = torch.randn(rows, width), torch.randn(whole, width), torch.randn(rows, out)
    bias, norm, before = torch.randn(whole) if biased else None, norm_of(width, centered=biased), y.double()
    wanted = exact_norm(norm, x) @ weight.double().T + (0 if bias is None else bias.double())
    if epilogue == "gate":
        wanted = F.silu(wanted[:, :out]) * wanted[:, out:]
    elif epilogue == "add":
        wanted = before + wanted
    call = bind_linear(x, weight, bias, y, norm=norm, epilogue=epilogue)
    call()
    scale = 1 + wanted.abs().max()
    assert (y.double() - wanted).abs().max() / scale < 1e-5
    if epilogue != "add" and width > 1:  # a layer norm of one number is constant
        kept = y.clone()
        call()  # a call may be repeated, and reads its tensors again
        assert torch.equal(y, kept)
        x.neg_()
        call()
        assert not torch.equal(y, kept)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 8, MOST_ROWS])
def test_results_do_not_depend_on_the_number_of_threads(isa: str, rows: int) -> None:
    x, weight, results = torch.randn(rows, 67), torch.randn(1031, 67), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = torch.empty(rows, 1031)
        bind_linear(x, weight, None, y)()
        results.append(y)
    assert all(torch.equal(y, results[0]) for y in results)


def test_large_gates_neither_overflow_nor_lose_nan(way: str) -> None:
    weight = torch.ones(2, 1)  # gate and up are both x
    for number in (-1e4, -89.0, -88.0, 88.0, 1e4, torch.nan):
        x, y = torch.tensor([[number]]), torch.empty(1, 1)
        bind_linear(x, weight, None, y, epilogue="gate")()
        wanted = F.silu(x.double()) * x.double()
        torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 16), (2, 576), (67, 19)])
def test_norms(way: str, rows: int, width: int, centered: bool) -> None:
    x, norm = 3 * torch.randn(rows, width) + 1, norm_of(width, centered)
    wanted, y = exact_norm(norm, x), torch.empty(rows, width)
    bind_norm(x, norm, y)()
    torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-4)
    bind_norm(x, norm, x)()
    assert torch.equal(x, y)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(1, 2), (3, 64), (5, 38), (1, 18)])
def test_rotation_and_caches(way: str, tokens: int, width: int, rotated: bool) -> None:
    texts, heads, kv_heads, capacity = 3, 4, 2, 11
    first = torch.tensor([0, 4, 6])
    angle = torch.rand(capacity, width // 2, dtype=torch.float64) * 7
    rotation = Rotation(angle.cos().float(), angle.sin().float()) if rotated else None
    qkv = torch.randn(texts, tokens, heads + 2 * kv_heads, width)
    caches = torch.full((texts, kv_heads, capacity, width), 7.0), torch.full((texts, kv_heads, capacity, width), 7.0)
    wanted = qkv.double()
    for text, token in ((text, token) for text in range(texts) for token in range(tokens if rotated else 0)):
        turn = torch.polar(torch.ones(width // 2, dtype=torch.float64), angle[int(first[text]) + token])
        pairs = torch.complex(*wanted[text, token, : heads + kv_heads].tensor_split(2, -1)) * turn
        wanted[text, token, : heads + kv_heads] = torch.cat((pairs.real, pairs.imag), -1)
    bind_rotate_append(qkv, heads, rotation, first, caches)()
    torch.testing.assert_close(qkv.double(), wanted, rtol=1e-5, atol=1e-5)
    for cache, new in zip(caches, qkv[:, :, heads:].tensor_split(2, 2), strict=True):
        for text in range(texts):
            start = int(first[text])
            assert torch.equal(cache[text, :, start : start + tokens], new[text].transpose(0, 1))
            assert (cache[text, :, :start] == 7).all() and (cache[text, :, start + tokens :] == 7).all()


@needs_kernels
@pytest.mark.parametrize("left", [None, 4])
@pytest.mark.parametrize("ragged", [False, True])
def test_attention_has_the_bits_of_attend(isa: str, ragged: bool, left: int | None) -> None:
    q, context = torch.randn(3, 6, 1, 19), torch.empty(3, 6, 1, 19)
    key, value = torch.randn(2, 3, 2, 40, 19)
    key[:, :, 23:], value[:, :, 23:] = torch.nan, torch.nan  # not written yet
    lengths = torch.tensor([22, 5, 13]) if ragged else torch.full((3,), 22)
    masked = ragged or left is not None
    call = bind_attention(q, key, value, context, offsets=lengths if masked else None, left=left)
    assert call is not None and call(23)
    window = None if left is None else (left, 0)
    keys, values = key[:, :, :23], value[:, :, :23]
    options = {"is_causal": ragged, "causal_offset": lengths, "window": window, "enable_gqa": True}
    assert torch.equal(context, regard.attend(q, keys, values, **options))
    weights = q.double() @ keys.double().repeat_interleave(3, 1).mT / math.sqrt(19)
    distance = lengths[:, None, None, None] - torch.arange(23)
    hidden = (distance < 0) | (distance > (99 if left is None else left))
    wanted = weights.masked_fill(hidden, -torch.inf).softmax(-1) @ values.double().repeat_interleave(3, 1)
    torch.testing.assert_close(context.double(), wanted, rtol=1e-5, atol=1e-6)


@needs_kernels
def test_attention_reports_numbers_that_are_not_finite() -> None:
    q, context, value = torch.randn(1, 2, 1, 8), torch.empty(1, 2, 1, 8), torch.randn(1, 2, 5, 8)
    value[0, 0, 1] = torch.inf
    call = bind_attention(q, torch.randn(1, 2, 5, 8), value, context, offsets=None, left=None)
    assert call is not None and not call(3) and call(1)


def test_tensors_that_the_kernels_do_not_serve_use_torch() -> None:
    x, weight, y = (torch.randn(size, dtype=torch.float64) for size in ((3, 7), (5, 7), (3, 5)))
    bind_linear(x, weight, None, y)()
    torch.testing.assert_close(y, x @ weight.T)
    x, weight, y = torch.randn(MOST_ROWS + 1, 7), torch.randn(5, 7), torch.empty(MOST_ROWS + 1, 5)
    bind_linear(x, weight, None, y)()
    torch.testing.assert_close(y, x @ weight.T, rtol=1e-5, atol=1e-5)
    caches = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    q = torch.zeros(1, 2, 1, 8, dtype=torch.float64)
    assert bind_attention(q, caches, caches, q, offsets=None, left=None) is None


@needs_kernels
def test_bindings_refuse_impossible_sizes() -> None:
    module = engine.module
    assert module is not None
    with pytest.raises(ValueError, match="rows, in and out must be at least 1"):
        module.few_rows((1, 0, 3), None, 0, 0, 0, 0, 0, 1)
    with pytest.raises(ValueError, match="epilogue must be 0"):
        module.few_rows((1, 2, 3), None, 0, 0, 0, 0, 3, 1)
    with pytest.raises(ValueError, match="width must be even"):
        module.rotate_append((1, 1, 2, 1, 3), 0, 8, 8, 0, (0, 0, 0, 0), 1)
    with pytest.raises(ValueError, match="rows and width must be at least 1"):
        module.row_norm((1, 0), (0, 0, 0, 0.0, 0, 0), 1)
