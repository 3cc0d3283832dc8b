"""Several linear layers as one product: the same numbers, the same gradients, and nothing that watches is left out."""

import pytest
import torch
from torch import Tensor, nn

from regard.layers import MultiHeadAttention, merge_heads, projection, split_heads
from regard.layers.projection import linear, over_rows, project


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


@pytest.mark.parametrize("bias", [True, False])
def test_one_layer(bias: bool) -> None:
    """Values, gradients and gradients of gradients; whoever traces sees what he knows."""
    layer = nn.Linear(7, 5, bias).double()
    x = torch.randn(100, 3, 7, dtype=torch.float64, requires_grad=True)
    wants = [x, *layer.parameters()]
    found, wanted = (
        torch.autograd.grad(y.square().sum(), wants, create_graph=True) for y in (linear(x, layer), layer(x))
    )
    again = [torch.autograd.grad(sum(g.square().sum() for g in of), wants) for of in (found, wanted)]
    for a, b in zip((*found, *again[0]), (*wanted, *again[1]), strict=True):
        torch.testing.assert_close(a, b)
    assert "_Linear" in str(linear(x, layer).grad_fn) and "_Linear" not in str(linear(x[:9], layer).grad_fn)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x.float(), nn.Linear(7, 5)).dtype == torch.bfloat16
    frozen = nn.Linear(7, 5, bias).double().requires_grad_(False)
    torch.testing.assert_close(
        torch.autograd.grad(linear(x, frozen).square().sum(), x), torch.autograd.grad(frozen(x).square().sum(), x)
    )


@pytest.mark.parametrize("rows", [0, 1, 40, 999, 1000])
def test_over_rows(rows: int) -> None:
    """Whether each thread has a share of them, with some left over, or not."""
    a, b = torch.randn(rows, 5).double(), torch.randn(rows, 7).double()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.testing.assert_close(over_rows(a, b), a.T @ b)
    finally:
        torch.set_num_threads(before)


def test_gradients_of_joined_projections_are_those_of_separate_ones() -> None:
    attention = MultiHeadAttention(32, 2)
    x = torch.randn(16, 40, 32, requires_grad=True)
    found = torch.autograd.grad(attention(x).square().sum(), [x, *attention.parameters()])
    q, k, v = (split_heads(layer(x), 2) for layer in (attention.query, attention.key, attention.value))
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    plain = attention.out(merge_heads(context)).square().sum()
    for a, b in zip(found, torch.autograd.grad(plain, [x, *attention.parameters()]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
