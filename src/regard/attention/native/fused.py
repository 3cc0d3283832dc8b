"""Fused elementwise kernels: GELU with its bias; dropout, sum and layer norm. Each is one pass over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.tensors import traced
from ..derivatives import needs_operators
from ..validation import PLAIN
from . import engine
from .plan import address, kernels

LEVELS = 256
"""Number of values of a random byte. The dropout probability is a multiple of 1/256."""
LOWEST = torch.iinfo(torch.int64).min
"""Lower bound of a random int64 with 64 random bits."""
_WORD = 2**32 - 1


def gelu_(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """Compute gelu(x + bias) into y, which may be x, without a gradient: (N, W), (W,) → (N, W).

        gelu(x) = x·Φ(x)

    Paper: Hendrycks and Gimpel 2016. Differs from `F.gelu`: Φ is accurate for large negative numbers.

    >>> x = torch.tensor([[1.0, -1.0]])
    >>> gelu_(x, torch.tensor([1.0, 1.0]), x)
    tensor([[1.9545, 0.0000]])
    """
    if not served(x, bias, y):
        return y.copy_(F.gelu(x + bias))
    kernels().gelu(_sizes(x), *_pointers(x, bias, y), torch.get_num_threads())
    return y


def add_norm(
    x: Tensor,
    part: Tensor,
    gain: Tensor,
    shift: Tensor,
    *,
    epsilon: float,
    dropped: int = 0,
    keep_sum: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return x + dropout(part) and its layer norm, (..., W) each, differentiable. All tensors must be `served`.

    Args:
        x, part: (..., W).
        gain, shift: (W,), weight and bias of the norm.
        epsilon: epsilon of the norm.
        dropped: how many of the 256 values of a random byte drop an element, at most 255.
        keep_sum: if False and no gradient is needed, the first result is undefined.
    """
    key = int(torch.empty((), dtype=torch.int64).random_(LOWEST, None)) if dropped else 0
    inputs = (x, part, gain, shift)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        returned: tuple[Tensor, Tensor] = _AddNorm.apply(*inputs, epsilon, (key, dropped))  # type: ignore[no-untyped-call]  # torch declares no types
        return returned
    added = torch.empty_like(x) if keep_sum else None
    y, _, _ = _normed(*inputs, epsilon, (key, dropped), torch.empty_like(x), added)
    return y if added is None else added, y


