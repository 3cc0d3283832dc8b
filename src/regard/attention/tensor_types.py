"""Checks which types of tensors the operator accepts.

A subclass of `torch.Tensor` may store its data elsewhere or interpret it differently: a `CausalBias` is a tensor of
uninitialized memory that represents a causal mask. Reading such memory gives wrong results without an error. So a
subclass is accepted only if it is listed here, or if it overrides neither `__torch_function__` nor
`__torch_dispatch__`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias


def is_plain(x: Tensor) -> bool:
    """Return whether the memory of x may be read: a dense, non-nested tensor or nn.Parameter."""
    return (type(x) is Tensor or type(x) is Parameter) and not x.is_nested and x.layout == torch.strided


def require_supported(where: str, name: str, x: Tensor) -> None:
    """Raise ValueError unless x is a dense tensor of a type whose operators behave like those of a plain tensor."""
    if is_plain(x):
        return
    if x.is_nested:
        raise ValueError(
            f"{where}: {name} must be a tensor of one shape; got a nested tensor. For sequences of different lengths "
            "try regard.attend_packed(query.values(), key.values(), value.values(), lengths), or "
            "torch.nested.to_padded_tensor and regard.attend(..., lengths=...)."
        )
    if not _keeps_operators(type(x)):
        raise ValueError(
            f"{where}: {name} must be a plain tensor or nn.Parameter; got {type(x).__name__}, a subclass that may "
            f"give its memory another meaning. {_remedy(name, x)}"
        )
    if x.layout != torch.strided:
        raise ValueError(
            f"{where}: {name} must be dense; got layout {str(x.layout).removeprefix('torch.')}. Try {name}.to_dense()."
        )


def is_causal_bias(mask: object) -> TypeGuard[CausalBias]:
    kind = type(mask)  # by its name, because importing the class imports the compiler: 1.5 seconds for everyone
    return kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"


def causal_bias_offset(bias: CausalBias, queries: int, keys: int) -> int:
    """Return the offset of the causal mask that a `CausalBias` represents. Raises ValueError if sizes differ.

    >>> from torch.nn.attention.bias import causal_lower_right
    >>> causal_bias_offset(causal_lower_right(4, 6), 4, 6)
    2
    """
    from torch.nn.attention.bias import CausalVariant

    variant = getattr(bias, "variant", None)
    if not isinstance(variant, CausalVariant):
        raise ValueError(
            "attend: attn_mask must be a CausalBias as its constructor returned it; got the result of an operation on "
            "one, which holds no numbers. Pass causal_upper_left(…) or causal_lower_right(…) itself."
        )
    if bias.seq_len_q != queries or bias.seq_len_kv != keys:
        raise ValueError(
            f"attend: attn_mask (a CausalBias of {bias.seq_len_q}×{bias.seq_len_kv}) must have the size of the scores, "
            f"{queries}×{keys}."
        )
    return keys - queries if variant == CausalVariant.LOWER_RIGHT else 0


def _keeps_operators(kind: type[Tensor]) -> bool:
    """Return whether PyTorch's operators behave on this type as on a plain tensor."""
    if issubclass(kind, (FakeTensor, FunctionalTensor)) or kind is _async_collective():
        return True
    function, dispatch = kind.__torch_function__, kind.__torch_dispatch__
    inherited = getattr(function, "__func__", function) is Tensor.__torch_function__.__func__  # type: ignore[attr-defined]  # a classmethod, declared as a function
    disabled = function is torch._C._disabled_torch_function_impl
    return (inherited or disabled) and dispatch is torch._C._disabled_torch_dispatch_impl


def _async_collective() -> type | None:
    """Return the type of results of asynchronous collectives, if loaded. Every operator waits for the data."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    return None if module is None else module.AsyncCollectiveTensor


def _remedy(name: str, x: Tensor) -> str:
    if hasattr(x, "to_local"):
        return f"Try {name}.to_local()."
    return (
        f"Try {name}.as_subclass(torch.Tensor) if its memory holds the numbers, or handle regard.attend in its "
        "__torch_function__."
    )
