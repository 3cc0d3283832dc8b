"""Second derivatives, forward mode and nested transformations of packed sequences, compared with `reference`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import regard
from regard.attention.native import engine
from tests.attention.batched_gradients import assert_batched_gradients
from tests.attention.test_derivatives import some

D, DV = 3, 2
LENGTHS, KEY_LENGTHS = [3, 0, 2, 4], [2, 3, 0, 5]  # sequences without queries and without keys
OFFSETS = [-1, 0, 2, 1]

Options = Callable[[torch.dtype], dict[str, Any]]
SIMILARITIES: dict[str, Options] = {
    "scaled dot": lambda dtype: {},
    "softcap": lambda dtype: {"softcap": 2.0},
    "cosine": lambda dtype: {"similarity": "cosine", "scale": 2.0},
    "bilinear": lambda dtype: {"similarity": regard.Bilinear(some(D, D, dtype=dtype))},
    "additive": lambda dtype: {"similarity": regard.Additive(some(D, dtype=dtype))},
    "callable": lambda dtype: {"similarity": lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)},
    "uniform": lambda dtype: {"weighting": "uniform"},
    "hard": lambda dtype: {"weighting": "hard"},
}
MASKS: dict[str, dict[str, Any]] = {
    "open": {},
    "causal": {"is_causal": True},
    "window": {"window": (1, 1)},
    "causal, one offset": {"is_causal": True, "causal_offset": 1},
    "causal, offsets": {"is_causal": True, "causal_offset": OFFSETS},
}
BACKENDS = [
    "auto",
    pytest.param("native", marks=pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")),
    "torch",
    "blocked",
]


def inputs(keys: list[int], dtype: torch.dtype = torch.float64, heads: int = 2, shared: int = 2) -> list[Tensor]:
    shapes = ((sum(LENGTHS), heads, D), (sum(keys), shared, D), (sum(keys), shared, DV))
    return [some(*shape, dtype=dtype) for shape in shapes]


def run(x: list[Tensor], keys: list[int], options: dict[str, Any], backend: str = "auto") -> Tensor:
    key_lengths = None if keys is LENGTHS else keys
    result: Tensor = regard.attend_packed(*x, LENGTHS, key_lengths, **options, backend=backend)
    return result


def leaves(x: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    similarity = options.get("similarity")
    return [*x, *([similarity.weight] if isinstance(similarity, regard.Additive | regard.Bilinear) else [])]


def second(x: list[Tensor], keys: list[int], options: dict[str, Any], backend: str) -> list[Tensor]:
    """Return first derivatives of the squared context, and the derivatives of their squares."""
    wanted = leaves(x, options)
    out = run(x, keys, options, backend)
    first = torch.autograd.grad(out.square().sum(), wanted, create_graph=True, allow_unused=True)
    size = sum((grad.square().sum() for grad in first if grad is not None), torch.zeros(()))
    result = torch.autograd.grad(size, wanted, allow_unused=True)
    every = zip((*wanted, *wanted), (*first, *result), strict=True)
    return [torch.zeros_like(leaf) if grad is None else grad.detach() for leaf, grad in every]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keys", [LENGTHS, KEY_LENGTHS], ids=["own keys", "other keys"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_second_derivatives_are_those_of_the_reference(
    similarity: str, mask: str, keys: list[int], backend: str
) -> None:
    def options(dtype: torch.dtype) -> dict[str, Any]:
        return {**SIMILARITIES[similarity](dtype), **MASKS[mask]}

    wanted = second(inputs(keys), keys, options(torch.float64), "reference")
    try:
        got = second(inputs(keys, torch.float32), keys, options(torch.float32), backend)
    except ValueError as error:
        assert backend != "auto" and "cannot serve this request" in str(error)
        return
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)
    assert any(grad.any() for grad in wanted)


@pytest.mark.parametrize("keys", [LENGTHS, KEY_LENGTHS], ids=["own keys", "other keys"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_batch_of_gradients(similarity: str, keys: list[int]) -> None:
    for mask in ({}, MASKS["causal, offsets"]):
        x, options = inputs(keys, torch.float32), {**SIMILARITIES[similarity](torch.float32), **mask}
        assert_batched_gradients(run(x, keys, options), leaves(x, options))


def test_second_derivatives_of_grouped_heads() -> None:
    options = {"enable_gqa": True, "is_causal": True}
    wanted = second(inputs(KEY_LENGTHS, heads=4), KEY_LENGTHS, options, "reference")
    got = second(inputs(KEY_LENGTHS, torch.float32, heads=4), KEY_LENGTHS, options, "auto")
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)


def test_inputs_that_depend_on_each_other_are_counted_once() -> None:
    results = []
    for backend in ("reference", "auto"):
        x = some(sum(LENGTHS), 2, D, dtype=torch.float32)
        key = x * 2
        out = run([key.tanh(), key, x], LENGTHS, {"is_causal": True}, backend)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        results.append((grad.detach(), *torch.autograd.grad(grad.square().sum(), x)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_only_some_inputs_have_second_derivatives() -> None:
    results = []
    for backend in ("reference", "auto"):
        q, k, v = inputs(KEY_LENGTHS, torch.float32)
        out = run([q.detach(), k, v.detach()], KEY_LENGTHS, {}, backend)
        (grad,) = torch.autograd.grad(out.square().sum(), k, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), k)[0])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_non_finite_numbers_of_one_sequence_have_no_effect_on_the_others() -> None:
    options = {"is_causal": True}
    wanted = second(inputs(LENGTHS), LENGTHS, options, "reference")
    for value in (torch.nan, torch.inf):
        x = inputs(LENGTHS, torch.float32)
        with torch.no_grad():
            x[1][:3], x[2][:3] = value, value  # the keys and values of the first sequence
        out = run(x, LENGTHS, options)[3:]
        first = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        result = torch.autograd.grad(sum(grad[3:].square().sum() for grad in first), x)
        for mine, other in zip((*first, *result), wanted, strict=True):
            torch.testing.assert_close(mine[3:].double(), other[3:], rtol=1e-4, atol=1e-4)
            assert not mine[:3].any()


@pytest.mark.parametrize("similarity", ["scaled dot", "softcap", "cosine"])
def test_gradgradcheck(similarity: str) -> None:
    options = SIMILARITIES[similarity](torch.float64)
    x = inputs(KEY_LENGTHS, heads=1, shared=1)
    assert torch.autograd.gradgradcheck(
        lambda *y: run([*y], KEY_LENGTHS, {**options, "is_causal": True, "causal_offset": OFFSETS}), x
    )


@pytest.mark.parametrize("keys", [LENGTHS, KEY_LENGTHS], ids=["own keys", "other keys"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_forward_mode(similarity: str, mask: str, keys: list[int]) -> None:
    options = {**SIMILARITIES[similarity](torch.float32), **MASKS[mask]}
    x = tuple(leaf.detach() for leaf in inputs(keys, torch.float32))
    tangents = tuple(torch.ones_like(leaf) for leaf in x)
    _, wanted = torch.func.jvp(lambda *y: run([*y], keys, options, "reference"), x, tangents)
    torch.testing.assert_close(torch.func.jvp(lambda *y: run([*y], keys, options), x, tangents)[1], wanted)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(x, tangents, strict=True)]
        torch.testing.assert_close(forward_ad.unpack_dual(run(duals, keys, options)).tangent, wanted)
        for backend in ("native", "torch", "blocked"):
            with pytest.raises(ValueError, match=rf"backend \('{backend}'\) cannot serve this request: "):
                run(duals, keys, options, backend)
    assert wanted.any()


@pytest.mark.parametrize("keys", [LENGTHS, KEY_LENGTHS], ids=["own keys", "other keys"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", ["scaled dot", "softcap", "cosine", "bilinear", "additive"])
def test_nested_transformations(similarity: str, mask: str, keys: list[int]) -> None:
    options = {**SIMILARITIES[similarity](torch.float32), **MASKS[mask]}
    q, k, v = (leaf.detach() for leaf in inputs(keys, torch.float32))

    def loss(backend: str) -> Callable[[Tensor], Tensor]:
        return lambda a: run([a, k, v], keys, options, backend).square().sum()

    def norm(backend: str) -> Callable[[Tensor], Tensor]:
        return lambda a: torch.func.grad(loss(backend))(a).square().sum()

    hessian = torch.func.hessian(loss("reference"))(q)
    torch.testing.assert_close(torch.func.hessian(loss("auto"))(q), hessian)
    torch.testing.assert_close(torch.func.grad(norm("auto"))(q), torch.func.grad(norm("reference"))(q))
    assert hessian.any()


def test_a_transformation_inside_torch_compile() -> None:
    """The operator `regard::packed` does not support torch.func, so it is not used there."""
    q, k, v = (leaf.detach() for leaf in inputs(LENGTHS, torch.float32))

    def loss(a: Tensor) -> Tensor:
        return run([a, k, v], LENGTHS, {"is_causal": True}).square().sum()

    for transform in (torch.func.grad, torch.func.hessian):
        compiled = torch.compile(transform(loss), backend="aot_eager")
        torch.testing.assert_close(compiled(q), transform(loss)(q))


def test_second_derivatives_of_the_operator() -> None:
    """Call the operator directly, as an exported program does."""
    lengths, offsets = torch.tensor(LENGTHS), torch.tensor(OFFSETS)
    results = []
    for direct in (False, True):
        x = inputs(LENGTHS, torch.float32)
        if direct:
            heads = (y.transpose(0, 1) for y in x)
            out = torch.ops.regard.packed.default(*heads, lengths, lengths, 2, 0, 1, 0.5, 2.0, "auto", offsets)
        else:
            options = {"is_causal": True, "window": (2, None), "scale": 0.5, "softcap": 2.0, "causal_offset": OFFSETS}
            out = run(x, LENGTHS, options, "reference")
        first = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        results.append((*first, *torch.autograd.grad(sum(grad.square().sum() for grad in first), x)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
