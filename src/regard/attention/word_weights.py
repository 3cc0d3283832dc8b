"""Words from subword tokens, and the weights between words from those between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Step = Literal["output", "input"]
"""Which decoder step belongs to a target token: the one that wrote it, or the next one, which reads it."""
BEGINS = ("▁", "Ġ", " ")
"""A piece with one of these in front begins a word, where any token has it."""
INSIDE, GOES_ON = "##", "@@"
SPECIAL = (("<", ">"), ("[", "]"))


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


def word_weights(weights: Tensor, source: Sequence[int], target: Sequence[int], step: Step = "output") -> Tensor:
    """Weights between words: (steps, Ts pieces) → (target words, source words).

    `source` and `target` name the word of each piece, −1 for one that is no part of a word. What falls on the pieces of
    one source word is added up; the rows of one target word are averaged. Steps and pieces beyond those named (the end
    of the sentence) are left out.

    >>> w = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.0, 0.1, 0.9]])
    >>> word_weights(w, source=[0, 0, 1], target=[0, 1])
    tensor([[0.9000, 0.1000],
            [0.4000, 0.6000]])
    """
    shift = {"output": 0, "input": 1}.get(step)
    if shift is None:
        raise ValueError(f"alignment: step ({step!r}) must be 'output' or 'input'.")
    steps, pieces = weights.shape
    if steps < len(target) + shift or pieces < len(source):
        raise ValueError(
            f"alignment: weights ({steps}, {pieces}) must have a row for each of {len(target)} target pieces"
            f"{' and the end of the sentence' if shift else ''} and a column for each of {len(source)} source pieces."
        )
    rows = weights[shift : shift + len(target), : len(source)]  # (target pieces, source pieces)
    by_source = _sums(rows.T, source).T  # (target pieces, source words)
    counts = _sums(torch.ones(len(target), 1), target)  # (target words, 1)
    return _sums(by_source, target) / counts  # (target words, source words)


def _sums(x: Tensor, groups: Sequence[int]) -> Tensor:
    """Rows of x added up by group, −1 for none: (n, m) → (groups, m)."""
    count = max(groups, default=-1) + 1
    index = torch.tensor([count if group < 0 else group for group in groups], dtype=torch.long)
    return x.new_zeros(count + 1, x.shape[1]).index_add_(0, index, x)[:count]
