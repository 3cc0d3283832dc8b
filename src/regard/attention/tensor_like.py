"""Tensor methods of a map, so that it can be used like the dense tensor of weights.

Every method computes the weights when it is called. It raises an error that states the size if they exceed the limit of
`dense`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Number
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from .indexing import MapIndex
    from .request import Request
    from .statistic import Statistic


class TensorLike:
    """Mixin with the methods of a tensor, for a class that has `dense`."""

    if TYPE_CHECKING:

        @property
        def request(self) -> Request: ...
        def dense(self) -> Tensor: ...
        def __getitem__(self, index: MapIndex) -> Tensor: ...
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

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        array: NDArray[np.generic] = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        export: Any = self.dense().__dlpack__
        return export(**options)  # used by `torch.as_tensor(m)` and other libraries

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device=self.device).__dlpack_device__()

    def numpy(self, *, force: bool = False) -> NDArray[np.float32 | np.float64]:
        """Return the dense weights as an array.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.numpy().argmax(-1).tolist()
        [0, 1]
        """
        array: NDArray[np.float32 | np.float64] = self.dense().cpu().numpy()
        return array

    @overload
    def size(self, dim: None = None) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> torch.Size | int:
        """Return the shape, or the size of one dimension.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.size(), m.size(-1), m.dim(), m.numel()
        (torch.Size([2, 3]), 3, 2, 6)
        """
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.dim()
        2
        """
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of weights.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.numel()
        6
        """
        return math.prod(self.shape)

    def detach(self) -> Self:
        """Return the map itself, which has no autograd graph.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.detach() is m
        True
        """
        return self

    def clone(self) -> Self:
        """Return a map with copies of the queries and keys, which later in-place writes do not change.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> copy = m.clone()
        >>> m.request.q.zero_().any(), copy.request.q.any()
        (tensor(False), tensor(True))
        """
        return self._with(self.request.with_tensors([None if x is None else x.clone() for x in self.request.tensors]))

    def cpu(self) -> Self:
        """Return a map whose tensors are in the memory of the CPU.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.cpu().device
        device(type='cpu')
        """
        return self.to("cpu")

    @overload
    def to(self, device: str | int | torch.device, /, *, non_blocking: bool = False, copy: bool = False) -> Self: ...
    @overload
    def to(self, dtype: torch.dtype, /, *, non_blocking: bool = False, copy: bool = False) -> Self | Tensor: ...
    @overload
    def to(self, *args: object, **kwargs: object) -> Self | Tensor: ...
    def to(self, *args: object, **kwargs: object) -> Self | Tensor:
        """Return a map for another device, or a dense tensor for another dtype.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.to(torch.float64).dtype, m.to("cpu") is m
        (torch.float64, True)
        """
        parse: Any = torch._C._nn._parse_to
        device, dtype, _, _ = parse(*args, **kwargs)
        if dtype is not None and dtype != self.dtype:
            convert: Any = self.dense().to
            converted: Tensor = convert(*args, **kwargs)
            return converted
        if device is None or torch.device(device) == self.device:
            return self
        mask = self.request.mask
        offset = mask.offset.to(device) if isinstance(mask.offset, Tensor) else mask.offset
        lengths = mask.lengths.to(device) if isinstance(mask.lengths, Tensor) else mask.lengths
        moved = replace(self.request, mask=replace(mask, offset=offset, lengths=lengths))
        return self._with(moved.with_tensors([None if x is None else x.to(device) for x in moved.tensors]))

    def float(self) -> Self | Tensor:
        """Return the map itself if its dtype is float32, else the dense weights in float32.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.float() is m
        True
        """
        return self.to(torch.float32)

    def mean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Return the mean, as for a tensor. Over heads or batch entries, sum one entry at a time to save memory.

        >>> import regard
        >>> m = regard.attend(torch.eye(2, 4), torch.eye(3, 4), torch.eye(3, 4), return_map=True)[1]
        >>> m.mean(-1)
        tensor([0.3333, 0.3333])
        """
        rank = len(self.shape)
        if not isinstance(dim, int) or dim % rank >= rank - 2 or not self.shape[dim]:
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
        result = type(self)(request, known)  # type: ignore[call-arg]  # the constructor of a map
        result.query_tokens, result.key_tokens = self.query_tokens, self.key_tokens  # type: ignore[attr-defined]  # tokens of a map
        return result


def _operator(name: str) -> Any:
    def apply(self: TensorLike, *others: Any) -> Any:
        return getattr(self.dense(), name)(*_weights(others))

    apply.__name__ = name
    return apply


def _comparison(name: str) -> Any:
    compare = _operator(name)

    def apply(self: TensorLike, other: Any) -> Any:
        comparable = isinstance(other, Number) or hasattr(other, "__array__")
        return compare(self, other) if comparable else NotImplemented

    apply.__name__ = name
    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "radd", "rsub", "rmul", "rtruediv", "rpow"):
    setattr(TensorLike, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("neg", "abs", "gt", "lt", "ge", "le"):
    setattr(TensorLike, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("eq", "ne"):  # after the class statement, so that maps remain hashable
    setattr(TensorLike, f"__{_name}__", _comparison(f"__{_name}__"))


def _weights(argument: Any) -> Any:
    """Replace maps in arguments by their dense weights."""
    if isinstance(argument, TensorLike):
        return argument.dense()
    if type(argument) in (list, tuple):
        return type(argument)(_weights(x) for x in argument)
    return argument
