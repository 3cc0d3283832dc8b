"""The context of a recurrent decoder: cᵢ = c(H, sᵢ₋₁), the part of the source that is relevant at step i.

fixed      c = the encoder's last states, at every step: the sentence as one vector
additive   scores w·tanh(W s + U h)       Bahdanau et al. 2015
dot        scores s·h                     Luong et al. 2015
bilinear   scores s·W·h                   Luong et al. 2015, "general"
cosine     scores g·cos(s, h), g learned  Graves et al. 2014, section 3.3.1
hard       additive scores; selects the best h only
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..attention import Additive, AttentionMap, attend
from ..attention.request import Request, Weighting
from ..attention.similarity import SimilarityArgument, unit
from ..core.typed_call import same_type
from ..layers.learned_similarity import StoredSimilarity, additive, resolve_similarity
from .encoder_decoder import Memory

SHARPNESS = 10.0
"""Initial value of g of cosine scores. Weights from e^10 to e^-10 can single out one key among many."""


class Keys(NamedTuple):
    """Tensors that are computed once per source, for all decoding steps."""

    key: Tensor
    """(B, 1, Ts, D)"""
    value: Tensor
    """(B, 1, Ts, C)"""
    lengths: Tensor
    """(B,)"""
    similarity: SimilarityArgument

    def reorder(self, index: Tensor) -> Keys:
        key, value = self.key.index_select(0, index), self.value.index_select(0, index)
        return Keys(key, value, self.lengths.index_select(0, index), _prepared(self.similarity, key))


KeysType = TypeVar("KeysType")


class Context(Protocol[KeysType]):
    """The context of a decoder: a vector for each decoder state, computed from keys that depend on the source only."""

    @property
    def constant(self) -> bool:
        """Whether all steps have the same context."""

    def keys(self, memory: Memory) -> KeysType:
        """Return the tensors that depend only on the source, for all steps."""

    def __call__(self, state: Tensor, keys: KeysType) -> Tensor:
        """Return the contexts of decoder states: (B·K, W) → (B·K, C)."""

    def maps(self, states: Tensor, keys: KeysType) -> list[AttentionMap]:
        """Return the maps of all steps from states (B, T, W); empty if there are no weights."""


class FixedContext(nn.Module):
    """The encoder's last states, independent of the decoder state: the bottleneck that attention removes.

    There are no weights, so `maps` is empty: the vector is not a weighted sum of the encoder outputs.
    Paper: Cho et al. 2014, section 2.2, where every step receives c; Sutskever et al. 2014.

    >>> context, summary = FixedContext(), torch.tensor([[1.0, 2.0]])
    >>> keys = context.keys(Memory(torch.randn(1, 5, 2), torch.tensor([5]), summary))
    >>> context(torch.randn(3, 6), keys).tolist()                     # three hypotheses of one sentence
    [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    >>> context.maps(torch.randn(1, 4, 6), keys)
    []
    """

    constant = True
    """Whether all steps have the same context. The decoder can then compute all steps at once."""

    def keys(self, memory: Memory) -> Memory:
        """Return the memory itself: nothing has to be computed from it."""
        return memory

    def forward(self, state: Tensor, keys: Memory) -> Tensor:
        """Return the contexts of states: (B·K, W) → (B·K, C). Rows of the same sentence get the same context."""
        assert keys.summary is not None, "a recurrent encoder has one"
        return keys.summary.repeat_interleave(len(state) // len(keys.summary), 0)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def maps(self, states: Tensor, keys: Memory) -> list[AttentionMap]:
        """Return an empty list: there are no weights."""
        return []


class AttentiveContext(nn.Module):
    """A sum of the encoder states, weighted by their similarity with the decoder state.

        scores = similarity(s, H),   weights = weighting(scores),   c = weights · H

    Shapes: state (B·K, W), K hypotheses of each of B sentences, → context (B·K, C).
    Tensors that depend only on the source are computed once (`keys`): projections, exponentials and unit vectors. So
    bilinear scores are dot products with W·h, and cosine scores are dot products with g·h/‖h‖.

    Args:
        state_width: W, width of the decoder state.
        memory_width: C, width of the encoder states.
        similarity: "additive", "dot", "bilinear" or "cosine".
        weighting: "softmax", "hard" or "uniform", as in `regard.attend`.
        width: width of the projections of additive scores; default state_width.

    Raises:
        ValueError: for an unknown name, and for dot and cosine scores of vectors of different width.

    >>> context = AttentiveContext(6, 4)
    >>> keys = context.keys(Memory(torch.randn(2, 5, 4), torch.tensor([5, 3])))
    >>> tuple(context(torch.randn(2, 6), keys).shape)
    (2, 4)
    >>> [m.shape for m in context.maps(torch.randn(2, 3, 6), keys)]   # of three decoder states each
    [(2, 1, 3, 5)]
    """

    constant = False
    is_cross_attention = True
    """For `regard.watch`: sizes alone do not show it if source and translation have equally many tokens."""

    def __init__(
        self,
        state_width: int,
        memory_width: int,
        *,
        similarity: str = "additive",
        weighting: Weighting = "softmax",
        width: int | None = None,
    ) -> None:
        super().__init__()
        _check(similarity, state_width, memory_width)
        self.similarity_name, self.weighting = similarity, weighting
        width = state_width if width is None else width
        self.query: nn.Module = nn.Identity()
        self.key: nn.Module = nn.Identity()
        self.similarity: StoredSimilarity = "dot"
        if similarity == "additive":
            self.query = nn.Linear(state_width, width, bias=False)
            self.key = nn.Linear(memory_width, width)
            self.similarity = additive(width)
        elif similarity == "bilinear":
            self.key = nn.Linear(memory_width, state_width, bias=False)
        elif similarity == "cosine":
            self.sharpness = nn.Parameter(torch.tensor(SHARPNESS))

    def keys(self, memory: Memory) -> Keys:
        """Return what depends only on the source: projected keys, values, lengths and the similarity."""
        key = self.key(memory.states)  # (B, Ts, D)
        if self.similarity_name == "cosine":
            key = self.sharpness * unit(key)
        key = key.unsqueeze(1)  # (B, 1, Ts, D)
        return Keys(
            key, memory.states.unsqueeze(1), memory.lengths, _prepared(resolve_similarity(self.similarity), key)
        )

    def forward(self, state: Tensor, keys: Keys) -> Tensor:
        """Return the contexts of decoder states: (B·K, W) → (B·K, C)."""
        query = self._queries(state).view(len(keys.key), 1, -1, keys.key.shape[-1])  # (B, 1, K, D)
        context = attend(
            query, keys.key, keys.value, similarity=keys.similarity, weighting=self.weighting, lengths=keys.lengths
        )  # (B, 1, K, C)
        return context.view(len(state), -1)  # (B·K, C)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    @torch.no_grad()
    def maps(self, states: Tensor, keys: Keys) -> list[AttentionMap]:
        """Return one map of all steps, (B, 1, T, Ts), from the states (B, T, W) that are used as queries."""
        request = Request.of(
            self._queries(states).unsqueeze(1),  # (B, 1, T, D)
            keys.key,
            keys.value,
            similarity=keys.similarity,
            weighting=self.weighting,
            lengths=keys.lengths,
        )
        return [AttentionMap(request.kept())]

    def _queries(self, state: Tensor) -> Tensor:
        queries: Tensor = unit(state) if self.similarity_name == "cosine" else self.query(state)
        return queries

    def extra_repr(self) -> str:
        return f"similarity={self.similarity_name!r}, weighting={self.weighting!r}"


CONTEXTS: dict[str, dict[str, Any] | None] = {
    "fixed": None,
    "additive": {"similarity": "additive"},
    "dot": {"similarity": "dot"},
    "bilinear": {"similarity": "bilinear"},
    "cosine": {"similarity": "cosine"},
    "hard": {"similarity": "additive", "weighting": "hard"},
}
"""Context names and the arguments of their `AttentiveContext`."""


def context_of(name: str, state_width: int, memory_width: int) -> FixedContext | AttentiveContext:
    """Build the context with this name.

    >>> context_of("dot", 8, 8).similarity_name
    'dot'
    """
    if name not in CONTEXTS:
        raise ValueError(f"seq2seq: context ({name!r}) must be one of {', '.join(CONTEXTS)}.")
    options = CONTEXTS[name]
    return FixedContext() if options is None else AttentiveContext(state_width, memory_width, **options)


def _prepared(similarity: SimilarityArgument, key: Tensor) -> SimilarityArgument:
    """Prepare additive scores for repeated calls with `key`.

    Nothing is prepared for inference-mode tensors: they have no version counter, so in-place writes to them cannot be
    detected.
    """
    return similarity.prepare(key) if isinstance(similarity, Additive) and not key.is_inference() else similarity


def _check(similarity: str, state_width: int, memory_width: int) -> None:
    known = ("additive", "dot", "bilinear", "cosine")
    if similarity not in known:
        raise ValueError(f"context: similarity ({similarity!r}) must be one of {', '.join(known)}.")
    if similarity in ("dot", "cosine") and state_width != memory_width:
        raise ValueError(
            f"context: state_width ({state_width}) must be memory_width ({memory_width}) for {similarity} scores. Make "
            "the encoder's states as wide (two directions count twice), or use bilinear or additive scores."
        )
