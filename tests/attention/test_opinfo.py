"""PyTorch's own sample inputs of `scaled_dot_product_attention` (OpInfo), on every backend, forward and backward.

Samples with dropout are random, so their dropout mask is read off the result. Importing PyTorch's list of operators
takes some seconds, so it is done once for all tests here.
"""

from __future__ import annotations

import sys
import types
import unittest
from typing import Any

import pytest
import setuptools  # noqa: F401  # the samples of torch import it, which fails once a test has imported distutils
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention import backends
from regard.attention.native import engine
from regard.attention.request import Request

BACKENDS = ["auto", "native", "torch", "blocked", "reference"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def operator() -> Any:
    """The OpInfo of SDPA. PyTorch's test classes derive from `expecttest.TestCase`; a plain one is enough here."""
    name = "expecttest"
    stand_in = name not in sys.modules
    if stand_in:
        try:
            import expecttest  # noqa: F401
        except ModuleNotFoundError:
            module: Any = types.ModuleType(name)
            module.TestCase = unittest.TestCase
            module.assert_expected_inline = None
            sys.modules[name] = module
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    finally:
        if stand_in and not hasattr(sys.modules.get(name), "__file__"):
            sys.modules.pop(name, None)
    (info,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    return info


def samples(operator: Any, dtype: torch.dtype, dropout: bool) -> list[tuple[list[Tensor], dict[str, Any]]]:
    torch.manual_seed(0)
    inputs = [
        ([sample.input, *sample.args], dict(sample.kwargs))
        for sample in operator.sample_inputs("cpu", dtype, requires_grad=True)
    ]
    chosen = [(x, options) for x, options in inputs if bool(options.get("dropout_p")) == dropout]
    assert len(chosen) >= 8
    return chosen


def fresh(x: list[Tensor], options: dict[str, Any], dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any]]:
    """Return the inputs as leaves of a dtype, including a float mask."""
    inputs = [y.detach().to(dtype).requires_grad_() for y in x]
    mask = options.get("attn_mask")
    if mask is None or not mask.is_floating_point():
        return inputs, options
    mask = mask.detach().to(dtype).requires_grad_(mask.requires_grad)
    return [*inputs, *([mask] if mask.requires_grad else [])], {**options, "attn_mask": mask}


def refusal(backend: str, x: list[Tensor], options: dict[str, Any]) -> str | None:
    return None if backend == "auto" else backends.BACKENDS[backend].refusal(Request.of(*x, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_samples_without_dropout(operator: Any, backend: str, dtype: torch.dtype) -> None:
    served = 0
    for inputs, described in samples(operator, dtype, dropout=False):
        x, options = fresh(inputs, described, dtype)
        if refusal(backend, x[:3], options) is not None:
            continue
        served += 1
        ours = run(lambda *y, o=options: regard.attend(*y, **o, backend=backend), x)
        x, options = fresh(inputs, described, dtype)
        theirs = run(lambda *y, o=options: scaled_dot_product_attention(*y, **o), x)
        x, options = fresh(inputs, described, torch.float64)
        truth = run(lambda *y, o=options: scaled_dot_product_attention(*y, **o), x)
        largest = max(y.abs().max().item() for y in x)
        sizes = [largest, *(largest**2 for _ in x)]  # magnitude of the summands: values, and products for the gradients
        for mine, other, exact, size in zip(ours, theirs, truth, sizes, strict=True):
            assert mine.dtype == dtype
            roundings = 64 if dtype == torch.float64 else 8  # in float64 the reference has rounding errors too
            allowance = 2 * (other.double() - exact).abs().max().item() + roundings * torch.finfo(dtype).eps * size
            assert (mine.double() - exact).abs().max().item() <= allowance
    assert served >= 12 or (backend == "native" and (dtype == torch.float64 or engine.module is None))


def run(attend: Any, x: list[Tensor]) -> list[Tensor]:
    """Return the context and the gradients of a fixed, non-uniform linear function of it."""
    out = attend(*x[:3])
    reading = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, x, reading)]


@pytest.mark.parametrize("backend", ["auto", "torch", "blocked", "reference"])
def test_samples_with_dropout(operator: Any, backend: str) -> None:
    """With the identity matrix as values, the context equals the weights after dropout: 0 or weight / (1 − p)."""
    for (q, k, _), options in samples(operator, torch.float64, dropout=True):
        plain = {**options, "dropout_p": 0.0}
        v = torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-2], -1, -1).clone().requires_grad_()
        weights = regard.attend(q, k, v, **plain, backend="reference")
        dropped = regard.attend(q, k, v, **options, backend=backend)
        alive = dropped != 0
        torch.testing.assert_close(dropped, torch.where(alive, weights / (1 - options["dropout_p"]), 0))
        assert not alive.all() and alive.any()
        gradients = torch.autograd.grad(dropped.square().sum(), (q, k, v))
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_samples_in_second_derivatives(operator: Any, backend: str) -> None:
    """OpInfo declares second derivatives for SDPA (`supports_gradgrad`). Fused kernels of PyTorch lack them."""
    assert operator.supports_gradgrad
    (x, options), *_ = [pair for pair in samples(operator, torch.float64, dropout=False) if pair[0][0].ndim == 3]
    x = [y.detach()[:1, :2, :3].requires_grad_() for y in x]
    assert torch.autograd.gradgradcheck(lambda *y: regard.attend(*y, **options, backend=backend), x)
