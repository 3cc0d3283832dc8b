"""Dropout: probability, mean, gradient and random numbers."""

import re

import pytest
import torch
from torch import nn

from regard.layers import Dropout
from tests.attention.batched_gradients import assert_batched_gradients


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_share_and_scale(p: float) -> None:
    y = Dropout(p)(torch.ones(1000, 1009))
    rounded = round(p * 256) / 256
    assert abs((y == 0).double().mean() - rounded) < 0.002
    assert y.unique().tolist() == [0, pytest.approx(1 / (1 - rounded))]


def test_all_positions_and_bytes_are_dropped_equally_often() -> None:
    # each eighth byte would drop twice as often if the sign bit of the numbers drawn stayed 0
    y = Dropout(0.25)(torch.ones(100_000, 8))
    share = (y == 0).double().mean(0)
    assert ((share - 0.25).abs() < 0.01).all()


def test_gradient_is_that_of_the_mask() -> None:
    x = torch.randn(7, 13, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    (result,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(result, y.detach() / x.detach())


def test_generator_decides() -> None:
    x, drop = torch.randn(5, 7, 3), Dropout(0.5)
    state = torch.get_rng_state()
    first, second = drop(x), drop(x)
    torch.set_rng_state(state)
    assert torch.equal(drop(x), first) and not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (4, 1, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert y.shape == shape and y.dtype == dtype


def test_strided_input() -> None:
    x = torch.randn(6, 10).T
    y = Dropout(0.5)(x)
    torch.testing.assert_close(torch.where(y == 0, 0, x * 2), y)


def test_identity_outside_training_and_for_nothing() -> None:
    x = torch.randn(3)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x


def test_all_of_it() -> None:
    assert not Dropout(1.0)(torch.ones(9)).any()


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_share_out_of_range(p: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"dropout: p ({p}) must lie in [0, 1]")):
        Dropout(p)


def test_a_batch_of_gradients() -> None:
    x = torch.randn(5, 16, requires_grad=True)
    assert_batched_gradients(Dropout(0.5)(x), [x])


def test_traced_as_torchs_own() -> None:
    drop = torch.compile(nn.Sequential(Dropout(0.5)), backend="aot_eager", fullgraph=True)
    assert set(drop(torch.ones(1000)).unique().tolist()) == {0.0, 2.0}
