"""Alignments: words × words, from weights between pieces of words."""

from __future__ import annotations

import os

from ..attention.attention_map import AttentionMap
from ..attention.word_weights import spell, word_weights
from . import heatmap, panel_selection
from .figure import Picture, check_path, save

MOST = 400
"""Words on a side of a picture that can be read."""


def alignment(
    map: AttentionMap,
    path: str | os.PathLike[str] | None = None,
    *,
    head: int | str = "mean",
    batch: int = 0,
    title: str = "",
    annotate: bool | None = None,
) -> Picture:
    """A matrix of words × words: which words of the source each word of the target looked at.

    Args:
        map: with tokens, `m.tokens(query=target, key=source)`; pieces are put together to words.
        path: also save the picture there (.png, .svg or .pdf).
        head: a number, or "mean" of all.
        annotate: whether weights are written in the cells; None: where they fit.

    Raises:
        ValueError: without tokens, or with too many words for a picture.
    """
    path = None if path is None else check_path("alignment", path)
    if map.query_tokens is None or map.key_tokens is None:
        raise ValueError(
            "alignment: tokens (None) must be known on both sides; call m.tokens(query=…, key=…) or seen.tokens(…) "
            "first; m.save draws a map without them."
        )
    (target, rows), (source, cols) = spell(map.query_tokens), spell(map.key_tokens)
    if max(len(target), len(source)) > MOST:
        raise ValueError(
            f"alignment: words ({len(target)} × {len(source)}) must be at most {MOST} on a side to be read. "
            "m.save pools a map of any size."
        )
    weights = panel_selection.rows("alignment", map, slice(None), head, batch)  # (Tq, Tk)
    dense = panel_selection.Dense(word_weights(weights, source=cols, target=rows))
    dense.query_tokens, dense.key_tokens = target, source
    picture = heatmap.draw(dense, title=title or None, annotate=annotate)
    assert isinstance(picture, Picture)
    if path is not None:
        save(picture, path)
    return picture
