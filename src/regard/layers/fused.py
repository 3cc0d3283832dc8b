"""What a block does between two products, in one pass over memory each where the native kernels serve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from ..attention.native import engine
from ..attention.native.plan import address, kernels
from ..attention.validation import PLAIN
from ..core.tensors import transformed
from .dropout import LEVELS, LOWEST, Dropout

_WORD = 2**32 - 1


def gelu_(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """gelu(x + b) into y, which may be x, without a gradient: (N, W), (W,) → (N, W).

        gelu(x) = x·Φ(x)

    Paper: Hendrycks and Gimpel 2016. Differs from `F.gelu`: Φ of far negative numbers keeps its digits.

    >>> x = torch.tensor([[1.0, -1.0]])
    >>> gelu_(x, torch.tensor([1.0, 1.0]), x)
    tensor([[1.9545, 0.0000]])
    """
    if not _served(x, bias, y):
        return y.copy_(F.gelu(x + bias))
    kernels().gelu(_sizes(x), *_pointers(x, bias, y), torch.get_num_threads())
    return y


def add_norm(x: Tensor, part: Tensor, dropout: Dropout, norm: nn.Module) -> Tensor:
    """norm(x + dropout(part)): (..., W) each.

    >>> x, part = torch.randn(2, 5, 6)
    >>> norm = nn.LayerNorm(6)
    >>> torch.allclose(add_norm(x, part, Dropout(0.0), norm), norm(x + part), atol=1e-6)
    True
    """
    if not _fuses(x, part, dropout, norm):
        found: Tensor = norm(x + dropout(part))
        return found
    return _both(x, part, dropout, norm)[1]


def add_and_norm(x: Tensor, part: Tensor, dropout: Dropout, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """x + dropout(part), and its norm: (..., W) each."""
    if not _fuses(x, part, dropout, norm):
        x = x + dropout(part)
        return x, norm(x)
    return _both(x, part, dropout, norm, keep=True)


def add_norm_(x: Tensor, part: Tensor, bias: Tensor, norm: nn.LayerNorm) -> Tensor:
    """norm(x + part + bias) for inference, in the memory of `part`: (N, W), (N, W), (W,) → (N, W)."""
    if not _served(x, part, bias, norm.weight, norm.bias):
        return part.copy_(norm(x + part + bias))
    return _normed(x, part, norm.weight, norm.bias, norm.eps, (0, 0), part, bias=bias)[0]


def traced() -> bool:
    """Whether somebody traces, transforms or watches what is computed here, and has to see operations of torch."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    return bool(watched) or transformed() or forward_ad._current_level >= 0


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling it does what this class says and nothing besides: no subclass, no hook, no parametrisation."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) is kind and not hooks


def _fuses(x: Tensor, part: Tensor, dropout: Dropout, norm: Any) -> bool:
    """Whether the kernels serve, and what they do is all that would be done."""
    if not (untouched(norm, nn.LayerNorm) and untouched(dropout, Dropout)):
        return False
    if norm.weight is None or norm.bias is None or (dropout.training and dropout.dropped == LEVELS):
        return False
    return x.shape == part.shape and norm.weight.ndim == 1 and _served(x, part, norm.weight, norm.bias)


def _both(x: Tensor, part: Tensor, dropout: Dropout, norm: Any, keep: bool = False) -> tuple[Tensor, Tensor]:
    """The sum and its norm; in place of the sum anything where it need not be kept."""
    dropped = dropout.dropped if dropout.training else 0
    key = int(torch.empty((), dtype=torch.int64).random_(LOWEST, None)) if dropped else 0
    inputs = (x, part, norm.weight, norm.bias)
    if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
        return _AddNorm.apply(*inputs, norm.eps, (key, dropped))
    added = torch.empty_like(x) if keep else None
    y, _, _ = _normed(*inputs, norm.eps, (key, dropped), torch.empty_like(x), added)
    return y if added is None else added, y


def _served(*tensors: Tensor) -> bool:
    """Whether the kernels are there, and these are plain numbers in memory."""
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
        if torch.is_grad_enabled() or of_y is None or not _served(*arrived):  # gradients of gradients are PyTorch's
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
