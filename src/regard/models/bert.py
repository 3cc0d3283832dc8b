"""BERT: a stack of encoder blocks that reads a text in both directions; its heads are in `bert_heads`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import AttentionMap
from ..core.settings import refuse
from ..core.tensors import dtype, shape
from ..core.trace import trace_step
from ..layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention
from ..layers.feedforward import Activation
from ..layers.position import sinusoids
from ..layers.stack import BatchLayout, run_encoder
from .bounds import out_of_bounds, too_large, uneven_heads, unknown_name
from .encoder_decoder import check_ids

_tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}
POOLS = ("first", "mean")
DEVIATION, MADE_FOR = 0.02, 768


@dataclass(frozen=True)
class BertConfig:
    """The sizes and names of a `Bert`."""

    vocabulary: int = 0
    """Number of ids; a recipe takes it from the data."""
    width: int = 256
    """Of embeddings and of every block."""
    heads: int = 4
    """Of every attention; the width is divisible by them."""
    hidden: int = 1024
    """Of the feed-forward layers, inside."""
    layers: int = 4
    """Blocks."""
    positions: int = 512
    """Ids of the longest text."""
    segments: int = 2
    """Kinds of segments: of a pair of texts, 0 for the first and 1 for the second."""
    activation: str = "gelu"
    """The bend of the feed-forward layers: gelu, gelu_new, gelu_pytorch_tanh, relu, silu or swish."""
    dropout: float = 0.1
    """Share of embeddings and of each part's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels have none."""
    head_dropout: float | None = None
    """Share of what a classifier reads dropped in training; None for that of `dropout`."""
    epsilon: float = 1e-12
    """Added to the variance in every normalisation."""
    pad: int = 0
    """The id of padding, whose embedding is not learned."""
    tied: bool = True
    """Whether the layer that predicts tokens has the weights of their embeddings."""
    pool: str = "first"
    """What the pooler reads: "first", the token [CLS], or "mean", the mean of all tokens."""

    def errors(self, where: str = "bert") -> list[str]:
        """Everything that is wrong with these settings, a sentence each."""
        problems = [
            *out_of_bounds(where, self),
            *uneven_heads(where, self.width, self.heads),
            *unknown_name(where, self, {"activation": ACTIVATIONS, "pool": POOLS}),
        ]
        if self.vocabulary == 0:
            problems.append(f"{where}: vocabulary (0) must be at least 1.")
        if not 0 <= self.pad < max(1, self.vocabulary):
            problems.append(f"{where}: pad ({self.pad}) must lie in the vocabulary ({self.vocabulary}).")
        size = self.width * (self.layers * (4 * self.width + 2 * self.hidden) + self.vocabulary)
        return problems or too_large(where, size)


