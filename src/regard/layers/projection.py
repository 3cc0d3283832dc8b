"""Linear layers in training: several of one input as one product, and products that take less time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.tensors import traced, untouched

ROWS = 256
"""Vectors from which on it pays to put the weights side by side first."""
MANY = 4
"""Rows for each column and thread from which on it pays to share out the rows of a product over them."""


def project(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """layer(x) for each layer: (..., W) → (..., outᵢ) each.

        [W₁; W₂; …]·x + [b₁; b₂; …]

    One wide product takes less time than several narrow ones, and most of all their gradients do: x gets one, where it
    would get several that are added up. Layers that are not plain, or are watched by hooks, are called one by one, and
    so are all where x has few vectors.

    >>> layers, x = [nn.Linear(6, 4), nn.Linear(6, 2)], torch.randn(500, 6)
    >>> [torch.allclose(y, layer(x), atol=1e-6) for y, layer in zip(project(x, *layers), layers)]
    [True, True]
    """
    plain = [layer for layer in layers if isinstance(layer, nn.Linear) and untouched(layer, nn.Linear)]
    if len(plain) < len(layers) or x.numel() < ROWS * x.shape[-1] or len({layer.bias is None for layer in plain}) > 1:
        return tuple(layer(x) for layer in layers)
    weights: list[Tensor] = [layer.weight for layer in plain]
    biases: list[Tensor] = [layer.bias for layer in plain if layer.bias is not None]
    joined = _linear(x, torch.cat(weights), torch.cat(biases) if biases else None)
    return joined.split([layer.out_features for layer in plain], -1)


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """layer(x), in training by products that take less time (`_Linear`)."""
    if not isinstance(layer, nn.Linear) or x.numel() < ROWS * x.shape[-1] or not untouched(layer, nn.Linear):
        found: Tensor = layer(x)
        return found
    return _linear(x, layer.weight, layer.bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    plain = x.is_cpu and _learns(x) and not torch.is_autocast_enabled("cpu")
    return _Linear.apply(x, weight, bias) if plain else F.linear(x, weight, bias)


def _learns(x: Tensor) -> bool:
    """Whether gradients are wanted, by plain autograd."""
    return x.requires_grad and torch.is_grad_enabled() and not traced()


class _Linear(torch.autograd.Function):
    """`F.linear`, (..., W) → (..., out), with fewer passes over memory.

    On the CPU that writes the bias into every row first and has the product added to it: the rows travel to memory and
    back before there is anything in them. Here the bias is added to what the product has just left in the caches.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = F.linear(x, weight)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # (N, out)
        return (
            grad @ weight if of_x else None,
            over_rows(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def over_rows(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ·b, (N, A), (N, B) → (A, B), where N may be much more than A and B: then each thread has its share of N.

    A product is cut into threads by its own rows and columns otherwise, and few of them make pieces too small.

    >>> a, b = torch.randn(999, 3), torch.randn(999, 2)
    >>> torch.allclose(over_rows(a, b), a.T @ b, atol=1e-4)
    True
    """
    threads = torch.get_num_threads()
    each = len(a) // threads
    if threads == 1 or not a.is_cpu or each < MANY * max(a.shape[1], b.shape[1]):
        return a.t() @ b
    shares, rest = each * threads, slice(each * threads, None)
    parts = a[:shares].view(threads, each, -1).transpose(1, 2) @ b[:shares].view(threads, each, -1)  # (threads, A, B)
    found = parts.sum(0)
    return found if shares == len(a) else found + a[rest].t() @ b[rest]
