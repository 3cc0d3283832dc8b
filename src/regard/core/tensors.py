"""Helpers for tensors: shapes and dtypes for checks and messages; detection of transforms, tracing and hooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def transformed() -> bool:
    """Return whether a `torch.func` transform (vmap, grad, jvp) is active. Values cannot be read inside one.

    The result is a constant to torch.compile, which cannot trace the call before 2.13. Tracing enters the transforms of
    the compiled code itself, and compiled code is guarded on those outside.
    """
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


# This is what torch.compiler.assume_constant_result sets, but that imports the compiler, which takes 1.5 seconds.
transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def batched(x: Tensor) -> bool:
    """Return whether x is a batch inside `torch.vmap`, or a batch of gradients under `is_grads_batched=True`."""
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x)


def traced() -> bool:
    """Return whether a compiler, a dispatch mode, `torch.func` or forward-mode AD must see PyTorch operators."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    return bool(watched) or transformed() or forward_ad._current_level >= 0


def is_unmodified(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether `module(...)` runs only `kind.forward`: no subclass, hook or parametrization."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) is kind and not hooks


def operators_are_observed(module: nn.Module) -> bool:
    """Return whether a dispatch mode or autocast must see each operator of a module, so that none may be replaced."""
    autocast = torch.is_autocast_enabled(next(module.parameters()).device.type)
    return bool(torch._C._len_torch_dispatch_stack()) or autocast


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype autocast uses on `device`, or None if autocast is off."""
    if not torch._C._is_any_autocast_enabled():  # four times as fast as the query for one device
        return None
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for accumulation: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widen(tensor: Tensor) -> Tensor:
    dtype = wide(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def readable(*tensors: Tensor | None) -> bool:
    """Return whether Python code may branch on tensor values: not while compiling, under `vmap` or on meta tensors."""
    if torch.compiler.is_compiling():
        return False
    return not transformed() and not any(x is not None and x.is_meta for x in tensors)


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether `shape` broadcasts to `target` without enlarging it."""
    if len(shape) > len(target):
        return False
    last = target[len(target) - len(shape) :]  # as many as in shape: torch.compile 2.8 cannot zip other lengths
    return all(_fits(n, size) for n, size in zip(shape, last, strict=True))


def _fits(size: int, target: int) -> bool:
    """Return whether one dimension broadcasts to another. Data-dependent sizes are left to later operators."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_or_true  # imports SymPy

        return guard_or_true(size == target) or guard_or_true(size == 1)
    return size in (1, target)


def shape(x: Tensor) -> str:
    return shape_of(x.shape)


def shape_of(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes)) or "a number"


def dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def version(x: Tensor) -> int:
    """Return the version counter of a tensor. Inference-mode tensors have none; 0 is returned for them."""
    return 0 if x.is_inference() else x._version
