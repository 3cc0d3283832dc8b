"""Alignments: words × words, from weights between pieces of words."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from . import heatmap, panel_selection
from .figure import Picture, check_path, save

BEGINS = ("▁", "Ġ", " ")
"""A piece with one of these in front begins a word, where any token has it."""
INSIDE, GOES_ON = "##", "@@"
SPECIAL = (("<", ">"), ("[", "]"))
MOST = 400
"""Words on a side of a picture that can be read."""


def spell(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """The words that pieces make, and the word of each piece: SentencePiece's ▁, GPT's Ġ, BERT's ##, Moses's @@.

    >>> spell(["▁new", "est", "▁low", "</s>"])
    (['newest', 'low', '</s>'], [0, 0, 1, 2])
    >>> spell(["[CLS]", "em", "##bed", "##ding", "."])
    (['[CLS]', 'embedding', '.'], [0, 1, 1, 1, 2])
    """
    marked = any(token.startswith(BEGINS) for token in tokens)
    words: list[str] = []
    places: list[int] = []
    closed = True  # whether the next piece begins a word in any case
    for token in tokens:
        special = len(token) > 2 and any(token.startswith(a) and token.endswith(b) for a, b in SPECIAL)
        begins = token.startswith(BEGINS) if marked else not token.startswith(INSIDE)
        piece = token if special else token.removeprefix(INSIDE).removesuffix(GOES_ON)
        piece = piece[1:] if not special and marked and token.startswith(BEGINS) else piece
        if not words or special or closed or (begins and not _open(tokens, len(places))):
            words.append(piece or token)
        else:
            words[-1] += piece
        closed = special
        places.append(len(words) - 1)
    return words, places


def _open(tokens: Sequence[str], place: int) -> bool:
    """Whether the piece before goes on here."""
    return place > 0 and tokens[place - 1].endswith(GOES_ON) and len(tokens[place - 1]) > 2


def together(weights: Tensor, queries: Sequence[int], keys: Sequence[int]) -> Tensor:
    """Weights of words from those of pieces (Tq, Tk): a word receives what its pieces do, and looks as they do on
    average, so that rows sum to what they did.

    >>> together(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), [0, 0], [0, 0, 1])
    tensor([[0.5000, 0.5000]])
    """
    rows, cols = torch.as_tensor(queries), torch.as_tensor(keys)
    received = weights.new_zeros(len(rows), int(cols.max()) + 1).index_add_(1, cols, weights)  # (Tq, words)
    looked = weights.new_zeros(int(rows.max()) + 1, received.shape[1]).index_add_(0, rows, received)
    return looked / torch.bincount(rows).unsqueeze(-1)


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
    dense = panel_selection.Dense(together(weights, rows, cols))
    dense.query_tokens, dense.key_tokens = target, source
    picture = heatmap.draw(dense, title=title or None, annotate=annotate)
    assert isinstance(picture, Picture)
    if path is not None:
        save(picture, path)
    return picture
