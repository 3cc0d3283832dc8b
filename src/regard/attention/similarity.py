"""Similarities: functions of a query and a key that return a score.

`scores` implements the equation of each. `reduce` transforms queries and keys so that plain dot products give the same
scores, if that is possible. The fused dot-product kernels then support the similarity too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from ..core.tensors import autocast_dtype, widen


class Similarity:
    """Base class. By default a similarity has no parameters and cannot be reduced to dot products.

    >>> q, k = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> Bilinear(torch.eye(2)).scores(q, k)                           # q·W·k for W = I
    tensor([[3., 2.]])
    >>> Bilinear(2 * torch.eye(2)).reduce(q, k)[0]                    # queries whose dot products are the scores
    tensor([[2., 4.]])
    >>> Bilinear(torch.eye(2)).width_per_pair(2), Additive(torch.ones(2)).width_per_pair(2)
    (1, 2)
    >>> Additive(torch.ones(2)).with_parameters((torch.zeros(2),)).parameters
    (tensor([0., 0.]),)
    """

    trailing = 0
    """Number of dimensions of each parameter after the leading ones."""
    reduces_to_dot = False
    """Whether `reduce` returns a `Dot`. The fused dot-product kernels and SDPA serve these similarities."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores of q (..., Tq, D) and k (..., Tk, D): (..., Tq, Tk), differentiable."""
        raise NotImplementedError

    def reduce(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Similarity]:
        """Return equivalent queries, keys and similarity: `Dot` if possible."""
        return q, k, self

    def width_per_pair(self, width: int) -> int:
        """Return how many elements `scores` stores per pair. It determines the size of blocks."""
        return 1

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Tensors that may require gradients."""
        return ()

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Similarity:
        """Return this similarity with other parameters."""
        return self


@dataclass(frozen=True)
class Dot(Similarity):
    """score = scale · q·k"""

    scale: float = 1.0
    reduces_to_dot = True

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = widen(q), widen(k)
        return (q if self.scale == 1.0 else q * self.scale) @ k.mT  # (..., Tq, Tk)


@dataclass(frozen=True)
class Cosine(Similarity):
    """score = scale · q·k / (‖q‖ ‖k‖); zero if a vector is zero"""

    scale: float = 1.0
    reduces_to_dot = True

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.scale * (unit(widen(q)) @ unit(widen(k)).mT)

    def reduce(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Similarity]:
        return unit(widen(q)).to(q.dtype), unit(widen(k)).to(k.dtype), Dot(self.scale)


@dataclass(frozen=True, eq=False)
class Bilinear(Similarity):
    """score = scale · q·W·k (Luong et al. 2015, "general").

    W (D of the query, D of the key), or one per head (H, D, D). Query and key may differ in width.

    >>> import regard
    >>> q, k, v = torch.randn(2, 3), torch.randn(5, 4), torch.randn(5, 6)
    >>> tuple(regard.attend(q, k, v, similarity=regard.Bilinear(torch.randn(3, 4))).shape)
    (2, 6)
    """

    weight: Tensor
    scale: float = 1.0
    trailing = 2
    reduces_to_dot = True

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.scale * torch.einsum("...id,...de,...je->...ij", widen(q), widen(self.weight), widen(k))

    def reduce(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Similarity]:
        return (widen(q) @ widen(self.weight)).to(q.dtype), k, Dot(self.scale)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Similarity:
        return replace(self, weight=parameters[0])


@dataclass(eq=False)
class Prepared:
    """Keys that several calls share, and their exponentials from the first of these calls."""

    key: Tensor
    version: int
    """Version counter of the key. After an in-place write the exponentials are not used any more."""
    exponentials: Tensor | None = None

    def serves(self, key: Tensor) -> bool:
        return key is self.key and key._version == self.version


@dataclass(frozen=True, eq=False)
class Additive(Similarity):
    """score = w·tanh(q + k) (Bahdanau et al. 2015, appendix A.1.2, where w is v_a and q, k are W_a s and U_a h).

    w (D,), or one per head (H, D). Query and key must already be projected to the same width.

    >>> import regard
    >>> q, k, v = torch.randn(2, 3), torch.randn(5, 3), torch.randn(5, 6)
    >>> tuple(regard.attend(q, k, v, similarity=regard.Additive(torch.randn(3))).shape)
    (2, 6)
    """

    weight: Tensor
    prepared: Prepared | None = field(default=None, repr=False)
    trailing = 1

    def prepare(self, key: Tensor) -> Additive:
        """Return this similarity for several calls with the same key, such as the steps of a recurrent decoder.

        The native kernels then compute the exponentials of the key once instead of in every call; other backends
        ignore it. Gradients flow to the key from every call. With another key it is the plain similarity.

        >>> key, value, w = torch.randn(5, 3), torch.randn(5, 6), torch.randn(3)
        >>> similarity = Additive(w).prepare(key)
        >>> import regard
        >>> steps = [regard.attend(torch.randn(1, 3), key, value, similarity=similarity) for _ in range(4)]
        """
        if not isinstance(key, Tensor):
            raise ValueError(f"Additive.prepare: key must be a tensor; got {type(key).__name__}. Try torch.as_tensor.")
        return replace(self, prepared=Prepared(key, key._version))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        activated = torch.tanh(widen(q).unsqueeze(-2) + widen(k).unsqueeze(-3))  # (..., Tq, Tk, D)
        w = widen(self.weight)[..., None, None, :]
        return (activated * w).sum(-1)  # not a matrix product: its gradient for w would sum all pairs in one long row

    def width_per_pair(self, width: int) -> int:
        return width

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Similarity:
        return Additive(parameters[0])


class ScoreFunction(Protocol):
    """A callable that returns the scores of queries (..., rows, D) and keys (..., cols, D): (..., rows, cols).

    It must treat pairs independently, because it sees one block of them at a time.

    >>> import regard
    >>> def distance(q: Tensor, k: Tensor) -> Tensor:
    ...     return -torch.cdist(q, k)
    >>> q, k = torch.tensor([[0.0]]), torch.tensor([[0.0], [9.0]])
    >>> regard.attend(q, k, k, similarity=distance).round(decimals=2).tolist()
    [[0.0]]
    """

    def __call__(self, q: Tensor, k: Tensor, /) -> Tensor:
        """Return the scores."""


@dataclass(frozen=True, eq=False)
class Pairwise(Similarity):
    """score = f(q_block, k_block), for any callable f, such as a small network over pairs.

    f takes queries (..., rows, D) and keys (..., cols, D) and returns scores (..., rows, cols). It must treat pairs
    independently, because it sees one block at a time. `leaves` are the tensors it reads that require gradients;
    `with_parameters` cannot replace them. `autocast` is the autocast dtype at the time of the call.
    """

    function: ScoreFunction
    leaves: tuple[Tensor, ...] = ()
    autocast: torch.dtype | None = None

    @classmethod
    def of(cls, function: ScoreFunction, q: Tensor, k: Tensor) -> Pairwise:
        """Find the parameters that f reads by calling it on one pair, q (..., 1, D) and k (..., 1, D).

        If there is no pair, because a size is 0, it is called on zeros.
        """
        similarity = cls(function, autocast=autocast_dtype(q.device))
        if not torch.is_grad_enabled():
            return similarity
        q, k = (x.new_zeros([max(1, n) for n in x.shape]) if 0 in x.shape else x.detach() for x in (q, k))
        return replace(similarity, leaves=tuple(reachable_leaves(similarity.scores(q, k))))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        if self.autocast is None:
            scores = self.function(q, k)
        else:
            with torch.autocast(q.device.type, dtype=self.autocast):
                scores = self.function(q, k)
        pairs = (q.shape[-2], k.shape[-2])
        if not isinstance(scores, Tensor) or tuple(scores.shape[-2:]) != pairs:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"attend: similarity (a callable) must return scores of shape (..., {pairs[0]}, {pairs[1]}) "
                f"for queries {tuple(q.shape)} and keys {tuple(k.shape)}; got {got}."
            )
        return widen(scores)

    def width_per_pair(self, width: int) -> int:
        return 4 * width  # unknown; a typical width of a hidden layer over pairs

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.leaves


NAMED: dict[str, Callable[[int], Similarity]] = {
    "dot": lambda width: Dot(),
    "scaled_dot": lambda width: Dot(1 / math.sqrt(max(1, width))),
    "cosine": lambda width: Cosine(),
}
"""Similarities without parameters by name, as functions of the width of queries. Each has a field `scale`."""
_KNOWN = f"one of {', '.join(NAMED)}, or Additive(w), Bilinear(W) or a callable f(q_block, k_block)"
SimilarityName: TypeAlias = Literal["dot", "scaled_dot", "cosine"]
"""A name in `NAMED`."""
SimilarityArgument: TypeAlias = SimilarityName | Additive | Bilinear | ScoreFunction
"""The argument `similarity` of `attend`: a name, a similarity with parameters, or a callable."""


def resolve(
    similarity: SimilarityArgument, scale: float | None, width: int, pair: Callable[[], tuple[Tensor, Tensor]]
) -> Similarity:
    """Return the similarity for the argument of `attend`, with its scale. Raises ValueError if they do not match.

    `width` is the width of queries. `pair` returns one query (..., 1, D) and one key (..., 1, D) of each entry, with
    equally many heads, on which a callable is tried.
    """
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"attend: scale ({scale}) must be a finite number. None takes the similarity's own.")
    if isinstance(similarity, str):
        return _named(similarity, scale, width)
    if isinstance(similarity, Bilinear):
        return similarity if scale is None else replace(similarity, scale=scale)
    if scale is not None:
        raise ValueError(
            f"attend: scale ({scale}) must be None for {_describe(similarity)}: it multiplies dot, cosine and bilinear "
            "scores only. Fold it into the similarity's own parameters."
        )
    if isinstance(similarity, Additive):
        return similarity
    if callable(similarity):
        return Pairwise.of(similarity, *pair())
    raise ValueError(f"attend: similarity ({similarity!r}) must be {_KNOWN}; got {type(similarity).__name__}.")


def _named(name: str, scale: float | None, width: int) -> Similarity:
    if name in NAMED:
        similarity = NAMED[name](width)
        return similarity if scale is None else replace(similarity, scale=float(scale))  # type: ignore[type-var]
    remedy = {
        "additive": " Additive scores have weights: pass regard.Additive(w).",
        "bilinear": " Bilinear scores have a matrix: pass regard.Bilinear(W).",
    }.get(name, "")
    raise ValueError(f"attend: similarity ({name!r}) must be {_KNOWN}.{remedy}")


def _describe(similarity: object) -> str:
    return "an Additive similarity" if isinstance(similarity, Additive) else "a callable similarity"


def reachable_leaves(x: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors that require gradients and from which x was computed, or x itself."""
    if x.is_leaf and x.requires_grad:
        yield x
    pending, seen = [x.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        pending += [following for following, _ in node.next_functions]


def unit(x: Tensor) -> Tensor:
    """Return x / ‖x‖, for any finite norm. Zero stays zero, with a zero gradient."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    is_zero = largest == 0
    x = x / torch.where(is_zero, 1, largest)  # so that no square overflows or underflows
    squares = (x * x).sum(-1, keepdim=True)
    return torch.where(is_zero, 0, x / torch.where(is_zero, 1, squares).sqrt())
