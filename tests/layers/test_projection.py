"""Several linear layers as one product: the same numbers, the same gradients, and nothing that watches is left out."""

import pytest
import torch
from torch import Tensor, nn

from regard.layers import projection
from regard.layers.projection import project


def made(*outs: int, bias: bool = True) -> list[nn.Linear]:
    return [nn.Linear(7, out, bias) for out in outs]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [3, 400])
def test_the_same_as_one_by_one(rows: int, bias: bool) -> None:
    layers, x = made(5, 3, 11, bias=bias), torch.randn(rows, 2, 7, requires_grad=True)
    for y, layer in zip(project(x, *layers), layers, strict=True):
        assert torch.allclose(y, layer(x), atol=1e-5)
    sum((y * y).sum() for y in project(x, *layers)).backward()  # type: ignore[union-attr]
    found = [x.grad, *(p.grad for layer in layers for p in layer.parameters())]
    wanted = torch.autograd.grad(
        sum((layer(x) ** 2).sum() for layer in layers),  # type: ignore[arg-type]
        [x, *(p for layer in layers for p in layer.parameters())],
    )
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, wanted, strict=True))


def test_what_is_not_plain_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection.torch, "cat", lambda *_: pytest.fail("they were joined"))

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    x = torch.randn(500, 7)
    for odd in (Other(7, 2), nn.Sequential(nn.Linear(7, 2)), nn.Linear(7, 2, bias=False)):
        assert torch.equal(project(x, *made(5), odd)[1], odd(x))
    watched, seen = made(5, 3), []
    watched[1].register_forward_hook(lambda *given: seen.append(given))
    project(x, *watched)
    assert len(seen) == 1
    project(x[:10], *made(5, 3))  # few vectors
