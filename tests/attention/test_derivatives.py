"""Forward mode, nested transformations and second derivatives. `auto` supports all; every backend supports the last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import regard
from regard.attention import backends, blocked
from regard.attention.native import engine
from regard.attention.request import Request
from tests.attention.batched_gradients import assert_batched_gradients
from tests.attention.refusals import assert_refused

TQ, TK, D, DV = 3, 5, 4, 2


def some(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def inputs(*lead: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [some(*lead, t, width, dtype=dtype) for t, width in ((TQ, D), (TK, D), (TK, DV))]


Options = Callable[[torch.dtype], dict[str, Any]]
MASK = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]]).bool()
CASES: dict[str, Options] = {
    "plain": lambda dtype: {},
    "causal": lambda dtype: {"is_causal": True, "causal_offset": 1},
    "boolean mask": lambda dtype: {"attn_mask": MASK},
    "learned mask": lambda dtype: {"attn_mask": some(TQ, TK, dtype=dtype)},
    "lengths": lambda dtype: {"lengths": [2, 5]},
    "softcap": lambda dtype: {"softcap": 2.0},
    "cosine": lambda dtype: {"similarity": "cosine"},
    "additive": lambda dtype: {"similarity": regard.Additive(some(D, dtype=dtype))},
    "bilinear": lambda dtype: {"similarity": regard.Bilinear(some(D, D, dtype=dtype))},
    "uniform": lambda dtype: {"weighting": "uniform"},
    "hard": lambda dtype: {"weighting": "hard"},
}


def leaves(x: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """Return all tensors that may have a gradient."""
    similarity, mask = options.get("similarity"), options.get("attn_mask")
    parameters = [similarity.weight] if isinstance(similarity, regard.Additive | regard.Bilinear) else []
    return [*x, *parameters, *([mask] if mask is not None and mask.requires_grad else [])]


def second(x: list[Tensor], options: dict[str, Any], backend: str) -> list[Tensor]:
    """Return the derivatives of the squared gradients of the squared context."""
    wanted = leaves(x, options)
    out = regard.attend(*x, **options, backend=backend)
    first = torch.autograd.grad(out.square().sum(), wanted, create_graph=True, allow_unused=True)
    size = sum((grad.square().sum() for grad in first if grad is not None), torch.zeros(()))
    gradients = torch.autograd.grad(size, wanted, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, gradients, strict=True)]


@pytest.mark.parametrize("backend", ["auto", "native", "torch", "blocked"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_are_those_of_the_reference(case: str, dtype: torch.dtype, backend: str) -> None:
    if backend != "auto":
        request = Request.of(*inputs(2, dtype=dtype), **CASES[case](dtype))
        if backends.BACKENDS[backend].refusal(request) is not None:
            call = functools.partial(regard.attend, *inputs(2, dtype=dtype), **CASES[case](dtype), backend=backend)
            assert_refused(backend, call)
            return
    wanted = second(inputs(2), CASES[case](torch.float64), "reference")
    got = second(inputs(2, dtype=dtype), CASES[case](dtype), backend)
    exact = dtype == torch.float64
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-9 if exact else 1e-4, atol=1e-9 if exact else 1e-4)


@pytest.mark.parametrize("lead", [(), (2,), (2, 2), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("similarity", ["scaled_dot", "additive"])
def test_second_derivatives_for_any_leading_dimensions(lead: tuple[int, ...], similarity: str) -> None:
    options: dict[str, Any] = {} if similarity == "scaled_dot" else {"similarity": regard.Additive(some(D))}
    wanted = second(inputs(*lead), options, "reference")
    options = {} if similarity == "scaled_dot" else {"similarity": regard.Additive(some(D, dtype=torch.float32))}
    got = second(inputs(*lead, dtype=torch.float32), options, "auto")
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)


def test_second_derivatives_of_grouped_heads() -> None:
    for backend in ("auto", "torch", "blocked"):
        for dtype in (torch.float64, torch.float32):
            q, k, v = (some(2, heads, *rest, dtype=dtype) for heads, *rest in ((4, TQ, D), (2, TK, D), (2, TK, DV)))
            wanted = second([q, k, v], {"enable_gqa": True}, "reference")
            for mine, other in zip(second([q, k, v], {"enable_gqa": True}, backend), wanted, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_inputs_that_depend_on_each_other_are_counted_once() -> None:
    """q and k come from one tensor. If the gradient of k also flowed through q, it would count twice."""
    x = some(2, TK, D)
    gradients = []
    for backend in ("reference", "auto", "blocked"):
        key = x * 2
        out = regard.attend(key.tanh(), key, x, backend=backend)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        gradients.append((grad.detach(), *torch.autograd.grad(grad.square().sum(), x)))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])


def test_masked_nan_has_no_effect_on_second_derivatives() -> None:
    for dtype in (torch.float64, torch.float32):
        x = inputs(2, dtype=dtype)
        wanted = second(x, {"lengths": [2, 4]}, "reference")
        with torch.no_grad():
            x[1][0, 2:], x[2][1, 4:] = torch.nan, torch.inf
        for backend in ("auto", "torch", "blocked"):
            for mine, other in zip(second(x, {"lengths": [2, 4]}, backend), wanted, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weighting", ["softmax", "uniform"])
def test_second_derivatives_of_blocked_draw_the_same_dropout(weighting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK, "cpu", 12)

    def fixed(*x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return regard.attend(*x, dropout_p=0.4, backend="blocked", weighting=weighting)

    x = inputs(2)
    first = torch.autograd.grad(fixed(*x).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(fixed(*x).square().sum(), x, create_graph=True), first)
    assert torch.autograd.gradgradcheck(fixed, x)


@pytest.mark.parametrize("case", ["plain", "boolean mask", "softcap", "additive"])
def test_gradgradcheck(case: str) -> None:
    options = CASES[case](torch.float64)
    assert torch.autograd.gradgradcheck(lambda *x: regard.attend(*x, **options), inputs())


def test_a_callable_with_its_own_parameters() -> None:
    w = some(D)

    def similarity(a: Tensor, b: Tensor) -> Tensor:
        return ((a.unsqueeze(-2) * b.unsqueeze(-3)).tanh() * w).sum(-1)

    def of(backend: str, shared: bool) -> tuple[Tensor, ...]:
        q, k, v = inputs(2)
        out = regard.attend(q * w if shared else q, k, v, similarity=similarity, backend=backend)
        first = torch.autograd.grad(out.square().sum(), (q, k, v, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (q, k, v, w))

    torch.testing.assert_close(of("auto", shared=False), of("reference", shared=False))
    assert all(g.isfinite().all() for g in of("reference", shared=True))
    with pytest.raises(RuntimeError, match=r"create_graph=True does not support a callable .* backend='reference'"):
        of("auto", shared=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_forward_mode(case: str, dtype: torch.dtype) -> None:
    options = CASES[case](dtype)
    x = [leaf.detach() for leaf in inputs(2, dtype=dtype)]
    tangents = tuple(torch.ones_like(leaf) for leaf in x)

    def run(*tensors: Tensor, backend: str = "auto") -> Tensor:
        return regard.attend(*tensors, **options, backend=backend)

    _, wanted = torch.func.jvp(lambda *tensors: run(*tensors, backend="reference"), tuple(x), tangents)
    torch.testing.assert_close(torch.func.jvp(run, tuple(x), tangents)[1], wanted)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(x, tangents, strict=True)]
        torch.testing.assert_close(forward_ad.unpack_dual(run(*duals)).tangent, wanted)
        for backend in ("native", "torch", "blocked"):
            with pytest.raises(ValueError, match=rf"backend \('{backend}'\) cannot serve this request: "):
                run(*duals, backend=backend)
        run(*x)  # without a tangent every backend supports the request
        if not options:
            run(*x, backend="blocked")
            run(*x, backend="torch")
    assert wanted.any()


def test_forward_mode_is_right() -> None:
    assert torch.autograd.gradcheck(regard.attend, inputs(), check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_nested_transformations(dtype: torch.dtype) -> None:
    q, k, v = (x.detach() for x in inputs(dtype=dtype))

    def loss(backend: str) -> Callable[[Tensor], Tensor]:
        return lambda a: regard.attend(a, k, v, is_causal=True, backend=backend).square().sum()

    def norm(backend: str) -> Callable[[Tensor], Tensor]:
        return lambda a: torch.func.grad(loss(backend))(a).square().sum()

    torch.testing.assert_close(torch.func.hessian(loss("auto"))(q), torch.func.hessian(loss("reference"))(q))
    wanted = torch.func.grad(norm("reference"))(q)
    torch.testing.assert_close(torch.func.grad(norm("auto"))(q), wanted)
    outside = q.clone().requires_grad_()  # torch.func inside, autograd outside
    torch.testing.assert_close(torch.autograd.grad(norm("auto")(outside), outside)[0], wanted)


@pytest.mark.parametrize("backend", ["auto", "native", "torch", "blocked"])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_of_gradients(case: str, backend: str) -> None:
    x, options = inputs(2, dtype=torch.float32), CASES[case](torch.float32)
    if backend in ("native", "torch") and backends.BACKENDS[backend].refusal(Request.of(*x, **options)):
        return
    assert_batched_gradients(regard.attend(*x, **options, backend=backend), leaves(x, options))


@pytest.mark.parametrize("backend", ["auto", "blocked"])
def test_a_batch_of_gradients_with_masked_nan(backend: str) -> None:
    q, k, v = (leaf.detach() for leaf in inputs(2, dtype=torch.float32))
    k[0, 2:], v[0, 2:], q[1, 0] = torch.nan, torch.inf, torch.nan
    x = [leaf.requires_grad_() for leaf in (q, k, v)]
    mask = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 1, 0, 1]]).bool()
    assert_batched_gradients(regard.attend(*x, attn_mask=mask, lengths=[2, 5], backend=backend), x)


def test_a_first_derivative_transformation_uses_sdpa() -> None:
    """vmap and a first gradient do not need the reference backend."""
    chosen = []
    x = [leaf.detach() for leaf in inputs(2)]

    def one(*tensors: Tensor) -> Tensor:
        chosen.append(backends.choose(Request.of(*tensors)).backend.name)
        return regard.attend(*tensors).sum()

    torch.vmap(one)(*x)
    torch.vmap(torch.func.grad(one))(*x)
    torch.func.jvp(one, tuple(x), tuple(x))
    assert chosen == ["torch", "torch", "reference"]


@pytest.mark.skipif(engine.module is None, reason=engine.reason)
def test_second_derivatives_through_the_operator_of_torch() -> None:
    """Under a dispatch mode the native kernels are `regard::dot`."""
    from torch.utils.flop_counter import FlopCounterMode

    x = inputs(2, dtype=torch.float32)
    wanted = second(x, {}, "reference")
    with FlopCounterMode(display=False):
        got = second(x, {}, "native")
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
