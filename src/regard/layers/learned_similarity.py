"""Similarities with learned tensors, which layers own as parameters.

"dot", "scaled_dot", "cosine"          no parameters
"additive", "bilinear"                 a learned w or W per head
regard.Additive(w), regard.Bilinear(W) the same, from your own tensor
a function or module f(q, k) → scores  its own parameters, if any
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ..attention import Additive, Bilinear
from ..attention.similarity import ScoreFunction, SimilarityArgument
from ..core.typed_call import same_type

SimilarityKind: TypeAlias = Literal["dot", "scaled_dot", "cosine", "additive", "bilinear"]
Similarity: TypeAlias = SimilarityKind | Additive | Bilinear | ScoreFunction
"""The argument `similarity` of layers: "additive" and "bilinear" learn a tensor."""


class LearnedSimilarity(nn.Module):
    """A similarity of the operator whose tensor is a parameter, which is trained, moved and saved with the layer.

    >>> LearnedSimilarity(Additive, torch.ones(3))()
    Additive(weight=Parameter containing:
    tensor([1., 1., 1.], requires_grad=True))
    """

    def __init__(self, kind: Callable[[Tensor], Additive | Bilinear], weight: Tensor) -> None:
        super().__init__()
        self.kind = kind
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)

    def forward(self) -> Additive | Bilinear:
        """Return the similarity in the form that `attend` takes."""
        return self.kind(self.weight)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


def additive(width: int, heads: int | None = None) -> LearnedSimilarity:
    """score = w·tanh(q + k), w (D,) or one per head (H, D) (Bahdanau et al. 2015, appendix A.1.2).

    >>> tuple(additive(8, heads=4).weight.shape)
    (4, 8)
    """
    shape = (width,) if heads is None else (heads, width)
    bound = 1 / math.sqrt(width)
    return LearnedSimilarity(Additive, torch.empty(shape).uniform_(-bound, bound))


def bilinear(width: int, heads: int | None = None) -> LearnedSimilarity:
    """score = q·W·k, W (D, D) or one per head (H, D, D). Starts as scaled dot, W = I/√D (Luong et al. 2015, 3.1).

    >>> bilinear(4)().weight[0].tolist()
    [0.5, 0.0, 0.0, 0.0]
    """
    weight = torch.eye(width) / math.sqrt(width)  # (D, D)
    return LearnedSimilarity(Bilinear, weight if heads is None else weight.repeat(heads, 1, 1))  # (H, D, D)


StoredSimilarity: TypeAlias = SimilarityArgument | LearnedSimilarity
"""The form in which a layer stores a similarity."""

PLAIN = ("dot", "scaled_dot", "cosine")
LEARNED = {"additive": additive, "bilinear": bilinear}


def stored_similarity(where: str, similarity: Similarity, width: int, heads: int | None = None) -> StoredSimilarity:
    """Return the form in which a layer stores a similarity: a name, a module that owns its tensors, or a function."""
    if isinstance(similarity, str) and similarity in LEARNED:
        return LEARNED[similarity](width, heads)
    if isinstance(similarity, Additive):
        return _as_parameter(Additive, similarity.weight)
    if isinstance(similarity, Bilinear):
        return _as_parameter(partial(Bilinear, scale=similarity.scale), similarity.weight)
    if not isinstance(similarity, str) and callable(similarity):
        return similarity
    if similarity in ("dot", "scaled_dot", "cosine"):
        return similarity
    raise ValueError(
        f"{where}: similarity ({similarity!r}) must be one of {', '.join((*PLAIN, *LEARNED))}, Additive(w), "
        f"Bilinear(W) or a callable f(q, k); got {type(similarity).__name__}."
    )


def resolve_similarity(stored: StoredSimilarity) -> SimilarityArgument:
    """Return the `similarity` argument of `attend` for the form that a layer stores."""
    return stored() if isinstance(stored, LearnedSimilarity) else stored


def _as_parameter(kind: Callable[[Tensor], Additive | Bilinear], weight: Tensor) -> LearnedSimilarity:
    if not isinstance(weight, nn.Parameter):
        weight = nn.Parameter(weight, requires_grad=weight.requires_grad)  # a plain tensor stays frozen
    return LearnedSimilarity(kind, weight)
