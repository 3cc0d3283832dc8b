"""The fused GELU compared with float64 on every instruction set, and refusals. Sum and norm: test_residual.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.native import engine, fused
from regard.attention.native.fused import gelu_

needs_module = pytest.mark.skipif(engine.module is None, reason=f"no native module: {engine.reason}")
SIZES = [(1, 1), (5, 3), (37, 16), (23, 19), (130, 96), (7, 131)]


def assert_exact(x: Tensor, y: Tensor) -> None:
    """Assert that y is gelu(x) within a few roundings, plus x²/2 roundings for e^(−x²/2), which ends at 1e-34."""
    wanted = 0.5 * x.double() * torch.special.erfc(-x.double() / math.sqrt(2))
    bound = torch.where(x.abs() < 1, 6, 10 + x.double().square()) * 2**-24 * wanted.abs() + 1e-33
    assert ((y.double() - wanted).abs() <= bound).all(), ((y.double() - wanted).abs() / bound).nan_to_num().max()


@needs_module
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_gelu(isa: str, rows: int, width: int) -> None:
    x, bias = 4 * torch.randn(rows, width), torch.randn(width)
    y = torch.full_like(x, torch.nan)
    assert gelu_(x, bias, y) is y
    assert_exact(x + bias, y)
    gelu_(x, bias, x)
    assert torch.equal(x, y)


@needs_module
def test_gelu_of_every_size(isa: str) -> None:
    """The left tail is as accurate as the middle, unlike with 1 + erf. NaN stays NaN."""
    x = torch.linspace(-12.4, 30, 100_003)
    assert_exact(x, gelu_(x[None], torch.zeros(len(x)), torch.empty(1, len(x)))[0])
    with pytest.raises(AssertionError):
        assert_exact(x, F.gelu(x))
    odd = torch.tensor([[-3e38, -50.0, 0.0, 50.0, 3e38, torch.inf, torch.nan]])
    assert gelu_(odd, torch.zeros(7), torch.empty(1, 7))[0, :6].tolist() == [0.0, 0.0, 0.0, 50.0, odd[0, 4], torch.inf]
    assert gelu_(odd, torch.zeros(7), torch.empty(1, 7))[0, 6].isnan()


@needs_module
def test_refusals() -> None:
    module = fused.kernels()
    with pytest.raises(TypeError, match="sizes must be a tuple of 2 items"):
        module.gelu((1,), 0, 0, 0, 1)
    with pytest.raises(ValueError, match="sizes must be a non-negative number of rows and a positive width"):
        module.gelu((1, 0), 0, 0, 0, 1)
    with pytest.raises(ValueError, match="the dropout threshold must be in 0 … 255"):
        module.add_norm((1, 1), 0, 0, 0, 0, 0, 1e-5, (1, 256), 0, 0, 0, 0, 1)
