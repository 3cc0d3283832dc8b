"""What a translator offers, whatever is inside: the search and the tasks know no more than this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap
from ..core.tensors import dtype, shape
from ..data import EOS

TIES = ("none", "target", "all")
"""Which embeddings are one: none; the target's and the output layer's; these and the source's."""


@dataclass(frozen=True)
class Memory:
    """What the encoder made of the sources: it stays the same for all steps of decoding."""

    states: Tensor
    """(B, Ts, W): one vector per source token."""
    lengths: Tensor
    """(B,): how many of them count."""
    summary: Tensor | None = None
    """(B, W): a sentence in one vector, where the model has such."""

    def reorder(self, index: Tensor) -> Memory:
        """The memory of the sentences that `index` (B',) names, in that order."""
        summary = None if self.summary is None else self.summary.index_select(0, index)
        return Memory(self.states.index_select(0, index), self.lengths.index_select(0, index), summary)


class State(Protocol):
    """What a translator remembers between steps: B sentences with K hypotheses each, B·K rows."""

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Go on from the rows that `rows` (B'·K,) names, in that order.

        sentences: (B',), which sentences these rows belong to; None where they are all, in the order they were in.
        """


class EncoderDecoder(Protocol):
    """A model of p(target | source). T target tokens, Ts source tokens, V the target's vocabulary, W a width."""

    config: Any
    """A frozen dataclass of plain numbers and names: `json.dumps(dataclasses.asdict(config))`."""

    vocabulary: nn.Linear
    """The last layer, hidden → logits: a loss may take it apart."""

    @property
    def attends(self) -> bool:
        """Whether decoding attends to the source: then `decode` has maps to return."""

    @property
    def longest(self) -> int | None:
        """The most target tokens that it can go on for; None where there is no end."""

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """source (B, Ts) ids, lengths (B,) → what decoding reads."""

    @overload
    def decode(self, target: Tensor, memory: Any, *, lengths: Tensor | None = None) -> Tensor: ...
    @overload
    def decode(
        self, target: Tensor, memory: Any, *, lengths: Tensor | None = None, return_maps: Literal[True]
    ) -> tuple[Tensor, list[AttentionMap]]: ...
    def decode(self, target: Tensor, memory: Any, *, lengths: Tensor | None = None, return_maps: bool = False) -> Any:
        """All steps at once, given the right tokens so far (teacher forcing).

        target (B, T) input ids, BOS first → hidden (B, T, W), and where asked for, the maps of what was looked at in
        the source: one per layer, (B, H, T, Ts). lengths (B,): input ids that count; what is beyond has no meaning.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., W) → (..., V). Apart, so that a loss can leave padding out."""

    def begin(self, memory: Memory) -> Any:
        """The `State` before the first step, with one hypothesis for each sentence; `reorder` makes them more."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (B·K,), the last of each hypothesis, BOS first → logits (B·K, V) of the next, which the
        caller may overwrite; and the next state."""

    def eval(self) -> Any: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


def embeddings(where: str, source: int, target: int, width: int, tie: str) -> tuple[nn.Embedding, nn.Embedding]:
    """The embeddings of the source and of the target, one and the same where they are tied."""
    for name, size in (("source_vocabulary", source), ("target_vocabulary", target)):
        if size <= EOS:
            raise ValueError(
                f"{where}: {name} ({size}) must be more than {EOS}: ids 0 to {EOS} are PAD, UNK, BOS, EOS."
            )
    if tie == "all" and source != target:
        raise ValueError(
            f"{where}: source_vocabulary ({source}) must be target_vocabulary ({target}) under tie='all'. Train joint "
            "subwords, or take tie='target'."
        )
    made = nn.Embedding(target, width)
    nn.init.normal_(made.weight, std=width**-0.5)
    if tie == "all":
        return made, made
    other = nn.Embedding(source, width)
    nn.init.normal_(other.weight, std=width**-0.5)
    return other, made


def vocabulary_layer(target: nn.Embedding, tie: str) -> nn.Linear:
    """The last layer, (..., W) → (..., V), whose weight is the target's embedding where they are tied."""
    made = nn.Linear(target.embedding_dim, target.num_embeddings, bias=False)
    if tie == "none":
        nn.init.xavier_uniform_(made.weight)
    else:
        made.weight = target.weight
    return made


def check_ids(where: str, ids: Tensor, lengths: Tensor | None, least: int = 0) -> None:
    """ids (B, T) whole numbers, and lengths (B,) from `least` to T."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"{where}: ids ({shape(ids)}) must be whole numbers (batch, length); got {dtype(ids)}.")
    if lengths is None:
        return
    if lengths.shape != ids.shape[:1] or lengths.is_floating_point():
        raise ValueError(
            f"{where}: lengths ({shape(lengths)}) must be {ids.shape[0]} whole numbers, one per sentence of ids "
            f"({shape(ids)}); got {dtype(lengths)}."
        )
    if torch.compiler.is_compiling() or not lengths.numel():
        return
    low, high = int(lengths.min()), int(lengths.max())
    if low < least or high > ids.shape[1]:
        wrong, remedy = low if low < least else high, " An empty sentence is EOS alone." if least else ""
        raise ValueError(
            f"{where}: lengths ({wrong}) must lie in {least}…{ids.shape[1]}, the length of ids ({shape(ids)}).{remedy}"
        )
