"""Similarities with learned tensors, for the layers: what the operator is given, a module must own.

"dot", "scaled_dot", "cosine"          nothing to learn
"additive", "bilinear"                 a learned w or W, one per head
regard.Additive(w), regard.Bilinear(W) the same, from a tensor of your own
a function or module f(q, k) → scores  whatever it learns
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..attention import Additive, Bilinear

Similarity: TypeAlias = str | Additive | Bilinear | Callable[[Tensor, Tensor], Tensor]


class LearnedSimilarity(nn.Module):
    """A similarity of the operator whose tensor is a parameter: trained, moved and saved with the layer it is in.

    >>> LearnedSimilarity(Additive, torch.ones(3))()
    Additive(weight=Parameter containing:
    tensor([1., 1., 1.], requires_grad=True))
    """

    def __init__(self, kind: Callable[[Tensor], Additive | Bilinear], weight: Tensor) -> None:
        super().__init__()
        self.kind = kind
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)

    def forward(self) -> Additive | Bilinear:
        """The similarity as `attend` takes it."""
        return self.kind(self.weight)


def additive(width: int, heads: int | None = None) -> LearnedSimilarity:
    """score = w·tanh(q + k), w (D,) or one per head (H, D) (Bahdanau et al. 2015, appendix A.1.2).

    >>> tuple(additive(8, heads=4).weight.shape)
    (4, 8)
    """
    shape = (width,) if heads is None else (heads, width)
    bound = 1 / math.sqrt(width)
    return LearnedSimilarity(Additive, torch.empty(shape).uniform_(-bound, bound))


def bilinear(width: int, heads: int | None = None) -> LearnedSimilarity:
    """score = q·W·k, W (D, D) or one per head (H, D, D); starts as scaled dot, W = I/√D (Luong et al. 2015, 3.1).

    >>> bilinear(4)().weight[0].tolist()
    [0.5, 0.0, 0.0, 0.0]
    """
    weight = torch.eye(width) / math.sqrt(width)  # (D, D)
    return LearnedSimilarity(Bilinear, weight if heads is None else weight.repeat(heads, 1, 1))  # (H, D, D)


PLAIN = ("dot", "scaled_dot", "cosine")
LEARNED = {"additive": additive, "bilinear": bilinear}


def owned(where: str, similarity: Similarity, width: int, heads: int | None = None) -> Any:
    """What a layer keeps of the similarity it was given: a name, a module that owns its tensors, or a function."""
    if isinstance(similarity, str) and similarity in LEARNED:
        return LEARNED[similarity](width, heads)
    if isinstance(similarity, Additive):
        return _held(Additive, similarity.weight)
    if isinstance(similarity, Bilinear):
        return _held(partial(Bilinear, scale=similarity.scale), similarity.weight)
    if callable(similarity) or similarity in PLAIN:
        return similarity
    raise ValueError(
        f"{where}: similarity ({similarity!r}) must be one of {', '.join((*PLAIN, *LEARNED))}, Additive(w), "
        f"Bilinear(W) or a callable f(q, k); got {type(similarity).__name__}."
    )


def asked(kept: Any) -> Any:
    """What `attend` is given of what a layer keeps."""
    return kept() if isinstance(kept, LearnedSimilarity) else kept


def _held(kind: Callable[[Tensor], Additive | Bilinear], weight: Tensor) -> LearnedSimilarity:
    if not isinstance(weight, nn.Parameter):
        weight = nn.Parameter(weight, requires_grad=weight.requires_grad)  # a plain tensor stays as it is: frozen
    return LearnedSimilarity(kind, weight)
