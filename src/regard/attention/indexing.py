"""Parse an index such as `m[0, 3, 100:120]` into leading dimensions, rows and columns."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import SupportsIndex, TypeAlias

import torch
from torch import Tensor

from .masks import Span
from .request import Index

IndexPart: TypeAlias = SupportsIndex | slice | EllipsisType | Sequence[int] | Sequence[bool] | Tensor
MapIndex: TypeAlias = IndexPart | tuple[IndexPart, ...]
"""Index of a map: integers, slices, `...`, and at most one list or tensor."""


@dataclass(frozen=True)
class Lookup:
    """One index per dimension, applied independently. An integer drops its dimension, as in a tensor."""

    lead: tuple[Index, ...]
    rows: Index
    cols: Index

    @classmethod
    def of(cls, index: MapIndex, shape: Sequence[int]) -> Lookup:
        """Parse an index. Raises IndexError where a tensor would, and for an index that maps do not support."""
        parts = list(index) if isinstance(index, tuple) else [index]
        ellipses = [position for position, part in enumerate(parts) if part is Ellipsis]
        if len(ellipses) > 1:
            raise IndexError("map: an index must contain at most one `...`; got more.")
        position = ellipses[0] if ellipses else len(parts)
        count = len(parts) - len(ellipses)
        if count > len(shape):
            raise IndexError(
                f"map: an index must have at most {len(shape)} dimensions, for shape {tuple(shape)}; got {count}."
            )
        parts[position : position + 1] = [slice(None)] * (len(shape) - count)
        parsed = [_parse(part, size, dim) for dim, (part, size) in enumerate(zip(parts, shape, strict=True))]
        if sum(isinstance(part, Tensor) for part in parsed) > 1:
            raise IndexError(
                "map: an index must contain at most one list, tensor or slice with a step; got more. "
                "Index twice, or use dense() and index that."
            )
        return cls(tuple(parsed[:-2]), parsed[-2], parsed[-1])

    def result(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the result for a map of this shape."""
        sizes = (_size(part, n) for part, n in zip((*self.lead, self.rows, self.cols), shape, strict=True))
        return tuple(n for n in sizes if n is not None)

    def squeeze(self, block: Tensor) -> Tensor:
        """Drop the dimension of rows or columns if it was indexed by an integer."""
        if isinstance(self.cols, int):
            block = block.squeeze(-1)
            return block.squeeze(-1) if isinstance(self.rows, int) else block
        return block.squeeze(-2) if isinstance(self.rows, int) else block


def span(part: Index) -> Span:
    return slice(part, part + 1) if isinstance(part, int) else part


def _size(part: Index, whole: int) -> int | None:
    if isinstance(part, int):
        return None
    return len(part) if isinstance(part, Tensor) else len(range(*part.indices(whole)))


def _parse(part: IndexPart, size: int, dim: int) -> Index:
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        if step < 1:
            raise IndexError(f"map: the step of a slice ({step}) must be positive. Flip the result instead.")
        if step > 1:
            return torch.arange(start, stop, step)
        return slice(start, max(start, stop))
    if isinstance(part, (list, range)) or getattr(part, "ndim", 0) > 0:
        return _parse_tensor(torch.as_tensor(list(part) if isinstance(part, range) else part), size, dim)
    try:
        number = operator.index(part)  # type: ignore[arg-type]  # raises TypeError for anything else
    except TypeError:
        raise IndexError(
            f"map: index {part!r} of dimension {dim} must be an integer, slice, ..., list or 1-D tensor."
        ) from None
    if not -size <= number < size:
        raise IndexError(f"map: index {number} is out of bounds for dimension {dim} with size {size}.")
    return number % size


def _parse_tensor(part: Tensor, size: int, dim: int) -> Tensor:
    if part.ndim != 1:
        raise IndexError(f"map: a list or tensor in an index must be 1-D; got {part.ndim} dimensions.")
    if part.dtype == torch.bool:
        if len(part) != size:
            raise IndexError(f"map: a boolean index must be {size} long in dimension {dim}; got {len(part)}.")
        return part.nonzero().flatten()
    if part.is_floating_point() and len(part):  # torch.as_tensor([]) is float32
        raise IndexError(f"map: a list or tensor in an index must contain integers; got {part.dtype}.")
    if len(part) and not (-size <= int(part.min()) and int(part.max()) < size):
        raise IndexError(f"map: an index of {part.tolist()} is out of bounds for dimension {dim} with size {size}.")
    return torch.where(part < 0, part + size, part).long()
