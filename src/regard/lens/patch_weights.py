"""Attention weights on the patches of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..pictures import panel_selection
from .rollout import Rollout

Query = int | tuple[int, int] | None


@dataclass(frozen=True)
class Patches:
    """Layout of a vision model's tokens: `first` tokens (class, registers), then rows × columns of patches.

    >>> Patches(rows=14, columns=14, first=1)                             # a ViT for images of 224 × 224
    Patches(rows=14, columns=14, first=1)
    """

    rows: int
    columns: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or self.first < 0:
            raise ValueError(f"seen: patches ({self}) must have rows and columns ≥ 1 and first ≥ 0.")


def patch_weights(
    m: AttentionMap,
    layout: Patches | None = None,
    head: int | str = "mean",
    query: Query = None,
    batch: int = 0,
    rollout: Rollout | None = None,
) -> tuple[Tensor, tuple[int, int] | None]:
    """Return the weights on the patches, (rows, columns), and the (row, column) of the query if it is a patch.

    Args:
        layout: the layout of the tokens; None if the patches form a square.
        rollout: use the rollout through all layers instead of the map.
    """
    patches = _resolve_layout(layout, m.shape[-1])
    token = _token(query, patches, m.shape[-2])
    if rollout is not None:
        # without a token: the mean over all targets
        weights = rollout.flow(batch=batch)[0] if token is None else rollout.row(token, batch=batch)
    elif token is None:
        weights = panel_selection.rows("overlay", m, slice(None), head, batch).mean(0)
    else:
        weights = panel_selection.rows("overlay", m, slice(token, token + 1), head, batch)[0]
    inside = token is not None and token >= patches.first
    position = divmod(token - patches.first, patches.columns) if token is not None and inside else None
    return weights[patches.first :].float().cpu().reshape(patches.rows, patches.columns), position


def _resolve_layout(layout: Patches | None, keys: int) -> Patches:
    if layout is None:
        for first in (0, 1):
            side = math.isqrt(keys - first)
            if side and side * side == keys - first:
                return Patches(side, side, first)
        raise ValueError(
            f"overlay: seen.patches (None) must give the layout of {keys} tokens, which do not form a square. "
            "Set seen.patches = Patches(rows, columns, first)."
        )
    if layout.first + layout.rows * layout.columns != keys:
        raise ValueError(f"overlay: seen.patches ({layout}) must have first + rows · columns = {keys} tokens.")
    return layout


def _token(query: Query, patches: Patches, queries: int) -> int | None:
    if query is None:
        return 0 if patches.first else None
    if isinstance(query, tuple):
        row, column = query
        if not (0 <= row < patches.rows and 0 <= column < patches.columns):
            raise ValueError(f"overlay: query {query} must lie in {patches.rows} rows × {patches.columns} columns.")
        return patches.first + row * patches.columns + column
    return panel_selection.positions("overlay", "query", query, queries)[0]
