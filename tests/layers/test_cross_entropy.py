"""The loss: PyTorch's cross-entropy, block by block."""

import pytest
import torch
from torch.nn import functional as F

from regard.layers import cross_entropy

N, WIDTH, WORDS = 11, 5, 13


@pytest.fixture(autouse=True)
def _blocks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(cross_entropy, "ROWS", 4)  # 11 positions: two whole blocks and a rest


def inputs(dtype: torch.dtype = torch.float64, bias: bool = True, n: int = N):
    hidden = torch.randn(n, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(WORDS, WIDTH, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randn(WORDS, dtype=dtype, requires_grad=True) if bias else None


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_with_gradients(smoothing: float, bias: bool) -> None:
    parameters, expected = inputs(bias=bias), torch.randint(WORDS, (N,))
    leaves = [x for x in parameters if x is not None]
    ours = cross_entropy.cross_entropy(*parameters, expected, smoothing)
    theirs = F.cross_entropy(F.linear(*parameters), expected, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    # the upstream gradient is not 1: a loss is divided by its number of tokens
    for a, b in zip(torch.autograd.grad(ours / 7, leaves), torch.autograd.grad(theirs / 7, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradcheck() -> None:
    expected = torch.randint(WORDS, (N,))
    assert torch.autograd.gradcheck(lambda h, w, b: cross_entropy.cross_entropy(h, w, b, expected, 0.1), inputs())


@pytest.mark.parametrize("bias", [True, False])
def test_second_derivatives(bias: bool) -> None:
    """A penalty on the gradient of some inputs: the others get derivatives, too."""
    parameters, expected = inputs(bias=bias), torch.randint(WORDS, (N,))
    leaves = [x for x in parameters if x is not None]
    for wanted in (leaves, leaves[:1], leaves[1:]):
        fused = cross_entropy.cross_entropy(*parameters, expected, 0.1)
        plain = F.cross_entropy(F.linear(*parameters), expected, reduction="sum", label_smoothing=0.1)
        results = []
        for loss in (fused, plain):
            first = torch.autograd.grad(loss / 7, wanted, create_graph=True)
            results.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_scores_beyond_the_range_of_exp() -> None:
    hidden, weight, _ = inputs(torch.float32, bias=False)
    expected = torch.randint(WORDS, (N,))
    ours = cross_entropy.cross_entropy(hidden * 1e3, weight, None, expected)
    torch.testing.assert_close(ours, F.cross_entropy(hidden * 1e3 @ weight.T, expected, reduction="sum"))


def test_the_loss_of_no_positions_is_zero() -> None:
    hidden, weight, bias = inputs(n=0)
    total = cross_entropy.cross_entropy(hidden, weight, bias, torch.empty(0, dtype=torch.long))
    total.backward()
    assert total == 0 and not weight.grad.any()


def test_autocast_uses_the_unfused_path() -> None:
    hidden, weight, bias = inputs(torch.float32)
    expected = torch.randint(WORDS, (N,))
    with torch.autocast("cpu", torch.bfloat16):
        low = cross_entropy.cross_entropy(hidden, weight, bias, expected)
    torch.testing.assert_close(low, cross_entropy.cross_entropy(hidden, weight, bias, expected), rtol=2e-2, atol=0.0)


def test_smoothing_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match=r"smoothing \(1.0\) must lie in \[0, 1\)"):
        cross_entropy.cross_entropy(*inputs(), torch.zeros(N, dtype=torch.long), 1.0)


def test_no_gradients_are_computed_in_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "_add_gradients", lambda *_: pytest.fail("computed"))
    hidden, weight = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    labels = torch.tensor([1, 6, 0, 2, 2])
    with torch.no_grad():
        total = cross_entropy.cross_entropy(hidden, weight, None, labels)
    torch.testing.assert_close(total, F.cross_entropy(hidden @ weight.T, labels, reduction="sum").detach())
