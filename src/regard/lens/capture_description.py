"""The description in a capture, read field by field: every value has a type and bounds, or is refused in words.

Fields({"scale": 0.5}, {}, "call 0").number("scale")     0.5
Fields({"scale": "x"}, {}, "call 0").number("scale")     ValueError: call 0: scale ('x') must be a finite number
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

    def _checked(self, name: str, fits: Callable[[Any], bool], rule: str) -> Any:
        value = self.value(name)
        if not fits(value):
            raise self.refuse(name, rule)
        return value

    def text(self, name: str) -> str:
        return str(self._checked(name, _is_text, f"a text of up to {LONGEST:,} characters"))

    def texts(self, name: str) -> list[str]:
        return list(self._checked(name, _list_of(_is_text), "a list of texts"))

    def tables(self, name: str) -> list[list[str]]:
        return list(self._checked(name, _list_of(_list_of(_is_text)), "a list of lists of texts"))

    def flag(self, name: str) -> bool:
        return bool(self._checked(name, lambda value: isinstance(value, bool), "true or false"))

    def integer(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        return int(self._checked(name, _integer_in(low, high), f"a whole number in {low:,}…{high:,}"))

    def integers(self, name: str, low: int = 0, high: int = LARGEST) -> tuple[int, ...]:
        rule = f"a list of whole numbers in {low:,}…{high:,}"
        return tuple(self._checked(name, _list_of(_integer_in(low, high)), rule))

    def number(self, name: str) -> float:
        return float(self._checked(name, _is_number, "a finite number"))

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
        values = self._checked(name, lambda value: isinstance(value, list), "a list of objects")
        return [Fields(one, self._tensors, f"{name[:-1]} {at}") for at, one in enumerate(values)]


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _integer_in(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**40:
        return "a huge number"
    words = repr(value)
    return words if len(words) <= 40 else f"{words[:37]}…"
