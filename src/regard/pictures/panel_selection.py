"""Select the panels of a picture from a map and compute their weights.

This uses only the public interface of a map: its shape, its weights by index, its pooled weights and its tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..attention.picture_options import Selection as Selection
from . import terminal

MAX_PANELS = 64
Lead = tuple[int, ...]  # index of a panel in the leading dimensions


class Map(Protocol):
    """The part of the interface of AttentionMap that pictures need."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def query_tokens(self) -> Sequence[str] | None: ...
    @property
    def key_tokens(self) -> Sequence[str] | None: ...
    def __getitem__(self, index: Any, /) -> Tensor: ...
    def pool(self, rows: int, cols: int, reduce: Any = ...) -> Tensor: ...


class Dense:
    """Dense weights, (rows, columns, queries, keys), with the interface of a map."""

    query_tokens: Sequence[str] | None = None
    key_tokens: Sequence[str] | None = None

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.shape = weights, tuple(weights.shape)

    def __getitem__(self, index: Any) -> Tensor:
        return self.weights[index]

    def pool(self, rows: int, cols: int, reduce: str = "max") -> Tensor:
        return terminal.shrink(self.weights, rows, cols)


def panels(where: str, map: Map, batch: Selection, heads: Selection) -> list[Lead]:
    """Return the leading index of each panel, batch entries first."""
    if 0 in map.shape or len(map.shape) < 2:
        raise ValueError(
            f"{where}: map ({tuple(map.shape)}) must have at least one query and one key (…, Tq, Tk); got no cells. "
            f"An empty map cannot be drawn."
        )
    if len(map.shape) == 2:
        for name, selection in (("heads", heads), ("batch", batch)):
            if selection is not None:
                raise ValueError(
                    f"{where}: {name} ({selection}) must be None for a map (Tq, Tk); got {selection}. Omit it."
                )
        return [()]
    *outer, last = map.shape[:-2]
    entries = list(itertools.product(*(range(n) for n in outer)))
    entries = [entries[i] for i in positions(where, "batch", batch, len(entries))]
    selected = [(*entry, head) for entry in entries for head in positions(where, "heads", heads, last)]
    if not 0 < len(selected) <= MAX_PANELS:
        raise ValueError(
            f"{where}: map ({tuple(map.shape)}) must give 1 to {MAX_PANELS} panels; got {len(selected)}. "
            f"Select some, for example heads=[0, 1] or batch=0."
        )
    return selected


def positions(where: str, name: str, selection: Selection, count: int) -> list[int]:
    """Return the selected indices, all if None. Raise ValueError if one is out of range."""
    selected = (
        range(count) if selection is None else [selection] if isinstance(selection, int | Integral) else selection
    )
    for position in selected:
        if not -count <= position < count:
            raise ValueError(
                f"{where}: {name} ({position}) must lie in 0…{count - 1}; got {position}. The map has {count}."
            )
    return [int(position) % count for position in selected]


def check_options(where: str, reduce: str, scale: str, limits: tuple[float, float] | None) -> None:
    """Raise ValueError for unknown or inconsistent options."""
    for name, value, known in (("reduce", reduce, ("max", "mean", "sum")), ("scale", scale, ("linear", "log"))):
        if value not in known:
            raise ValueError(f"{where}: {name} ({value!r}) must be one of {', '.join(known)}; got {value!r}.")
    if limits is not None and not (0 < limits[0] < limits[1] if scale == "log" else limits[0] < limits[1]):
        rule = "0 < low < high on a log scale" if scale == "log" else "low < high"
        raise ValueError(f"{where}: limits ({limits}) must be (low, high) with {rule}; got {limits}.")


def entry(
    where: str, map: AttentionMap, batch: int, view: Callable[[AttentionMap], Tensor], heads: bool = True
) -> Tensor:
    """Return `view`, (*lead, …), for one batch entry: (heads, …), or (…) if the view selects one head."""
    if 0 in map.shape:
        raise ValueError(f"{where}: map ({tuple(map.shape)}) must have at least one query, key and head; got no cells.")
    outer = map.shape[:-3]
    [index] = positions(where, "batch", batch, math.prod(outer))
    if not outer:
        result = view(map)
        return result.unsqueeze(0) if heads and map.ndim == 2 else result
    lead = [int(i) for i in torch.unravel_index(torch.tensor(index), outer)]
    return view(map.at(*lead)) if map.request.separable else view(map)[tuple(lead)]  # a callable may mix entries


def rows(where: str, map: AttentionMap, queries: slice, head: int | str, batch: int) -> Tensor:
    """Return the exact weights of some queries in one head, or averaged over heads, (queries, Tk)."""
    count = map.shape[-3] if map.ndim > 2 else 1
    if isinstance(head, str) and head != "mean":
        raise ValueError(f"{where}: head ({head!r}) must be a number in 0…{count - 1} or 'mean'.")
    selected = range(count) if isinstance(head, str) else positions(where, "head", head, count)
    total: Tensor | None = None
    for one in selected:  # one head at a time, to save memory

        def view(part: AttentionMap, one: int = one) -> Tensor:
            return part[..., one, queries, :] if part.ndim > 2 else part[queries]

        weights = entry(where, map, batch, view, heads=False)
        total = weights if total is None else total + weights
    assert total is not None
    return (total / len(selected)).to("cpu", torch.float32)


def cells(map: Map, panels: list[Lead], reduce: str, rows: int, columns: int) -> Tensor:
    """Return the weights of the panels, (panels, rows, columns): exact at full resolution, else pooled."""
    if (rows, columns) == tuple(map.shape[-2:]):
        weights = [map[panel] if panel else map[:] for panel in panels]
    else:
        weights = _pooled(map, panels, reduce, rows, columns)
    return torch.stack(weights).detach().to("cpu", torch.float32)


def _pooled(map: Map, panels: list[Lead], reduce: str, rows: int, columns: int) -> list[Tensor]:
    if len(panels) < math.prod(map.shape[:-2]) and hasattr(map, "at"):
        try:
            return [map.at(*panel).pool(rows, columns, reduce=reduce) for panel in panels]
        except ValueError:  # the similarity does not support a single entry: pool all entries
            pass
    pooled = map.pool(rows, columns, reduce=reduce)  # (…, rows, columns)
    return [pooled[panel] for panel in panels]


def titles(map: Map, panels: list[Lead]) -> list[str]:
    """Return titles: `head 3`, or `batch 0, head 3` if there are several batch entries; empty for a single panel."""
    *outer, last = [1, *map.shape[:-2]]
    several = len(outer) > 1 and outer != [1] * len(outer)
    if last == 1 and not several:
        return [""] * len(panels)
    return [
        f"batch {', '.join(str(i) for i in batch)}, head {head}" if several else f"head {head}"
        for *batch, head in panels
    ]


def columns(panels: list[Lead]) -> int:
    """Return the number of columns: one per head if the heads fit in a row, else for an aspect ratio near 4 : 3."""
    count, heads = len(panels), len({panel[-1:] for panel in panels})
    if 1 < heads <= 8 and heads < count:
        return heads
    if count <= 4:
        return count
    ideal = (count * 4 / 3) ** 0.5
    return min(range(3, 9), key=lambda columns: -count % columns + abs(columns - ideal))
