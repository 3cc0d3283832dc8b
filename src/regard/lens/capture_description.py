"""The description in a capture, read field by field: every value has a type and bounds, or is refused in words.

Fields({"scale": 0.5}, {}, "call 0").number("scale")     0.5
Fields({"scale": "x"}, {}, "call 0").number("scale")     ValueError: call 0: scale ('x') must be a finite number
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST = 2**40
"""Bound of every integer: farther than any sequence is long."""
LONGEST = 2**20
"""Characters of a text."""
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Fields:
    """An object of the description; `where` names it in messages."""

    def __init__(self, values: object, tensors: Mapping[str, Tensor], where: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{where} ({_short(values)}) must be an object")
        self._values, self._tensors, self._where = values, tensors, where

    def refuse(self, name: str, rule: str) -> ValueError:
        return ValueError(f"{self._where}: {name} ({_short(self._values.get(name))}) must be {rule}")

    def value(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(
                f"{self._where}: {name} must be there; got {', '.join(map(_short, self._values)) or 'none'}"
            )
        return self._values[name]

    def absent(self, name: str) -> bool:
        return self.value(name) is None

    def text(self, name: str) -> str:
        value = self.value(name)
        if not _is_text(value):
            raise self.refuse(name, f"a text of up to {LONGEST:,} characters")
        return str(value)

    def texts(self, name: str) -> list[str]:
        value = self.value(name)
        if not isinstance(value, list) or not all(map(_is_text, value)):
            raise self.refuse(name, "a list of texts")
        return value

    def tables(self, name: str) -> list[list[str]]:
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(row, list) and all(map(_is_text, row)) for row in value):
            raise self.refuse(name, "a list of lists of texts")
        return value

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def integer(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        value = self.value(name)
        if not _is_integer(value, low, high):
            raise self.refuse(name, f"a whole number in {low:,}…{high:,}")
        return int(value)

    def integers(self, name: str, low: int = 0, high: int = LARGEST) -> tuple[int, ...]:
        value = self.value(name)
        if not isinstance(value, list) or not all(_is_integer(one, low, high) for one in value):
            raise self.refuse(name, f"a list of whole numbers in {low:,}…{high:,}")
        return tuple(value)

    def number(self, name: str) -> float:
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise self.refuse(name, "a finite number")
        return float(value)

    def tensor(self, name: str, dtypes: Sequence[torch.dtype]) -> Tensor:
        key = self.value(name)
        if not isinstance(key, str) or key not in self._tensors:
            raise self.refuse(name, f"the name of one of the {len(self._tensors)} tensors")
        x = self._tensors[key]
        if x.dtype not in dtypes:
            raise self.refuse(
                name, f"a tensor of {', '.join(_dtype(dtype) for dtype in dtypes)}; got {_dtype(x.dtype)}"
            )
        return x

    def object(self, name: str) -> Fields:
        return Fields(self.value(name), self._tensors, f"{self._where}.{name}")

    def objects(self, name: str) -> list[Fields]:
        value = self.value(name)
        if not isinstance(value, list):
            raise self.refuse(name, "a list of objects")
        return [Fields(one, self._tensors, f"{name[:-1]} {at}") for at, one in enumerate(value)]


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**40:
        return "a huge number"
    words = repr(value)
    return words if len(words) <= 40 else f"{words[:37]}…"
