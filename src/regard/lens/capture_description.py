"""Validated access to the JSON description in a capture. A value of the wrong type or out of range raises ValueError.

Fields({"scale": 0.5}, {}, "call 0").number("scale")     0.5
Fields({"scale": "x"}, {}, "call 0").number("scale")     ValueError: call 0: scale ('x') must be a finite number
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.json_files import is_number

MAX_INTEGER = 2**40
"""Upper bound of every integer, beyond the length of any sequence."""
MAX_TEXT_LENGTH = 2**20
"""Maximum number of characters in a string."""
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Fields:
    """The fields of one JSON object. `location` names the object in error messages."""

    def __init__(self, values: object, tensors: Mapping[str, Tensor], location: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{location} ({_short(values)}) must be an object")
        self._values, self._tensors, self._location = values, tensors, location

    def error(self, name: str, rule: str) -> ValueError:
        """Return the error for a field that breaks `rule`."""
        return ValueError(f"{self._location}: {name} ({_short(self._values.get(name))}) must be {rule}")

    def value(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(
                f"{self._location}: {name} must be present; got {', '.join(map(_short, self._values)) or 'none'}"
            )
        return self._values[name]

    def is_null(self, name: str) -> bool:
        return self.value(name) is None

    def _checked(self, name: str, is_valid: Callable[[Any], bool], rule: str) -> Any:
        value = self.value(name)
        if not is_valid(value):
            raise self.error(name, rule)
        return value

    def text(self, name: str) -> str:
        return str(self._checked(name, _is_text, f"a string of up to {MAX_TEXT_LENGTH:,} characters"))

    def texts(self, name: str) -> list[str]:
        return list(self._checked(name, _is_list_of(_is_text), "a list of strings"))

    def tables(self, name: str) -> list[list[str]]:
        return list(self._checked(name, _is_list_of(_is_list_of(_is_text)), "a list of lists of strings"))

    def flag(self, name: str) -> bool:
        return bool(self._checked(name, lambda value: isinstance(value, bool), "true or false"))

    def integer(self, name: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        return int(self._checked(name, _is_integer_in(low, high), f"an integer in {low:,}…{high:,}"))

    def integers(self, name: str, low: int = 0, high: int = MAX_INTEGER) -> tuple[int, ...]:
        rule = f"a list of integers in {low:,}…{high:,}"
        return tuple(self._checked(name, _is_list_of(_is_integer_in(low, high)), rule))

    def number(self, name: str) -> float:
        return float(self._checked(name, is_number, "a finite number"))

    def tensor(self, name: str, dtypes: Sequence[torch.dtype]) -> Tensor:
        key = self.value(name)
        if not isinstance(key, str) or key not in self._tensors:
            raise self.error(name, f"the name of one of the {len(self._tensors)} tensors")
        x = self._tensors[key]
        if x.dtype not in dtypes:
            raise self.error(name, f"a tensor of {', '.join(_dtype(dtype) for dtype in dtypes)}; got {_dtype(x.dtype)}")
        return x

    def object(self, name: str) -> Fields:
        return Fields(self.value(name), self._tensors, f"{self._location}.{name}")

    def objects(self, name: str) -> list[Fields]:
        values = self._checked(name, lambda value: isinstance(value, list), "a list of objects")
        return [Fields(one, self._tensors, f"{name[:-1]} {at}") for at, one in enumerate(values)]


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_integer_in(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**40:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
