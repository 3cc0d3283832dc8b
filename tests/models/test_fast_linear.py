"""`FastLinear` must compute what `nn.Linear` does, with every layout of the weight."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models import fast_linear
from regard.models.fast_linear import FastLinear, has_blocked_products

pytestmark = pytest.mark.host
LAYOUTS = {"shared": (False, True), "copied": (True, False), "blocked": (True, True)}
"""Name: whether the weight is packed, and whether oneDNN is on."""


def build(layout: str, *layers: nn.Linear) -> FastLinear:
    packed, onednn = LAYOUTS[layout]
    with pytest.MonkeyPatch.context() as patch:
        if not onednn:
            patch.setattr(fast_linear, "onednn", lambda: None)
        return FastLinear(*layers, packed=packed)


def squared(x: Tensor) -> Tensor:
    return x * x


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5, 70])
def test_products_equal_those_of_the_layers(layout: str, dtype: torch.dtype, bias: bool, rows: int) -> None:
    first, second = nn.Linear(20, 24, bias, dtype=dtype), nn.Linear(20, 9, bias, dtype=dtype)
    x = torch.randn(rows, 20, dtype=dtype)
    torch.testing.assert_close(build(layout, first)(x), first(x))
    torch.testing.assert_close(build(layout, first, second)(x), torch.cat((first(x), second(x)), 1))
    torch.testing.assert_close(build(layout, first).without_bias(x), x @ first.weight.T)
    total = torch.randn(rows, 24, dtype=dtype)
    expected = total + first(x)
    torch.testing.assert_close(build(layout, first).add_to(total, x), expected)


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [F.gelu, F.relu, torch.tanh, squared])
def test_activations_follow_the_bias(layout: str, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
    layer, x = nn.Linear(20, 24, bias), 3 * torch.randn(7, 20)
    torch.testing.assert_close(build(layout, layer)(x, activation), activation(layer(x)))


def test_a_packed_weight_is_a_copy() -> None:
    layer, x = nn.Linear(6, 4), torch.randn(3, 6)
    packed, shared = FastLinear(layer, packed=True), FastLinear(layer, packed=False)
    before = layer(x).detach()
    with torch.no_grad():
        layer.weight.zero_()
    torch.testing.assert_close(packed(x), before)
    torch.testing.assert_close(shared(x), layer.bias.detach().expand(3, 4))


def test_only_float32_on_a_cpu_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_blocked_products(torch.zeros(3, 3, dtype=torch.float64))
    assert not has_blocked_products(torch.zeros(3, 3, device="meta"))
    monkeypatch.setattr(fast_linear, "onednn", lambda: None)
    assert not has_blocked_products(torch.zeros(3, 3))
