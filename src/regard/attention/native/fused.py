"""Fused elementwise kernels: GELU with its bias; dropout, sum and layer norm. Each is one pass over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.tensors import traced
from ..validation import PLAIN
from . import engine
from .plan import address, kernels

LEVELS = 256
"""Values of a random byte: the share dropped is a multiple of 1/256."""
LOWEST = torch.iinfo(torch.int64).min
"""From here on a draw of int64 has 64 random bits."""
_WORD = 2**32 - 1


def gelu_(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """gelu(x + b) into y, which may be x, without a gradient: (N, W), (W,) → (N, W).

        gelu(x) = x·Φ(x)

    Paper: Hendrycks and Gimpel 2016. Differs from `F.gelu`: Φ of far negative numbers keeps its digits.

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
        epsilon: of the norm.
        dropped: how many of the 256 values of a random byte drop an element, at most 255.
        keep_sum: if False and no gradient is needed, the first result is undefined.
    """
    key = int(torch.empty((), dtype=torch.int64).random_(LOWEST, None)) if dropped else 0
    inputs = (x, part, gain, shift)
    if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
        return _AddNorm.apply(*inputs, epsilon, (key, dropped))
    added = torch.empty_like(x) if keep_sum else None
    y, _, _ = _normed(*inputs, epsilon, (key, dropped), torch.empty_like(x), added)
    return y if added is None else added, y


def add_norm_(x: Tensor, part: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """The layer norm of x + part + bias in the memory of `part`, without a gradient; all tensors must be `served`."""
    return _normed(x, part, gain, shift, epsilon, (0, 0), part, bias=bias)[0]


def served(*tensors: Tensor) -> bool:
    """Whether the kernels are available and can read these: dense float32 tensors on the CPU, not empty."""
    if engine.module is None or traced():
        return False
    return all(
        type(x) in PLAIN and x.dtype == torch.float32 and x.is_cpu and x.is_contiguous() and x.numel() for x in tensors
    )


def _sizes(x: Tensor) -> tuple[int, int]:
    """Rows and numbers of a row."""
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
    """y, and the mean and the rate of each row; the sum into `added` where that is given."""
    sizes = _sizes(x)
    mean, rate = x.new_empty(2, sizes[0])
    kernels().add_norm(
        sizes,
        *_pointers(x, part, bias, gain, shift),
        epsilon,
        drop,
        *_pointers(added, y, mean, rate),
        torch.get_num_threads(),
    )
    return y, mean, rate


def _pointers(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(map(address, tensors))


class _AddNorm(torch.autograd.Function):
    """It keeps the sum; what is dropped follows from the key."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, part: Tensor, gain: Tensor, shift: Tensor, epsilon: float, drop: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        added = torch.empty_like(x)
        y, mean, rate = _normed(x, part, gain, shift, epsilon, drop, torch.empty_like(x), added)
        ctx.save_for_backward(added, gain, mean, rate)
        ctx.epsilon, ctx.drop = epsilon, drop
        ctx.set_materialize_grads(False)
        return added, y

    @staticmethod
    def backward(ctx: Any, of_sum: Tensor | None, of_y: Tensor | None) -> tuple[Tensor | None, ...]:
        added, gain, mean, rate = ctx.saved_tensors
        of_sum, of_y = (one if one is None else one.contiguous() for one in (of_sum, of_y))
        arrived = [one for one in (of_sum, of_y) if one is not None]
        if torch.is_grad_enabled() or of_y is None or not served(*arrived):  # gradients of gradients are PyTorch's
            return *_explicit(added, gain, ctx.epsilon, ctx.drop, of_sum, of_y), None, None
        (rows, width), threads = _sizes(added), torch.get_num_threads()
        dx = torch.empty_like(added)
        dpart = torch.empty_like(added) if ctx.drop[1] else None
        dgain, dshift = added.new_empty(2, kernels().tasks_between(rows, threads), width)
        kernels().add_norm_backward(
            (rows, width),
            *_pointers(added, gain, mean, rate, of_sum, of_y),
            ctx.drop,
            *_pointers(dx, dpart, dgain, dshift),
            threads,
        )
        return dx, dx if dpart is None else dpart, dgain.sum(0), dshift.sum(0), None, None


def _explicit(
    added: Tensor, gain: Tensor, epsilon: float, drop: tuple[int, int], of_sum: Tensor | None, of_y: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of x, part, gain and shift by operations of torch, which have gradients themselves."""
    dx, dgain, dshift = of_sum, None, None
    if of_y is not None:
        unit = F.layer_norm(added, added.shape[-1:], eps=epsilon)
        rate = (added.var(-1, correction=0, keepdim=True) + epsilon).rsqrt()
        scaled = of_y * gain
        less, towards = scaled.mean(-1, keepdim=True), (scaled * unit).mean(-1, keepdim=True)
        through = (scaled - less - unit * towards) * rate
        dx = through if dx is None else dx + through
        dgain, dshift = (one.reshape(-1, len(gain)).sum(0) for one in (of_y * unit, of_y))
    assert dx is not None, "autograd asks for no gradient of nothing"
    keep = kept(drop, *_sizes(added)).view(added.shape)
    return dx, torch.where(keep, dx * (LEVELS / (LEVELS - drop[1])), 0.0), dgain, dshift


def kept(drop: tuple[int, int], rows: int, width: int) -> Tensor:
    """Which numbers the kernels keep under (key, values of a byte that drop): (rows, width), booleans.

    Each place has a byte of its own, four of them a hash of the key and their common place.

    >>> kept((7, 128), 2, 6).int().tolist()
    [[1, 1, 1, 0, 0, 1], [1, 0, 1, 1, 0, 0]]
    """
    (key, below), words = drop, -(-width // 4)
    place = torch.arange(rows * words) & _WORD
    hashed = _mixed(_mixed(place ^ (key & _WORD)) + (key >> 32 & _WORD) & _WORD)
    of_places = hashed[:, None] >> torch.arange(0, 32, 8) & 255  # (words of all rows, 4)
    return of_places.view(rows, -1)[:, :width] >= below


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ x >> 16) * 0x7FEB352D & _WORD
    x = (x ^ x >> 15) * 0x846CA68B & _WORD
    return x ^ x >> 16
