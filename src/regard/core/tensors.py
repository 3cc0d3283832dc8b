"""Shapes, dtypes and kinds of tensors, for checks and messages; what transforms or hooks computations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import guard_or_true


def transformed() -> bool:
    """Whether a `torch.func` transformation (vmap, grad, jvp) is under way, which hides values from Python."""
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0  # of all that tell it, what torch.compile follows


def traced() -> bool:
    """Whether a compiler, a dispatch mode, `torch.func` or forward-mode AD has to see operators of PyTorch here."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    return bool(watched) or transformed() or forward_ad._current_level >= 0


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling `module` runs `kind.forward` and nothing else: no subclass, hook or parametrisation."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) is kind and not hooks


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast casts to on this device; None where it is off."""
    if not torch._C._is_any_autocast_enabled():  # a quarter of the time of asking for one device
        return None
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are made in: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widen(tensor: Tensor) -> Tensor:
    dtype = wide(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def readable(*given: Tensor | None) -> bool:
    """Whether values may steer Python here: not while tracing, under `vmap`, or where there are none."""
    if torch.compiler.is_compiling():
        return False
    return not transformed() and not any(x is not None and x.is_meta for x in given)


def broadcasts(given: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a shape broadcasts to another without making it larger."""
    if len(given) > len(target):
        return False
    return all(_fits(n, size) for n, size in zip(reversed(given), reversed(target), strict=False))


def _fits(size: int, target: int) -> bool:
    """Whether a dimension broadcasts to another. A size that depends on data is left to the operators that follow."""
    if torch.compiler.is_compiling():
        return guard_or_true(size == target) or guard_or_true(size == 1)
    return size in (1, target)


def shape(x: Tensor) -> str:
    return shape_of(x.shape)


def shape_of(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes)) or "a number"


def dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
