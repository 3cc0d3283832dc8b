"""Backward passes for a batch of gradients of one result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def assert_batched_gradients(out: Tensor, inputs: Sequence[Tensor]) -> None:
    """Assert that a batch of three gradients of `out` gives the same as three backward passes.

    `is_grads_batched=True`, as in `torch.autograd.functional.jacobian(vectorize=True)`, and `torch.vmap` are different
    implementations.
    """
    grads = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out.dtype)

    def backward(grad: Tensor, is_batch: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, inputs, grad, retain_graph=True, is_grads_batched=is_batch)

    expected = [torch.stack(parts) for parts in zip(*map(backward, grads), strict=True)]
    for got in (backward(grads, is_batch=True), torch.vmap(backward)(grads)):
        for mine, other in zip(got, expected, strict=True):
            assert not mine.requires_grad
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
