"""Dropout, sum and norm compared with float64 on every instruction set, with first and second derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.native import engine, fused
from regard.attention.native.fused import gelu_, keep_mask
from regard.layers.dropout import LEVELS, Dropout
from regard.layers.residual import add_and_norm, add_norm, add_norm_
from tests.attention.batched_gradients import assert_batched_gradients

needs_module = pytest.mark.skipif(engine.module is None, reason=f"no native module: {engine.reason}")
SIZES = [(1, 1), (5, 3), (37, 16), (23, 19), (130, 96), (7, 131)]


def norm_of(width: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps=1e-5)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@needs_module
@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_sum_and_norm(isa: str, rows: int, width: int, p: float) -> None:
    """Values and gradients, of the sum and of its norm, against float64 with what the kernels dropped."""
    x, part = torch.randn(2, rows, width).unbind()
    x, part = (x + 3).requires_grad_(), part.requires_grad_()
    norm, dropout = norm_of(width), Dropout(p)
    torch.manual_seed(5)
    added, y = add_and_norm(x, part, dropout, norm)
    wide = [one.detach().double().requires_grad_() for one in (x, part, norm.weight, norm.bias)]
    keep = seen_drops(x, part, added, dropout)
    of_sum = wide[0] + wide[1] * keep
    of_y = F.layer_norm(of_sum, (width,), wide[2], wide[3], norm.eps)
    torch.testing.assert_close(added.double(), of_sum, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(y.double(), of_y, rtol=1e-4, atol=2e-5 if width > 1 else 1e-3)
    slopes = torch.randn(2, rows, width)
    result = torch.autograd.grad((added, y), (x, part, norm.weight, norm.bias), tuple(slopes))
    expected = torch.autograd.grad((of_sum, of_y), wide, tuple(slopes.double()))
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4 if width > 1 else 2e-1)
    torch.manual_seed(5)
    assert torch.equal(add_norm(x, part, dropout, norm), y)


def seen_drops(x: Tensor, part: Tensor, added: Tensor, dropout: Dropout) -> Tensor:
    """0 where the sum is x alone, the scale elsewhere."""
    if not dropout.dropped:
        return torch.ones(x.shape, dtype=torch.float64)
    scale = LEVELS / (LEVELS - dropout.dropped)
    return torch.where(added == x, 0.0, scale).double().detach()


@needs_module
def test_dropped_elements(isa: str) -> None:
    """Elements are dropped with the given probability, independently, and reproducibly for a seed on every machine."""
    rows, width = 400, 203
    zeros, ones, norm = torch.zeros(rows, width), torch.ones(rows, width), norm_of(width)

    def draw() -> Tensor:
        return add_and_norm(zeros.clone().requires_grad_(), ones, dropout, norm)[0] == 0

    dropout = Dropout(0.1)
    share = dropout.dropped / LEVELS
    torch.manual_seed(0)
    first, second = draw().double(), draw().double()
    spread = 4 * math.sqrt(share * (1 - share) / first.numel())
    assert abs(first.mean() - share) < spread and abs(second.mean() - share) < spread
    for one, other in ((first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])):
        assert abs((one * other).mean() - share**2) < 4 * math.sqrt(share**2 / one.numel())
    torch.manual_seed(0)
    assert torch.equal(draw().double(), first)
    torch.manual_seed(0)
    key = int(torch.empty((), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None))
    assert torch.equal(keep_mask((key, dropout.dropped), rows, width), first == 0)


@needs_module
def test_gradients_of_gradients() -> None:
    """Are those of the same computed by PyTorch, with what was dropped."""
    x, part = torch.randn(2, 4, 6, 10).unbind()
    x.requires_grad_()
    part.requires_grad_()
    norm = norm_of(10)
    for p in (0.0, 0.4):
        dropout, wants = Dropout(p), (x, part, norm.weight, norm.bias)
        added, y = add_and_norm(x, part, dropout, norm)
        keep = seen_drops(x, part, added, dropout).float()
        explicit = x + part * keep
        result, expected = (
            torch.autograd.grad((z.square() * s.sin()).sum(), wants, create_graph=True)
            for s, z in ((added, y), (explicit, norm(explicit)))
        )
        again = [torch.autograd.grad(sum(g.square().sum() for g in of), wants) for of in (result, expected)]
        for a, b in zip((*result, *again[0]), (*expected, *again[1]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@needs_module
def test_a_batch_of_gradients() -> None:
    x, part = torch.randn(2, 4, 6, 10).unbind()
    norm, inputs = norm_of(10), [x.requires_grad_(), part.requires_grad_()]
    added, y = add_and_norm(x, part, Dropout(0.3), norm)
    for out in (added, y, added + y):
        assert_batched_gradients(out, inputs)


@needs_module
def test_a_single_used_output_has_gradients() -> None:
    x, part, norm = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True), norm_of(8)
    added, _ = add_and_norm(x, part, Dropout(0.0), norm)
    assert torch.equal(torch.autograd.grad(added.sum(), x)[0], torch.ones(5, 8))
    _, y = add_and_norm(x, part, Dropout(0.0), norm)
    row = add_and_norm(x[0], part[0], Dropout(0.0), norm)[1]  # without rows
    again = torch.autograd.grad(row.sum(), (x, norm.weight), create_graph=True)
    for a, b in zip(again, torch.autograd.grad(norm(x[0] + part[0]).sum(), (x, norm.weight)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    slopes = torch.autograd.grad(y.square().sum(), (x, part))
    expected = torch.autograd.grad(norm(x + part).square().sum(), (x, part))
    for a, b in zip(slopes, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@needs_module
def test_inference_in_place() -> None:
    x, part, bias, norm = torch.randn(9, 12), torch.randn(9, 12), torch.randn(12), norm_of(12)
    expected = norm(x + part + bias)
    with torch.inference_mode():
        assert add_norm_(x, part, bias, norm) is part
    torch.testing.assert_close(part, expected)


def test_unsupported_inputs_are_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other dtypes and layouts, other norms, hooks, all dropped, a trace, no kernels: the same numbers."""

    def never(*_: object) -> None:
        raise AssertionError("the kernels were called")

    monkeypatch.setattr(fused, "kernels", never)
    x, part = torch.randn(6, 8), torch.randn(6, 8)
    norm, none = norm_of(8), Dropout(0.0)
    assert torch.equal(add_norm(x.double(), part.double(), none, norm.double()), norm(x.double() + part.double()))
    norm = norm.float()
    across = torch.randn(8, 6).T
    assert torch.equal(add_norm(across, part, none, norm), norm(across + part))
    assert torch.equal(add_norm(x[:0], part[:0], none, norm), x[:0])
    assert torch.equal(add_norm(x[:1], part, none, norm), norm(x[:1] + part))
    rms, plain = nn.RMSNorm(8), nn.LayerNorm(8, elementwise_affine=False)
    for other in (rms, plain, nn.LayerNorm(8, bias=False), nn.LayerNorm((6, 8)), nn.Identity()):
        assert torch.equal(add_norm(x, part, none, other), other(x + part))
    assert torch.equal(add_norm(x, part, Dropout(1.0), norm), norm(x))
    seen: list[int] = []
    norm.register_forward_hook(lambda *_: seen.append(1))
    added, y = add_and_norm(x, part, none, norm)
    assert seen == [1] and torch.equal(added, x + part) and torch.equal(y, norm(x + part))
    norm = norm_of(8)
    jacobian = torch.func.jacrev(lambda z: add_norm(z, part, none, norm))(x)
    assert jacobian.shape == (6, 8, 6, 8)
    monkeypatch.setattr(engine, "module", None)
    assert torch.equal(add_norm(x, part, none, norm), norm(x + part))
    assert torch.equal(gelu_(x, part[0], torch.empty_like(x)), F.gelu(x + part[0]))
    expected = norm(x + part + part[0])
    assert torch.equal(add_norm_(x, part.clone(), part[0], norm), expected)
