"""Alignment matrices: words × words, from weights between subwords."""

from __future__ import annotations

import os
from typing import TypedDict

from ..attention.attention_map import AttentionMap
from ..attention.word_weights import spell, word_weights
from . import heatmap, panel_selection
from .figure import Picture, check_path, save

MAX_WORDS = 400
"""Maximum number of words along an axis, for readability."""


class AlignmentOptions(TypedDict, total=False):
    """Keyword arguments of `alignment`."""

    path: str | os.PathLike[str] | None
    head: int | str
    batch: int
    title: str
    annotate: bool | None


def alignment(
    map: AttentionMap,
    path: str | os.PathLike[str] | None = None,
    *,
    head: int | str = "mean",
    batch: int = 0,
    title: str = "",
    annotate: bool | None = None,
) -> Picture:
    """Draw a matrix of words × words: the source words that each target word attends to.

    Args:
        map: a map with tokens, `m.tokens(query=target, key=source)`. Subwords are merged to words.
        path: also save the picture to this file (.png, .svg or .pdf).
        head: index of a head, or "mean" of all.
        annotate: whether to write weights in the cells; None to do so if they fit.

    Raises:
        ValueError: if the map has no tokens or too many words.

    >>> import regard, torch
    >>> x = torch.randn(3, 4, 8)                                        # (heads, tokens, width)
    >>> _, m = regard.attend(x, x, x, return_map=True)
    >>> subwords = ["▁at", "tention", "▁is", "▁all"]
    >>> picture = alignment(m.tokens(query=subwords, key=subwords))
    >>> [tick.get_text() for tick in picture.axes[0].get_yticklabels()]
    ['attention', 'is', 'all']
    """
    path = None if path is None else check_path("alignment", path)
    if map.query_tokens is None or map.key_tokens is None:
        raise ValueError(
            "alignment: tokens (None) must be set for queries and keys; call m.tokens(query=…, key=…) or "
            "seen.tokens(…) first; m.save draws a map without them."
        )
    (target, rows), (source, cols) = spell(map.query_tokens), spell(map.key_tokens)
    if max(len(target), len(source)) > MAX_WORDS:
        raise ValueError(
            f"alignment: words ({len(target)} × {len(source)}) must be at most {MAX_WORDS} along an axis. "
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
