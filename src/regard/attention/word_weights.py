"""Group subword tokens into words, and token weights into word weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Step = Literal["output", "input"]
"""Decoder step of a target token: the one that outputs it, or the next one, which takes it as input."""
BEGINS = ("▁", "Ġ", " ")
"""A token with one of these prefixes begins a word, if any token of the sequence has such a prefix."""
INSIDE, CONTINUES = "##", "@@"
SPECIAL = (("<", ">"), ("[", "]"))


def spell(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the words of subword tokens, and the word index of each token.

    Supports the markers of SentencePiece (▁), GPT (Ġ), BERT (##) and Moses (@@).

    >>> spell(["▁new", "est", "▁low", "</s>"])
    (['newest', 'low', '</s>'], [0, 0, 1, 2])
    >>> spell(["[CLS]", "em", "##bed", "##ding", "."])
    (['[CLS]', 'embedding', '.'], [0, 1, 1, 1, 2])
    """
    marked = any(token.startswith(BEGINS) for token in tokens)
    words: list[str] = []
    word_indices: list[int] = []
    starts_word = True  # whether the next token begins a word in any case
    for token in tokens:
        special = len(token) > 2 and any(token.startswith(a) and token.endswith(b) for a, b in SPECIAL)
        begins = token.startswith(BEGINS) if marked else not token.startswith(INSIDE)
        text = token if special else token.removeprefix(INSIDE).removesuffix(CONTINUES)
        text = text[1:] if not special and marked and token.startswith(BEGINS) else text
        if not words or special or starts_word or (begins and not _continues(tokens, len(word_indices))):
            words.append(text or token)
        else:
            words[-1] += text
        starts_word = special
        word_indices.append(len(words) - 1)
    return words, word_indices


def _continues(tokens: Sequence[str], index: int) -> bool:
    """Return whether the previous token continues with this one."""
    return index > 0 and tokens[index - 1].endswith(CONTINUES) and len(tokens[index - 1]) > 2


def word_weights(weights: Tensor, source: Sequence[int], target: Sequence[int], step: Step = "output") -> Tensor:
    """Convert token weights (steps, source tokens) to word weights (target words, source words).

    `source` and `target` hold the word index of each token, −1 for a token outside any word. Weights of the tokens of
    one source word are summed; rows of one target word are averaged. Further steps and tokens (the end of the sentence)
    are ignored.

    >>> w = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.0, 0.1, 0.9]])
    >>> word_weights(w, source=[0, 0, 1], target=[0, 1])
    tensor([[0.9000, 0.1000],
            [0.4000, 0.6000]])
    """
    shift = {"output": 0, "input": 1}.get(step)
    if shift is None:
        raise ValueError(f"alignment: step ({step!r}) must be 'output' or 'input'.")
    steps, source_tokens = weights.shape
    if steps < len(target) + shift or source_tokens < len(source):
        raise ValueError(
            f"alignment: weights ({steps}, {source_tokens}) must have a row for each of {len(target)} target tokens"
            f"{' and the end of the sentence' if shift else ''} and a column for each of {len(source)} source tokens."
        )
    rows = weights[shift : shift + len(target), : len(source)]  # (target tokens, source tokens)
    by_source = _sums(rows.T, source).T  # (target tokens, source words)
    counts = _sums(torch.ones(len(target), 1), target)  # (target words, 1)
    return _sums(by_source, target) / counts  # (target words, source words)


def _sums(x: Tensor, groups: Sequence[int]) -> Tensor:
    """Sum rows of x by group; rows of group −1 are ignored: (n, m) → (groups, m)."""
    count = max(groups, default=-1) + 1
    index = torch.tensor([count if group < 0 else group for group in groups], dtype=torch.long)
    return x.new_zeros(count + 1, x.shape[1]).index_add_(0, index, x)[:count]
