"""Which of its arguments a PyTorch function overwrites.

A watch copies recorded tensors before they are overwritten. Version counters reveal writes that it does not notice, but
tensors of inference mode have none. So the rules cover every way to write that a function mode can see:

- in-place functions by PyTorch's naming convention (`add_`, `__setitem__`, `nn.init.zeros_`),
- operators whose schema declares a mutable argument, custom ones included,
- functions of `torch.nn.functional` with an option: `inplace=True`, or `max_norm` of embeddings,
- functions that share a tensor's memory with other libraries, which may write at any time (`Tensor.numpy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

WriteRule: TypeAlias = Callable[[Sequence[Any], dict[str, Any]], list[Any]]
"""Returns the tensors, or lists of tensors, that a call with these arguments overwrites."""

SHARES_MEMORY = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)


@lru_cache(maxsize=8192)
def write_rule(func: Any) -> WriteRule | None:
    """Return the rule of a function, or None if it never writes into its arguments, apart from `out`.

    >>> x = [0.0]
    >>> write_rule(F.relu)([x], {}), write_rule(F.relu)([x], {"inplace": True}), write_rule(F.gelu) is None
    ([], [[0.0]], True)
    """
    if func is Tensor.__setitem__:
        return _assigned
    if isinstance(func, OpOverload | OpOverloadPacket):
        return Mutable.of(func)
    if func in SHARES_MEMORY or _overwrites_by_name(getattr(func, "__name__", "")):
        return _first
    code = getattr(func, "__code__", None)
    return None if code is None else WriteOption.of(func, code)


def _overwrites_by_name(name: str) -> bool:
    if name.startswith("__"):
        return name == "__set__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    return name.endswith("_")


def _first(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [args[0]] if args else list(kwargs.values())[:1]  # nn.init passes everything by name


def _assigned(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the part of `x` that `x[index] = value` overwrites, or `x` if it is not a view."""
    x, index = args[:2]
    parts = index if isinstance(index, tuple) else (index,)
    if all(isinstance(part, slice) or part is Ellipsis for part in parts):
        return [x.detach()[index]]
    return [x]


@dataclass(frozen=True)
class Mutable:
    """The rule of an operator: the arguments that its schema, or any of its overloads, declares as mutable."""

    positions: frozenset[int]
    names: frozenset[str]

    @classmethod
    def of(cls, func: OpOverload[..., Any] | OpOverloadPacket[..., Any]) -> Mutable | None:
        overloads = [func] if isinstance(func, OpOverload) else [getattr(func, name) for name in func.overloads()]
        mutable = [
            (position, argument)
            for overload in overloads
            for position, argument in enumerate(overload._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        positions = frozenset(position for position, argument in mutable if not argument.kwarg_only)
        names = frozenset(argument.name for _, argument in mutable) - {"out"}
        return cls(positions, names) if positions or names else None

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        by_position = [args[position] for position in self.positions if position < len(args)]
        return by_position + [kwargs[name] for name in self.names if name in kwargs]


@dataclass(frozen=True)
class WriteOption:
    """The rule of a Python function that writes into one argument only if another one asks for it."""

    target: str
    target_position: int
    option: str
    option_position: int

    @classmethod
    def of(cls, func: Any, code: CodeType) -> WriteOption | None:
        names = code.co_varnames[: code.co_argcount]
        if func in (F.embedding, F.embedding_bag):
            return cls("weight", names.index("weight"), "max_norm", names.index("max_norm"))
        return cls(names[0], 0, "inplace", names.index("inplace")) if "inplace" in names else None

    def used(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Return whether this call may write."""
        by_position = self.option_position < len(args)
        value = args[self.option_position] if by_position else kwargs.get(self.option)
        return value is not None and value is not False

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        if not self.used(args, kwargs):
            return []
        return [args[self.target_position] if self.target_position < len(args) else kwargs.get(self.target)]
