"""Tensor methods of a map, so that it can be used like the dense tensor of weights.

Every method computes the weights when it is called. It raises an error that states the size if they exceed the limit of
`dense`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .request import Request
    from .statistic import Statistic


class TensorLike:
    """Mixin with the methods of a tensor, for a class that has `dense`."""

    if TYPE_CHECKING:
        request: Request

        def dense(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        @property
        def known(self) -> Statistic | None: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> torch.dtype: ...
        @property
        def device(self) -> torch.device: ...

    requires_grad = False

    def __getattr__(self, name: str) -> Any:
        """Return any other tensor method, bound to the dense weights: `m.argmax(-1)`, `m.permute(…)`, `m.tolist()`."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"'{type(self).__name__}' has no attribute {name!r}")
        return getattr(self.dense(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply a PyTorch function to the dense weights: `torch.stack(maps)`, `torch.allclose(m, weights)`."""
        if getattr(func, "__name__", "") in ("matmul", "__matmul__") and not isinstance(args[0], TensorLike):
            return args[1].__rmatmul__(args[0])  # streamed
        return func(*_weights(args), **{name: _weights(value) for name, value in (kwargs or {}).items()})

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def numpy(self, *, force: bool = False) -> Any:
        return self.dense().cpu().numpy()

    def size(self, dim: int | None = None) -> Any:
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def detach(self) -> Self:
        """Return the map itself, which has no autograd graph."""
        return self

    def clone(self) -> Self:
        return self._with(self.request.with_tensors([None if x is None else x.clone() for x in self.request.tensors]))

    def cpu(self) -> Self:
        return self.to("cpu")

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return a map for another device, or a dense tensor for another dtype."""
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None and dtype != self.dtype:
            return self.dense().to(*args, **kwargs)
        if device is None or torch.device(device) == self.device:
            return self
        mask = self.request.mask
        offset = mask.offset.to(device) if isinstance(mask.offset, Tensor) else mask.offset
        lengths = mask.lengths.to(device) if isinstance(mask.lengths, Tensor) else mask.lengths
        moved = replace(self.request, mask=replace(mask, offset=offset, lengths=lengths))
        return self._with(moved.with_tensors([None if x is None else x.to(device) for x in moved.tensors]))

    def float(self) -> Any:
        return self.to(torch.float32)

    def mean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Return the mean, as for a tensor. Over heads or batch entries, sum one entry at a time to save memory."""
        rank = len(self.shape)
        if not isinstance(dim, int) or dim % rank >= rank - 2:
            return self.dense().mean(tuple(dim) if isinstance(dim, Sequence) else dim, keepdim)
        at, count = dim % rank, self.shape[dim]
        total = self[(slice(None),) * at + (0,)]
        for entry in range(1, count):
            total += self[(slice(None),) * at + (entry,)]
        total /= count
        return total.unsqueeze(at) if keepdim else total

    def _with(self, request: Request) -> Self:
        known = self.known
        known = None if known is None else known.map(lambda x: x.to(request.device, copy=True))
        result = type(self)(request, known)  # type: ignore[call-arg]
        result.query_tokens, result.key_tokens = self.query_tokens, self.key_tokens  # type: ignore[attr-defined]
        return result


def _operator(name: str) -> Any:
    def apply(self: TensorLike, *others: Any) -> Any:
        return getattr(self.dense(), name)(*_weights(others))

    apply.__name__ = name
    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "radd", "rsub", "rmul", "neg", "gt", "lt", "ge", "le"):
    setattr(TensorLike, f"__{_name}__", _operator(f"__{_name}__"))


def _weights(argument: Any) -> Any:
    """Replace maps in arguments by their dense weights."""
    if isinstance(argument, TensorLike):
        return argument.dense()
    if type(argument) in (list, tuple):
        return type(argument)(_weights(x) for x in argument)
    return argument
