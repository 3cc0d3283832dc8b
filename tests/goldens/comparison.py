"""Comparison of recordings: within rounding for tests on any machine, bit by bit for two recordings of one machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from tests.goldens.small_runs import NOT_STORED, without_time

DECIMAL = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


class Tolerance(NamedTuple):
    relative: float
    absolute: float
    pixels: int = 0
    """Difference of an entry in a list called "pixels": numbers that were rounded to whole ones."""

    def holds(self, expected: float, actual: float) -> bool:
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        return abs(expected - actual) <= self.absolute + self.relative * abs(expected)


EXACT = Tolerance(0.0, 0.0)
ROUNDING = Tolerance(1e-5, 1e-5, pixels=1)
"""float32 has 24 bits: each operation rounds by at most 6e-8 of its result. Machines add in another order, with other
instructions, sums of at most some hundred terms through at most some ten layers: about 100 roundings of numbers of
size 1."""

TRAINING = Tolerance(1e-3, 1e-4, pixels=1)
"""For what several steps of training lead to. Adam divides a gradient by its own size, so a gradient of almost zero
gives a step whose direction depends on rounding."""
UNDETERMINED = ("key.bias",)
"""Endings of parameters whose gradient is zero but for rounding: one number added to the scores of all keys changes no
weight. After training they are noise."""


def differences(expected: Any, actual: Any, tolerance: Tolerance, path: str = "") -> Iterator[str]:
    """Where nested JSON differs. Integers, texts, keys and lengths must be equal, decimal numbers within rounding;
    of a text that differs, the decimal numbers in it may differ likewise in their last digit."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if list(expected) != list(actual):
            yield f"{path}: keys {list(expected)} became {list(actual)}"
        for name in expected:
            if name in actual:
                yield from differences(expected[name], actual[name], tolerance, f"{path}/{name}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(expected)} entries became {len(actual)}"
        elif path.endswith("/pixels"):
            worst = max((abs(a - b) for a, b in zip(expected, actual, strict=True)), default=0)
            if worst > tolerance.pixels:
                yield f"{path}: pixels differ by up to {worst}"
        else:
            for number, pair in enumerate(zip(expected, actual, strict=True)):
                yield from differences(*pair, tolerance, f"{path}/{number}")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not tolerance.holds(expected, actual):
            yield f"{path}: {expected!r} became {actual!r}"
    elif isinstance(expected, str) and isinstance(actual, str):
        if expected != actual and not _same_text(expected, actual, tolerance):
            yield f"{path}: {expected!r} became {actual!r}"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{path}: {expected!r} became {actual!r}"


def _same_text(expected: str, actual: str, tolerance: Tolerance) -> bool:
    if tolerance is EXACT or DECIMAL.sub("#", expected) != DECIMAL.sub("#", actual):
        return False
    pairs = zip(DECIMAL.findall(expected), DECIMAL.findall(actual), strict=True)
    return all(
        Tolerance(tolerance.relative, max(tolerance.absolute, 1.01 * _last_digit(old))).holds(float(old), float(new))
        for old, new in pairs
    )


def _last_digit(number: str) -> float:
    """
    >>> _last_digit("0.25"), _last_digit("1.50e-3")
    (0.01, 1e-05)
    """
    digits, _, exponent = number.partition("e")
    return float(f"1e{int(exponent or 0) - len(digits.partition('.')[2])}")


def tensor_differences(
    expected: Mapping[str, Tensor], actual: Mapping[str, Tensor], tolerance: Tolerance
) -> Iterator[str]:
    """Where tensors differ: names, shapes, types and integers exactly, decimal numbers within rounding of the
    largest number of their tensor."""
    for name in sorted(expected.keys() ^ actual.keys()):
        yield f"{name}: {'missing' if name in expected else 'new'}"
    for name in sorted(expected.keys() & actual.keys()):
        old, new = expected[name], actual[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            yield f"{name}: {old.dtype} {tuple(old.shape)} became {new.dtype} {tuple(new.shape)}"
        elif tolerance is EXACT or not old.is_floating_point():
            if old.contiguous().view(-1).view(torch.uint8).ne(new.contiguous().view(-1).view(torch.uint8)).any():
                yield f"{name}: not equal"
        elif old.numel():
            finite = old.isfinite()
            worst = float((old - new)[finite].abs().max()) if finite.any() else 0.0
            limit = tolerance.absolute + tolerance.relative * float(old[finite].abs().max()) if finite.any() else 0.0
            if not torch.equal(finite, new.isfinite()) or worst > limit:
                yield f"{name}: differs by up to {worst:.3g}, more than {limit:.3g}"


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(sorted((file.metadata() or {}).items()))  # noqa: SIM118


def recording_differences(before: Path, after: Path) -> Iterator[str]:
    """Where two recordings of one machine differ in any bit, times left aside."""
    old, new = _files(before), _files(after)
    for name in sorted(old ^ new):
        yield f"{name}: {'missing' if name in old else 'new'}"
    for name in sorted(old & new):
        first, second = before / name, after / name
        if name.endswith(".safetensors"):
            (tensors, metadata), (others, about) = read_tensors(first), read_tensors(second)
            result = [*tensor_differences(tensors, others, EXACT), *differences(metadata, about, EXACT)]
        elif name.endswith((".json", ".jsonl")):
            result = list(differences(_json(first), _json(second), EXACT))
        else:
            result = [] if first.read_bytes() == second.read_bytes() else ["not equal"]
        yield from (f"{name}: {difference}" for difference in result)


def _files(folder: Path) -> set[str]:
    result = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder))
        for path in result
        if not any(fnmatch(path.name, pattern) for pattern in NOT_STORED) or "images" in path.parts
    }


def _json(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return without_time(
        [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    )
