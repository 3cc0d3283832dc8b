"""The options of a map's pictures, as a type. `regard.pictures.heatmap.draw` documents and implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from matplotlib.colors import Colormap  # never imported at run time here

Selection: TypeAlias = int | Sequence[int] | None
"""One index, several, or None for all."""


class HeatmapOptions(TypedDict, total=False):
    """Keyword arguments of `AttentionMap.save` and `AttentionMap.show`."""

    heads: Selection
    batch: Selection
    reduce: Literal["max", "mean", "sum"]
    cmap: str | Colormap
    scale: Literal["linear", "log"]
    limits: tuple[float, float] | None
    size: tuple[float, float] | None
    title: str | None
    annotate: bool | None
