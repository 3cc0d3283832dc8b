"""Word alignments from attention weights: the source word that each target word was translated from.

    weights (Tt tokens, Ts tokens)  →  words × words  →  links  →  "0-0 1-2 2-1" (Pharaoh format: source-target)

Two conventions assign a decoder step to a target token:

    "output"   the step that wrote the token:              row i for token i
    "input"    the next step, which reads the token:       row i + 1 for token i  (Chen et al. 2020, "shift")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from ..attention.word_weights import Step as Step
from ..attention.word_weights import word_weights as word_weights

__all__ = ["agreement", "error_rate", "links", "parse_pharaoh", "pharaoh"]

Link = tuple[int, int]
"""(source word, target word), counted from 0."""


def links(weights: Tensor) -> list[Link]:
    """Link each target word to the source word with the highest weight: (target words, source words) → pairs.

    >>> links(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))
    [(0, 1), (1, 0)]
    """
    if not weights.numel():
        return []
    return sorted((source, target) for target, source in enumerate(weights.argmax(1).tolist()))


def agreement(forward: Tensor, backward: Tensor) -> Tensor:
    """Combine the word weights of two models, one per direction: (Tt, Ts) and (Ts, Tt) words → (Tt, Ts).

        g = forward ⊙ backwardᵀ;   agreement = g / Σ of its row + g / Σ of its column

    A single model attends mostly to content words and gives little weight to the function words beside them. The model
    of the other direction has to produce those function words, so it attends to their origin. The second term reduces
    the weight of a source word that many target words attend to.

    >>> forward = torch.tensor([[0.1, 0.9], [0.2, 0.8]])      # both target words attend to the second source word
    >>> backward = torch.tensor([[0.9, 0.1], [0.1, 0.9]])     # in the other direction, each attends to its own
    >>> links(forward), links(agreement(forward, backward))
    ([(1, 0), (1, 1)], [(0, 0), (1, 1)])
    """
    if forward.shape != backward.T.shape:
        raise ValueError(
            f"alignment: backward {tuple(backward.shape)} must have the transposed shape of forward "
            f"{tuple(forward.shape)}."
        )
    both = forward * backward.T  # (Tt, Ts)
    smallest = torch.finfo(both.dtype).tiny
    return both / both.sum(1, keepdim=True).clamp_min(smallest) + both / both.sum(0).clamp_min(smallest)


def pharaoh(pairs: Iterable[Link]) -> str:
    """Return links as one line in Pharaoh format.

    >>> pharaoh([(0, 0), (2, 1)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(pairs))


def parse_pharaoh(line: str) -> set[Link]:
    """Parse the links of a line in Pharaoh format.

    >>> sorted(parse_pharaoh("0-0 2-1"))
    [(0, 0), (2, 1)]
    """
    try:
        return {(int(source), int(target)) for source, target in (word.split("-") for word in line.split())}
    except ValueError:
        raise ValueError(f"alignment: line ({line.strip()!r}) must be links such as '0-0 2-1'.") from None


def error_rate(pairs: Iterable[tuple[Collection[Link], Collection[Link], Collection[Link]]]) -> float:
    """Return the alignment error rate over sentences, each given as sets of predicted (A), sure (S) and possible
    (P ⊇ S) links (Och & Ney 2003, section 4.2).

        AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    >>> error_rate([({(0, 0), (1, 1)}, {(0, 0)}, {(0, 0), (1, 2)})])
    0.33333333333333337
    """
    hits = total = 0
    for predicted, sure, possible in pairs:
        a, s = set(predicted), set(sure)
        hits += len(a & s) + len(a & (set(possible) | s))
        total += len(a) + len(s)
    if not total:
        raise ValueError("alignment: error rate needs at least one predicted or sure link; got none.")
    return 1 - hits / total
