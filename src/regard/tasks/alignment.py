"""Word alignments read off attention: which source word each target word came from.

    weights (Tt pieces, Ts pieces)  →  words × words  →  links  →  "0-0 1-2 2-1" (Pharaoh format: source-target)

Two conventions tell which step of the decoder speaks of a target piece:

    "output"   the step that wrote it:               row i for piece i
    "input"    the step after, which has read it:    row i + 1 for piece i  (Chen et al. 2020, "shift")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from ..attention.word_weights import Step as Step
from ..attention.word_weights import word_weights as word_weights

Link = tuple[int, int]
"""(source word, target word), counted from 0."""


def links(weights: Tensor) -> list[Link]:
    """Each target word with the source word it looked at most: (target words, source words) → pairs."""
    if not weights.numel():
        return []
    return sorted((source, target) for target, source in enumerate(weights.argmax(1).tolist()))


def agreement(forward: Tensor, backward: Tensor) -> Tensor:
    """Weights that two models agree on, one for each direction: (Tt, Ts) and (Ts, Tt) words → (Tt, Ts).

        g = forward ⊙ backwardᵀ;   agreement = g / Σ of its row + g / Σ of its column

    A model looks at words that tell much, whatever it is about to write, and says little of the small ones beside them.
    The other one has to write those, so it looks for where they came from; and in the second term a word that is looked
    at by many counts less for each.

    >>> forward = torch.tensor([[0.1, 0.9], [0.2, 0.8]])      # both words look at the second
    >>> backward = torch.tensor([[0.9, 0.1], [0.1, 0.9]])     # the other way each has its own
    >>> links(forward), links(agreement(forward, backward))
    ([(1, 0), (1, 1)], [(0, 0), (1, 1)])
    """
    if forward.shape != backward.T.shape:
        raise ValueError(
            f"alignment: backward {tuple(backward.shape)} must be over the words of forward "
            f"{tuple(forward.shape)}, the other way round."
        )
    both = forward * backward.T  # (Tt, Ts)
    least = torch.finfo(both.dtype).tiny
    return both / both.sum(1, keepdim=True).clamp_min(least) + both / both.sum(0).clamp_min(least)


def pharaoh(found: Iterable[Link]) -> str:
    """Links as one line of text.

    >>> pharaoh([(0, 0), (2, 1)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(found))


def parse_pharaoh(line: str) -> set[Link]:
    """The links of a line in Pharaoh format.

    >>> sorted(parse_pharaoh("0-0 2-1"))
    [(0, 0), (2, 1)]
    """
    try:
        return {(int(source), int(target)) for source, target in (word.split("-") for word in line.split())}
    except ValueError:
        raise ValueError(f"alignment: line ({line.strip()!r}) must be links such as '0-0 2-1'.") from None


def error_rate(pairs: Iterable[tuple[Collection[Link], Collection[Link], Collection[Link]]]) -> float:
    """Alignment error rate over sentences of (found A, sure S, possible P ⊇ S) (Och & Ney 2003, section 4.2).

        AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    >>> error_rate([({(0, 0), (1, 1)}, {(0, 0)}, {(0, 0), (1, 2)})])
    0.33333333333333337
    """
    hits = total = 0
    for found, sure, possible in pairs:
        a, s = set(found), set(sure)
        hits += len(a & s) + len(a & (set(possible) | s))
        total += len(a) + len(s)
    if not total:
        raise ValueError("alignment: error rate must have links to count; got none, found or sure.")
    return 1 - hits / total
