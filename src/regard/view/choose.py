"""Which parts of a map become panels, and their weights.

Everything here rests on the public methods of a map: its shape, its weights by index, its pooled weights, its tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor

from . import terminal

MOST_PANELS = 64
Choice = int | Sequence[int] | None
Lead = tuple[int, ...]  # one panel's place in the leading dimensions


class Map(Protocol):
    """What a picture needs of an AttentionMap."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def query_tokens(self) -> Sequence[str] | None: ...
    @property
    def key_tokens(self) -> Sequence[str] | None: ...
    def __getitem__(self, index: Any, /) -> Tensor: ...
    def pool(self, rows: int, cols: int, reduce: Any = ...) -> Tensor: ...


class Dense:
    """Weights that are all there, (rows, columns, queries, keys), as a map."""

    query_tokens: Sequence[str] | None = None
    key_tokens: Sequence[str] | None = None

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.shape = weights, tuple(weights.shape)

    def __getitem__(self, index: Any) -> Tensor:
        return self.weights[index]

    def pool(self, rows: int, cols: int, reduce: str = "max") -> Tensor:
        return terminal.shrink(self.weights, rows, cols)


def panels(where: str, map: Map, batch: Choice, heads: Choice) -> list[Lead]:
    """The leading index of each panel, batch entries first."""
    if 0 in map.shape or len(map.shape) < 2:
        raise ValueError(
            f"{where}: map ({tuple(map.shape)}) must have at least one query and one key (…, Tq, Tk); got no cells. "
            f"Draw it when there is something to see."
        )
    if len(map.shape) == 2:
        for name, choice in (("heads", heads), ("batch", batch)):
            if choice is not None:
                raise ValueError(
                    f"{where}: {name} ({choice}) must be None for a map (Tq, Tk); got {choice}. Leave it out."
                )
        return [()]
    *outer, last = map.shape[:-2]
    entries = list(itertools.product(*(range(n) for n in outer)))
    entries = [entries[i] for i in _positions(where, "batch", batch, len(entries))]
    chosen = [(*entry, head) for entry in entries for head in _positions(where, "heads", heads, last)]
    if not 0 < len(chosen) <= MOST_PANELS:
        raise ValueError(
            f"{where}: map ({tuple(map.shape)}) must give 1 to {MOST_PANELS} panels; got {len(chosen)}. "
            f"Choose some, as in heads=[0, 1] or batch=0."
        )
    return chosen


def _positions(where: str, name: str, choice: Choice, count: int) -> list[int]:
    chosen = range(count) if choice is None else [choice] if isinstance(choice, int | Integral) else choice
    for position in chosen:
        if not -count <= position < count:
            raise ValueError(
                f"{where}: {name} ({position}) must lie in 0…{count - 1}; got {position}. The map has {count}."
            )
    return [int(position) % count for position in chosen]


def cells(map: Map, panels: list[Lead], reduce: str, rows: int, columns: int) -> Tensor:
    """Weights of the panels, (panels, rows, columns): exact where every cell is asked for, else pooled."""
    if (rows, columns) == tuple(map.shape[-2:]):
        weights = [map[panel] if panel else map[:] for panel in panels]
    else:
        weights = _pooled(map, panels, reduce, rows, columns)
    return torch.stack(weights).detach().to("cpu", torch.float32)


def _pooled(map: Map, panels: list[Lead], reduce: str, rows: int, columns: int) -> list[Tensor]:
    if len(panels) < math.prod(map.shape[:-2]) and hasattr(map, "at"):
        try:
            return [map.at(*panel).pool(rows, columns, reduce=reduce) for panel in panels]
        except ValueError:  # its similarity cannot be cut to one entry: then all are pooled
            pass
    pooled = map.pool(rows, columns, reduce=reduce)  # (…, rows, columns)
    return [pooled[panel] for panel in panels]


def titles(map: Map, panels: list[Lead]) -> list[str]:
    """`head 3`, or `batch 0, head 3` where the map has several batch entries; none where there is nothing to tell."""
    *outer, last = [1, *map.shape[:-2]]
    several = len(outer) > 1 and outer != [1] * len(outer)
    if last == 1 and not several:
        return [""] * len(panels)
    return [
        f"batch {', '.join(str(i) for i in batch)}, head {head}" if several else f"head {head}"
        for *batch, head in panels
    ]


def columns(panels: list[Lead]) -> int:
    """Batch entries below one another where their heads fit side by side; else as near to 4 : 3 as whole rows allow."""
    count, heads = len(panels), len({panel[-1:] for panel in panels})
    if 1 < heads <= 8 and heads < count:
        return heads
    if count <= 4:
        return count
    wished = (count * 4 / 3) ** 0.5
    return min(range(3, 9), key=lambda columns: -count % columns + abs(columns - wished))
