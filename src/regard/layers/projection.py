"""Several linear layers of one input as one product."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 256
"""Vectors from which on it pays to put the weights side by side first."""


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
    plain = [layer for layer in layers if isinstance(layer, nn.Linear) and _plain(layer)]
    if len(plain) < len(layers) or x.numel() < ROWS * x.shape[-1] or len({layer.bias is None for layer in plain}) > 1:
        return tuple(layer(x) for layer in layers)
    weights: list[Tensor] = [layer.weight for layer in plain]
    biases: list[Tensor] = [layer.bias for layer in plain if layer.bias is not None]
    joined = F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)
    return joined.split([layer.out_features for layer in plain], -1)


def _plain(layer: nn.Linear) -> bool:
    """Whether calling it does nothing besides the product: no subclass, no hook, no parametrisation."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is nn.Linear and not hooks
