"""The interface of translation models, which the search and the tasks use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap
from ..core.tensors import dtype, shape
from ..data import EOS

TIES = ("none", "target", "all")
"""Which embeddings are shared: none; target and output layer; these and the source."""


@dataclass(frozen=True)
class Memory:
    """The encoder output. It does not change during decoding.

    >>> memory = Memory(torch.randn(2, 7, 4), torch.tensor([7, 5]))
    >>> memory.reorder(torch.tensor([1, 1, 0])).lengths
    tensor([5, 5, 7])
    """

    states: Tensor
    """(B, Ts, W): one vector per source token."""
    lengths: Tensor
    """(B,): number of valid vectors."""
    summary: Tensor | None = None
    """(B, W): one vector per sentence, if the model computes it."""

    def reorder(self, index: Tensor) -> Memory:
        """Return the memory of the sentences `index` (B',), in that order."""
        summary = None if self.summary is None else self.summary.index_select(0, index)
        return Memory(self.states.index_select(0, index), self.lengths.index_select(0, index), summary)


class State(Protocol):
    """The state of a translator between steps: B sentences with K hypotheses each, B·K rows."""

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Continue from the rows `rows` (B'·K,), in that order.

        sentences: (B',), the sentences of these rows; None if they are all sentences in unchanged order.
        """


class EncoderDecoder(Protocol):
    """A model of p(target | source), with T target tokens, Ts source tokens, target vocabulary V and width W.

    `Transformer` and `Seq2Seq` are such models. A greedy translation, step by step:

    >>> from regard.data import BOS
    >>> from regard.models import Transformer, TransformerConfig
    >>> model: EncoderDecoder = Transformer(TransformerConfig(11, 13, width=8, heads=2, hidden=16))
    >>> _ = model.eval()
    >>> memory = model.encode(torch.tensor([[5, 7, EOS]]), torch.tensor([3]))
    >>> state, token = model.begin(memory), torch.tensor([BOS])
    >>> for _ in range(4):
    ...     logits, state = model.step(token, state)                  # (1, V)
    ...     token = logits.argmax(-1)                                 # (1,)
    >>> tuple(logits.shape), model.attends, model.longest, model.config.width
    ((1, 13), True, None, 8)

    All steps at once, from the correct previous tokens, as in training:

    >>> hidden = model.decode(torch.tensor([[BOS, 6, 9]]), memory)
    >>> tuple(hidden.shape), tuple(model.logits(hidden).shape), next(model.parameters()).requires_grad
    ((1, 3, 8), (1, 3, 13), True)
    """

    @property
    def config(self) -> object:
        """A frozen dataclass of numbers and names that JSON can represent: `json.dumps(dataclasses.asdict(config))`."""

    vocabulary: nn.Linear
    """The last layer, hidden → logits. A loss may fuse it."""

    @property
    def attends(self) -> bool:
        """Whether decoding attends to the source, so that `decode` can return maps."""

    @property
    def longest(self) -> int | None:
        """Maximum number of target tokens; None if there is no limit."""

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode source ids (B, Ts) of lengths (B,)."""

    @overload
    def decode(
        self, target: Tensor, memory: Memory, *, lengths: Tensor | None = None, return_maps: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def decode(
        self, target: Tensor, memory: Memory, *, lengths: Tensor | None = None, return_maps: Literal[True]
    ) -> tuple[Tensor, list[AttentionMap]]: ...
    @overload
    def decode(
        self, target: Tensor, memory: Memory, *, lengths: Tensor | None = None, return_maps: bool
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]: ...
    def decode(
        self, target: Tensor, memory: Memory, *, lengths: Tensor | None = None, return_maps: bool = False
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Compute all steps at once from the correct previous tokens (teacher forcing).

        target (B, T) input ids, starting with BOS → hidden (B, T, W), and if requested, the cross-attention maps, one
        per layer, (B, H, T, Ts). lengths (B,): number of valid input ids; the output after them is undefined.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits: (..., W) → (..., V). Separate from `decode`, so that a loss can skip padding."""

    def begin(self, memory: Memory) -> State:
        """Return the initial `State`, with one hypothesis per sentence. `reorder` can add more."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits (B·K, V) of the next tokens, and the next state. tokens (B·K,): last token of each
        hypothesis, starting with BOS. The caller may overwrite the logits."""

    def eval(self) -> object:
        """Switch to evaluation mode, as `nn.Module.eval` does."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters, as `nn.Module.parameters` does."""


def embeddings(where: str, source: int, target: int, width: int, tie: str) -> tuple[nn.Embedding, nn.Embedding]:
    """Return the embeddings of source and target; the same object if they are tied."""
    for name, size in (("source_vocabulary", source), ("target_vocabulary", target)):
        if size <= EOS:
            raise ValueError(
                f"{where}: {name} ({size}) must be more than {EOS}: ids 0 to {EOS} are PAD, UNK, BOS, EOS."
            )
    if tie == "all" and source != target:
        raise ValueError(
            f"{where}: source_vocabulary ({source}) must be target_vocabulary ({target}) under tie='all'. Train joint "
            "subwords, or use tie='target'."
        )
    target_embedding = nn.Embedding(target, width)
    nn.init.normal_(target_embedding.weight, std=width**-0.5)
    if tie == "all":
        return target_embedding, target_embedding
    source_embedding = nn.Embedding(source, width)
    nn.init.normal_(source_embedding.weight, std=width**-0.5)
    return source_embedding, target_embedding


def vocabulary_layer(target: nn.Embedding, tie: str) -> nn.Linear:
    """Return the last layer, (..., W) → (..., V). Its weight is the target embedding if they are tied."""
    layer = nn.Linear(target.embedding_dim, target.num_embeddings, bias=False)
    if tie == "none":
        nn.init.xavier_uniform_(layer.weight)
    else:
        layer.weight = target.weight
    return layer


def check_range(where: str, name: str, values: Tensor, limit: str, size: int) -> None:
    """Raise ValueError unless the values, such as ids, lie below the size named `limit`."""
    if torch.compiler.is_compiling() or not values.numel():
        return
    low, high = map(int, values.aminmax())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise ValueError(f"{where}: {name} ({wrong}) must lie in 0…{size - 1}, below {limit} ({size}).")


def check_ids(where: str, ids: Tensor, lengths: Tensor | None, least: int = 0) -> None:
    """Raise ValueError unless ids (B, T) are integers and lengths (B,) lie in `least` to T."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"{where}: ids ({shape(ids)}) must be integers (batch, length); got {dtype(ids)}.")
    if lengths is None:
        return
    if lengths.shape != ids.shape[:1] or lengths.is_floating_point():
        raise ValueError(
            f"{where}: lengths ({shape(lengths)}) must be {ids.shape[0]} integers, one per sentence of ids "
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