class Bert(nn.Module):
    """Embeddings, encoder blocks with normalisation after each part, and a pooler.

        x₀ = norm(token[idₜ] + segment[sₜ] + position[t]);   xₗ = blockₗ(xₗ₋₁);   pooled = tanh(W·x_L[0] + b)

    With pool="mean" the pooler reads the mean of x_L in place of x_L[0].
    Shapes: ids (B, T) → hidden (B, T, W); pooled (B, W).
    Paper: Devlin et al. 2019, section 3. Weights start as normal of deviation 0.02, biases as zero (its appendix A.2
    and code; not truncated); narrower than 768, by `deviation`, and positions by `begin_in_order`.
    Differs from `transformers`: padding is told by lengths, not by a mask, and is zero in the output.

    Args:
        config: sizes and names.
        pooler: whether it has one. Heads that read the first token need it, others have no use for it.

    Raises:
        ValueError: for sizes and names that do not fit, all at once.

    >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2))
    >>> hidden, maps = bert(torch.randint(1, 50, (2, 7)), torch.tensor([7, 4]), return_maps=True)
    >>> tuple(hidden.shape), [m.shape for m in maps], tuple(bert.pool(hidden).shape)
    ((2, 7, 12), [(2, 3, 7, 7), (2, 3, 7, 7)], (2, 12))
    >>> bool(hidden[1, 4:].any())                                       # the second text ends after four ids
    False
    """

    def __init__(self, config: BertConfig, *, pooler: bool = True) -> None:
        super().__init__()
        refuse(config.errors())
        self.config = config
        width = config.width
        self.tokens = nn.Embedding(config.vocabulary, width, padding_idx=config.pad)
        self.segments = nn.Embedding(config.segments, width)
        self.positions = nn.Embedding(config.positions, width)
        self.norm = nn.LayerNorm(width, eps=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(width, width) if pooler else None
        self.apply(initialise)
        begin_in_order(self.positions)

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        segments: Tensor | None = None,
        *,
        return_maps: bool = False,
    ) -> Any:
        """What the last block makes of each token.

        Args:
            ids: (B, T), whole numbers; anything within the vocabulary in padding.
            lengths: (B,), ids that count, from 0 to T; None for all.
            segments: (B, T), whole numbers; None for zeros.
            return_maps: also return what each block looked at.

        Returns:
            hidden (B, T, W), zero in padding; or (hidden, maps): one (B, H, T, T) per block, zero in padding too.

        Raises:
            ValueError: with the value and the remedy.
        """
        lengths = None if lengths is None else torch.as_tensor(lengths, device=ids.device)
        self._check(ids, lengths, segments)
        layout = BatchLayout.of(ids, lengths)
        x, maps = self._encode(ids, segments, layout, return_maps=return_maps)
        x = layout.unpack(x)  # (B, T, W)
        if lengths is not None and layout.packed is None:
            beyond = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]  # (B, T)
            x = x.masked_fill(beyond[..., None], 0.0)
        return (x, maps) if return_maps else x

    def pooled(
        self,
        ids: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        segments: Tensor | None = None,
        *,
        return_maps: bool = False,
    ) -> Any:
        """`pool` of what `forward` gives for the same: (B, W), or (pooled, maps).

        Of texts of different lengths the last block computes the first token alone, where only that is read.
        """
        lengths = None if lengths is None else torch.as_tensor(lengths, device=ids.device)
        self._check(ids, lengths, segments)
        layout = BatchLayout.of(ids, lengths)
        if self.config.pool == "first" and layout.packed is not None and bool((layout.packed > 0).all()):
            first, maps = self._encode(ids, segments, layout, return_maps=return_maps, first_token=True)
            pooled = self._pooler(first)
        else:
            result = self(ids, lengths, segments, return_maps=return_maps)
            hidden, maps = result if return_maps else (result, [])
            pooled = self.pool(hidden, lengths)
        return (pooled, maps) if return_maps else pooled

    def embed(self, ids: Tensor, segments: Tensor | None = None, place: Tensor | None = None) -> Tensor:
        """(…, T) → (…, T, W): what the first block reads; place (T,): where each id stands, default from 0 on."""
        of_segments = self.segments.weight[0] if segments is None else self.segments(segments)
        of_places = self.positions.weight[: ids.shape[-1]] if place is None else self.positions(place)
        x = self.tokens(ids)
        with trace_step("segment"):
            x = x + of_segments
        with trace_step("position"):
            x = x + of_places
        return self.dropout(self.norm(x))

    def pool(self, hidden: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """(B, T, W) → (B, W), made of the first token, [CLS], or of the mean; lengths as in `forward`."""
        if self.config.pool == "first":
            return self._pooler(hidden[:, 0])
        if lengths is None:
            return self._pooler(hidden.mean(1))
        lengths = torch.as_tensor(lengths, device=hidden.device)
        return self._pooler(hidden.sum(1) / lengths.clamp(min=1)[:, None])  # padding is zero

    def _pooler(self, read: Tensor) -> Tensor:
        if self.pooler is None:
            raise ValueError("bert: pooler (None) must be there to pool; this one was built or stored without.")
        return torch.tanh(self.pooler(read))

    def _encode(
        self, ids: Tensor, segments: Tensor | None, layout: BatchLayout, **options: Any
    ) -> tuple[Tensor, list[AttentionMap]]:
        """The output of the last block, in this layout, and the maps; options are those of `run_encoder`."""
        of_segments = None if segments is None else layout.pack(segments)
        x = self.embed(layout.pack(ids), of_segments, layout.positions)  # (B, T, W) or (N, W)
        return run_encoder(self.blocks, x, layout, **options)

    def _check(self, ids: Tensor, lengths: Tensor | None, segments: Tensor | None) -> None:
        check_ids("bert", ids, lengths)
        if ids.shape[1] > self.config.positions:
            raise ValueError(
                f"bert: ids ({shape(ids)}) must be no longer than positions ({self.config.positions}). Cut the text: "
                f"WordPiece.encode(text, longest={self.config.positions})."
            )
        if segments is not None and (segments.shape != ids.shape or segments.is_floating_point()):
            raise ValueError(
                f"bert: segments ({shape(segments)}) must be whole numbers of the shape of ids ({shape(ids)}); got "
                f"{dtype(segments)}."
            )
        if torch.compiler.is_compiling():
            return
        rows = [("ids", ids, "vocabulary", self.config.vocabulary)]
        rows += [] if segments is None else [("segments", segments, "segments", self.config.segments)]
        for name, values, limit, size in rows:
            low, high = map(int, values.aminmax()) if values.numel() else (0, 0)
            if low < 0 or high >= size:
                wrong = low if low < 0 else high
                raise ValueError(f"bert: {name} ({wrong}) must lie in 0…{size - 1}, below {limit} ({size}).")


def deviation(width: int) -> float:
    """Of the first weights of what sums `width` terms."""
    return DEVIATION * math.sqrt(MADE_FOR / width)


@torch.no_grad()
def begin_in_order(positions: nn.Embedding) -> None:
    """Learned positions that begin as sinusoids: places that are near are alike from the first step on.

    Random ones have to learn first, each for itself, who their neighbours are, and until then nothing can be told of a
    token but how common it is.
    """
    count, width = positions.weight.shape
    waves = sinusoids(torch.arange(count), width + width % 2)[:, :width]  # (T, W), of mean square ½
    positions.weight.copy_(waves * math.sqrt(2) * deviation(width))


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Weights normal, of deviation 0.02 at a width of 768; biases and the embedding of padding zero.

    Narrower layers sum fewer terms: theirs are larger, by the root of that, so that sums are as large as there.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=deviation(module.weight.shape[1]))
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        module.weight[module.padding_idx].zero_()


def _block(config: BertConfig) -> EncoderBlock:
    return EncoderBlock(
        MultiHeadAttention(config.width, config.heads, dropout=config.attention_dropout),
        FeedForward(config.width, config.hidden, activation=ACTIVATIONS[config.activation]),
        dropout=config.dropout,
        norm=partial(nn.LayerNorm, eps=config.epsilon),
    )
