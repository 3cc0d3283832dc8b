"""A watch copies tensors before the model overwrites them, by whichever function, also in inference mode.

Tensors of inference mode have no version counter. A write that is not noticed would silently change a map.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard


@torch.library.custom_op("regard_tests::double_second", mutates_args=("y",))
def double_second(x: Tensor, y: Tensor) -> None:
    y.mul_(2)


def functions_with_the_option() -> dict[str, Callable[[Tensor], Any]]:
    """Return all functions of `torch.nn.functional` with an option `inplace`, with the option by name and position."""
    calls: dict[str, Callable[[Tensor], Any]] = {}
    for name, function in sorted(vars(F).items()):
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        names = list(inspect.signature(function).parameters)
        if "inplace" not in names:
            continue
        arguments: dict[str, Any] = {"threshold": 0.1, "value": 5.0, "p": 0.5, "training": True}
        required = {n: arguments[n] for n in names[1:] if n in arguments}
        part: Any = 0 if name == "dropout1d" else ...  # it takes at most three dimensions
        calls[f"{name}, by name"] = lambda x, f=function, r=required, at=part: f(x[at], **r, inplace=True)
        defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
        before = [required.get(n, defaults[n]) for n in names[1 : names.index("inplace")]]
        calls[f"{name}, by position"] = lambda x, f=function, b=before, at=part: f(x[at], *b, True)
    return calls


WRITES: dict[str, Callable[[Tensor], Any]] = {
    **functions_with_the_option(),
    "nn.ReLU": lambda x: nn.ReLU(inplace=True)(x),
    "nn.init.normal_": lambda x: nn.init.normal_(x),
    "nn.init.zeros_": lambda x: nn.init.zeros_(x),
    "embedding": lambda x: F.embedding(torch.tensor([0, 1]), x[0, 0], max_norm=0.01),
    "embedding_bag": lambda x: F.embedding_bag(torch.tensor([[0, 1]]), x[0, 0], max_norm=0.01),
    "custom operator": lambda x: double_second(x.clone(), x),
    "custom operator, by name": lambda x: torch.ops.regard_tests.double_second(x.clone(), y=x),
    "vmap": lambda x: torch.vmap(lambda row: row.mul_(2))(x),
    "numpy": lambda x: x.numpy().fill(0),
    "foreach": lambda x: torch._foreach_mul_([x], 2.0),
    "out": lambda x: torch.mul(x, 2, out=x),
    "operator with out": lambda x: torch.ops.aten.mul.out(x, x, out=x),
    "operator": lambda x: torch.ops.aten.mul_.Tensor(x, torch.tensor(2.0)),
    "packet": lambda x: torch.ops.aten.mul_(x, 2),
    "slice": lambda x: x.__setitem__((slice(None), 0), 7.0),
    "data": lambda x: x.data.mul_(3),
}


class Overwrites(nn.Module):
    """Attention whose queries or keys are overwritten afterwards."""

    def __init__(self, write: Callable[[Tensor], Any], key: bool) -> None:
        super().__init__()
        self.write, self.key = write, key

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        context = F.scaled_dot_product_attention(q, k, k)
        self.write(k if self.key else q)
        return context


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("write", WRITES)
def test_maps_show_the_weights_at_the_time_of_the_call(write: str, mode: Callable[[], Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    for key in (False, True):
        model = Overwrites(WRITES[write], key)
        with mode():
            q, k = (torch.randn(2, 2, 5, 4, generator=generator) for _ in "qk")  # views would be copied at once
            wanted = torch.softmax(q @ k.mT / 2, -1)
            with regard.watch(model) as seen:
                model(q, k)
        torch.testing.assert_close(seen[0].dense(), wanted)
        assert not seen.missed


def test_functions_that_do_not_write_do_not_copy() -> None:
    q = torch.randn(1, 2, 5, 4)
    for write in (F.relu, lambda x: F.dropout(x, 0.5, True), lambda x: F.embedding(torch.tensor([0]), x[0, 0])):
        with torch.no_grad(), regard.watch(model := Overwrites(write, False)) as seen:
            model(q, q)
        assert seen[0].request.q.data_ptr() == q.data_ptr()


def test_an_input_that_an_activation_overwrites_in_place() -> None:
    """`nn.MultiheadAttention` is recorded by its input, which the next module may overwrite."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.activation = nn.MultiheadAttention(8, 2, batch_first=True), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            _, weights = self.attention(x, x, x, average_attn_weights=False)
            return self.activation(x), weights

    model = Block().eval()
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode(), regard.watch(model) as seen:
            _, weights = model(torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)))
        torch.testing.assert_close(seen[0].dense(), weights.detach())