def add_norm_(x: Tensor, part: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """Write the layer norm of x + part + bias to `part`, without a gradient. All tensors must be `served`."""
    return _normed(x, part, gain, shift, epsilon, (0, 0), part, bias=bias)[0]


def served(*tensors: Tensor) -> bool:
    """Return whether the kernels are available and can read these tensors: dense, float32, on the CPU, not empty."""
    return engine.module is not None and are_dense(*tensors)


def are_dense(*tensors: Tensor) -> bool:
    """Return whether tensors are dense, float32, on the CPU and not empty, and no operator on them has to be seen."""
    return not traced() and all(
        type(x) in PLAIN and x.dtype == torch.float32 and x.is_cpu and x.is_contiguous() and x.numel() for x in tensors
    )


def _sizes(x: Tensor) -> tuple[int, int]:
    """Return the number of rows and their width."""
    return x.numel() // x.shape[-1], x.shape[-1]


def _normed(
    x: Tensor,
    part: Tensor,
    gain: Tensor,
    shift: Tensor,
    epsilon: float,
    drop: tuple[int, int],
    y: Tensor,
    added: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y, and mean and reciprocal standard deviation of each row. Write the sum to `added` if it is not None."""
    sizes = _sizes(x)
    mean, inverse_std = x.new_empty(2, sizes[0])
    kernels().add_norm(
        sizes,
        *_pointers(x, part, bias, gain, shift),
        epsilon,
        drop,
        *_pointers(added, y, mean, inverse_std),
        torch.get_num_threads(),
    )
    return y, mean, inverse_std


def _pointers(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(map(address, tensors))


class _AddNorm(torch.autograd.Function):
    """Autograd function of `add_norm`. It saves the sum; the key determines which elements are dropped."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, part: Tensor, gain: Tensor, shift: Tensor, epsilon: float, drop: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        added = torch.empty_like(x)
        y, mean, inverse_std = _normed(x, part, gain, shift, epsilon, drop, torch.empty_like(x), added)
        ctx.save_for_backward(added, gain, mean, inverse_std)
        ctx.epsilon, ctx.drop = epsilon, drop
        ctx.set_materialize_grads(False)
        return added, y

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor | None, grad_y: Tensor | None) -> tuple[Tensor | None, ...]:
        added, gain, mean, inverse_std = ctx.saved_tensors
        grad_sum, grad_y = (x if x is None else x.contiguous() for x in (grad_sum, grad_y))
        gradients = [x for x in (grad_sum, grad_y) if x is not None]
        if needs_operators(*gradients) or grad_y is None or not served(*gradients):
            return *_differentiable_backward(added, gain, ctx.epsilon, ctx.drop, grad_sum, grad_y), None, None
        (rows, width), threads = _sizes(added), torch.get_num_threads()
        dx = torch.empty_like(added)
        dpart = torch.empty_like(added) if ctx.drop[1] else None
        dgain, dshift = added.new_empty(2, kernels().fused_tasks(rows, threads), width)
        kernels().add_norm_backward(
            (rows, width),
            *_pointers(added, gain, mean, inverse_std, grad_sum, grad_y),
            ctx.drop,
            *_pointers(dx, dpart, dgain, dshift),
            threads,
        )
        return dx, dx if dpart is None else dpart, dgain.sum(0), dshift.sum(0), None, None


def _differentiable_backward(
    added: Tensor, gain: Tensor, epsilon: float, drop: tuple[int, int], grad_sum: Tensor | None, grad_y: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return differentiable gradients of x, part, gain and shift, computed by PyTorch operators."""
    dx, dgain, dshift = grad_sum, None, None
    if grad_y is not None:
        unit = F.layer_norm(added, added.shape[-1:], eps=epsilon)
        inverse_std = (added.var(-1, correction=0, keepdim=True) + epsilon).rsqrt()
        scaled = grad_y * gain
        mean_part, unit_part = scaled.mean(-1, keepdim=True), (scaled * unit).mean(-1, keepdim=True)
        dnorm = (scaled - mean_part - unit * unit_part) * inverse_std
        dx = dnorm if dx is None else dx + dnorm
        dgain, dshift = (x.reshape(-1, len(gain)).sum(0) for x in (grad_y * unit, grad_y))
    assert dx is not None, "autograd calls backward with at least one gradient"
    keep = keep_mask(drop, *_sizes(added)).view(added.shape)
    return dx, torch.where(keep, dx * (LEVELS / (LEVELS - drop[1])), 0.0), dgain, dshift


def keep_mask(drop: tuple[int, int], rows: int, width: int) -> Tensor:
    """Return which elements the kernels keep for (key, number of byte values that drop): (rows, width), boolean.

    Each element has its own random byte. Four bytes come from one hash of the key and the index of their word.

    >>> keep_mask((7, 128), 2, 6).int().tolist()
    [[1, 1, 1, 0, 0, 1], [1, 0, 1, 1, 0, 0]]
    """
    (key, dropped), words = drop, -(-width // 4)
    word_index = torch.arange(rows * words) & _WORD
    hashed = _mix(_mix(word_index ^ (key & _WORD)) + (key >> 32 & _WORD) & _WORD)
    random_bytes = hashed[:, None] >> torch.arange(0, 32, 8) & 255  # (words of all rows, 4)
    return random_bytes.view(rows, -1)[:, :width] >= dropped


def _mix(x: Tensor) -> Tensor:
    x = (x ^ x >> 16) * 0x7FEB352D & _WORD
    x = (x ^ x >> 15) * 0x846CA68B & _WORD
    return x ^ x >> 16
