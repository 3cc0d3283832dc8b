"""Feed-forward layers against their equations."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.layers import FeedForward, GatedFeedForward

B, T, W, HIDDEN = 2, 3, 5, 7


def x(**options) -> torch.Tensor:
    return torch.randn(B, T, W, dtype=torch.float64, **options)


@pytest.mark.parametrize("activation", [F.relu, F.gelu, nn.Tanh()])
@pytest.mark.parametrize("bias", [True, False])
def test_feedforward_is_its_equation(activation, bias: bool) -> None:
    layer, inputs = FeedForward(W, HIDDEN, activation=activation, bias=bias).double(), x()
    hidden = activation(inputs @ layer.up.weight.T + (layer.up.bias if bias else 0))
    expected = hidden @ layer.down.weight.T + (layer.down.bias if bias else 0)
    torch.testing.assert_close(layer(inputs), expected)
    assert (layer.up.bias is not None) == bias


@pytest.mark.parametrize("activation", [F.silu, torch.sigmoid])
def test_gated_is_its_equation(activation) -> None:
    layer, inputs = GatedFeedForward(W, HIDDEN, activation=activation).double(), x()
    gate, up = inputs @ layer.gate.weight.T, inputs @ layer.up.weight.T
    torch.testing.assert_close(layer(inputs), (activation(gate) * up) @ layer.down.weight.T)


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_positions_are_independent(kind) -> None:
    layer, inputs = kind(W, HIDDEN).double(), x()
    torch.testing.assert_close(layer(inputs)[:, 1], layer(inputs[:, 1]))


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_gradients(kind) -> None:
    layer = kind(W, HIDDEN, activation=torch.tanh).double()
    assert torch.autograd.gradcheck(layer, (x(requires_grad=True),))


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_dropout_is_after_the_activation_and_in_training_only(kind) -> None:
    layer, inputs = kind(W, HIDDEN, activation=torch.cos, bias=True, dropout=1.0).double(), x()  # cos 0 is not 0
    torch.testing.assert_close(layer(inputs), layer.down.bias.expand(B, T, W))
    assert not torch.allclose(layer.eval()(inputs), layer.down.bias.expand(B, T, W))


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_error_messages(kind) -> None:
    with pytest.raises(ValueError, match=re.escape("feedforward: width (0) must be at least 1.")):
        kind(0, 4)
    with pytest.raises(ValueError, match=re.escape("feedforward: hidden (-1) must be at least 1.")):
        kind(4, -1)
