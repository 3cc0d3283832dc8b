"""What a vision model looked at: the weights of its patches, laid over the picture."""

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
    """How the tokens of a vision model lie on its picture: `first` tokens (class, registers), then rows × columns."""

    rows: int
    columns: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or self.first < 0:
            raise ValueError(f"seen: patches ({self}) must have rows and columns ≥ 1 and first ≥ 0.")


def patch_weights(
    m: AttentionMap,
    given: Patches | None = None,
    head: int | str = "mean",
    query: Query = None,
    batch: int = 0,
    through: Rollout | None = None,
) -> tuple[Tensor, tuple[int, int] | None]:
    """(rows, columns) of weights on the patches, and the patch that looks, if it is one.

    given: how tokens lie on the picture; None where they make a square.
    through: the rollout of all layers, instead of the map.
    """
    patches = _patches(given, m.shape[-1])
    token = _token(query, patches, m.shape[-2])
    if through is not None:
        # without a token: each source's part in the mean of all targets
        weights = through.flow(batch=batch)[0] if token is None else through.row(token, batch=batch)
    elif token is None:
        weights = panel_selection.rows("overlay", m, slice(None), head, batch).mean(0)
    else:
        weights = panel_selection.rows("overlay", m, slice(token, token + 1), head, batch)[0]
    inside = token is not None and token >= patches.first
    mark = divmod(token - patches.first, patches.columns) if token is not None and inside else None
    return weights[patches.first :].float().cpu().reshape(patches.rows, patches.columns), mark


def _patches(given: Patches | None, keys: int) -> Patches:
    if given is None:
        for first in (0, 1):
            side = math.isqrt(keys - first)
            if side and side * side == keys - first:
                return Patches(side, side, first)
        raise ValueError(
            f"overlay: seen.patches (None) must tell how {keys} tokens lie on the picture; they make no square. "
            "Set seen.patches = Patches(rows, columns, first)."
        )
    if given.first + given.rows * given.columns != keys:
        raise ValueError(f"overlay: seen.patches ({given}) must make {keys} tokens, first + rows · columns.")
    return given


def _token(query: Query, patches: Patches, queries: int) -> int | None:
    if query is None:
        return 0 if patches.first else None
    if isinstance(query, tuple):
        row, column = query
        if not (0 <= row < patches.rows and 0 <= column < patches.columns):
            raise ValueError(f"overlay: query {query} must lie in {patches.rows} rows × {patches.columns} columns.")
        return patches.first + row * patches.columns + column
    return panel_selection.positions("overlay", "query", query, queries)[0]
