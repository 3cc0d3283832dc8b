"""What a vision model looked at: the weights of its patches, laid over the picture."""

from __future__ import annotations

import math
import os
from typing import Any

from torch import Tensor

from . import choose
from .overlay import overlay
from .picture import Picture, check_path
from .seen import NOTHING, Patches, Seen

Query = int | tuple[int, int] | None


def lay_over(
    seen: Seen,
    path: str | os.PathLike[str] | None = None,
    *,
    layer: int | str = -1,
    head: int | str = "mean",
    query: Query = None,
    rollout: bool = False,
    batch: int = 0,
    title: str | None = None,
    **options: Any,
) -> Picture:
    """The picture that was looked at, beside itself under what one query drew on.

    Args:
        seen: of a vision model, with `seen.image`; `seen.patches` tells how tokens lie on it, and may be left out where
            they make a square, with or without a class token in front.
        path: also save the picture there (.png, .svg or .pdf).
        layer, head: which map; a number, or "mean" of all heads.
        query: a token's number, or (row, column) of a patch, which is framed; None: the class token, and without one
            what all patches look at on average.
        rollout: through all layers (see `Seen.rollout`, which takes the `options`) instead of one.

    Raises:
        ValueError: without an image, where tokens do not fit it, for choices that there are not.
    """
    path = None if path is None else check_path("overlay", path)
    if seen.image is None:
        raise ValueError("overlay: seen.image (None) must be the picture that was looked at, uint8 (height, width, 3).")
    weights, mark = patch_weights(seen, layer, head, query, rollout, batch, **options)
    if title is None:
        name = seen.names[layer] if isinstance(layer, int) else layer
        heads = "mean of heads" if head == "mean" else f"head {head}"
        title = f"rollout of {len(seen)} layers" if rollout else f"{name}, {heads}"
    return overlay(seen.image.numpy(), weights.numpy(), path, title, mark)


def patch_weights(
    seen: Seen,
    layer: int | str = -1,
    head: int | str = "mean",
    query: Query = None,
    rollout: bool = False,
    batch: int = 0,
    **options: Any,
) -> tuple[Tensor, tuple[int, int] | None]:
    """(rows, columns) of weights on the patches, and the patch that looks, if it is one."""
    if not seen:
        raise ValueError(NOTHING)
    if options and not rollout:
        raise ValueError(f"overlay: {', '.join(options)} must come with rollout=True.")
    m = seen[layer]
    patches = _patches(seen.patches, m.shape[-1])
    token = _token(query, patches, m.shape[-2])
    if rollout:
        through = seen.rollout(**options)
        # without a token: each source's part in the mean of all targets
        weights = through.flow(batch=batch)[0] if token is None else through.row(token, batch=batch)
    elif token is None:
        weights = choose.rows("overlay", m, slice(None), head, batch).mean(0)
    else:
        weights = choose.rows("overlay", m, slice(token, token + 1), head, batch)[0]
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
    return choose.positions("overlay", "query", query, queries)[0]
