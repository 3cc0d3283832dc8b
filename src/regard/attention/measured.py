"""What was measured: the fastest backend at some seventy calls, and the nearest of them to any other.

`choices.csv` holds the speed of each backend as a part of the best, one line per call. `python -m bench auto --write`
measures it again. The nearest line is the one with the smallest distance between the logarithms of the sizes, among
those of the same dtype, mask and need of gradients.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import resources

import torch

FILE = "choices.csv"
BACKENDS = ("native", "torch", "reference")
"""Those that are measured. In this order where speeds are alike."""
ALIKE = 0.97
"""The part of the best speed from which on a backend is as good."""
KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "bfloat16"}
"""dtype → the dtype whose lines speak for it."""
Sizes = tuple[int, int, int, int]
"""Entries (batch × heads), queries, keys, width."""


@dataclass(frozen=True)
class Line:
    """One measured call, and each backend's speed as a part of the best."""

    dtype: str
    causal: bool
    gradient: bool
    sizes: Sizes
    speeds: tuple[tuple[str, float], ...]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Backends, the best first."""
        alike = [name for name, speed in self.speeds if speed >= ALIKE]
        rest = sorted((-speed, name) for name, speed in self.speeds if speed < ALIKE)
        return *sorted(alike, key=BACKENDS.index), *(name for _, name in rest)

    @property
    def words(self) -> str:
        """What a person is told of it."""
        entries, queries, keys, width = self.sizes
        kind = f"{'causal, ' if self.causal else ''}{'with gradients' if self.gradient else 'forward'}, {self.dtype}"
        speeds = ", ".join(f"{name} {speed:.2f}" for name, speed in sorted(self.speeds, key=lambda pair: -pair[1]))
        return (
            f"the nearest measured call has {entries} heads in all, {queries} queries, {keys} keys, {width} wide "
            f"({kind}); speeds there as parts of the best: {speeds}"
        )


@lru_cache(1024)
def nearest(dtype: str, causal: bool, gradient: bool, *sizes: int) -> Line | None:
    """The line that speaks for a call; None where there is none of its kind. Sizes: entries, queries, keys, width.

    Calls of the same sizes are kept, and all within half an octave of each other share a line: a length that grows
    step by step is new at every step, and yet does not search the table.
    """
    return _nearest(dtype, causal, gradient, *[round(2 * math.log2(size or 1)) for size in sizes])


@cache
def _nearest(dtype: str, causal: bool, gradient: bool, *steps: int) -> Line | None:
    def distance(line: Line) -> float:
        return sum((2 * math.log2(size) - step) ** 2 for size, step in zip(line.sizes, steps, strict=True))

    same = [line for line in lines() if (line.dtype, line.causal, line.gradient) == (dtype, causal, gradient)]
    return min(same, key=distance, default=None)


@cache
def lines() -> tuple[Line, ...]:
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return parse(text)


COLUMNS = ("dtype", "mask", "gradient", "entries", "queries", "keys", "width", *BACKENDS)


def parse(text: str) -> tuple[Line, ...]:
    """The lines of the file; those that begin with # say where it was measured."""
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Line(
            row["dtype"],
            row["mask"] == "causal",
            row["gradient"] == "yes",
            (int(row["entries"]), int(row["queries"]), int(row["keys"]), int(row["width"])),
            tuple((name, float(row[name])) for name in BACKENDS if row[name]),
        )
        for row in rows
    )


def write(found: list[Line], where: str) -> str:
    """The text of the file.

    >>> text = write([Line("float32", True, False, (8, 64, 64, 64), (("native", 1.0), ("torch", 0.5)))], "a machine")
    >>> print(text.strip())
    # The speed of each backend as a part of the best: python -m bench auto --write
    # a machine
    dtype,mask,gradient,entries,queries,keys,width,native,torch,reference
    float32,causal,no,8,64,64,64,1.00,0.50,
    >>> parse(text)[0].order
    ('native', 'torch')
    """
    head = f"# The speed of each backend as a part of the best: python -m bench auto --write\n# {where}\n"
    rows = []
    for line in sorted(found, key=lambda line: (line.dtype, line.causal, line.gradient, line.sizes)):
        speeds = dict(line.speeds)
        shown = [f"{speeds[name]:.2f}" if name in speeds else "" for name in BACKENDS]
        kind = (line.dtype, "causal" if line.causal else "open", "yes" if line.gradient else "no")
        rows.append(",".join((*kind, *map(str, line.sizes), *shown)))
    return head + "\n".join((",".join(COLUMNS), *rows)) + "\n"
