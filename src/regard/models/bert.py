"""BERT: a stack of encoder blocks that reads text in both directions. Its heads are in `bert_heads`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import AttentionMap
from ..attention.packed_layout import Lengths
from ..core.settings import refuse
from ..core.tensors import dtype, shape
from ..core.trace import trace_step
from ..core.typed_call import same_type
from ..layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention
from ..layers.feedforward import Activation
from ..layers.position import sinusoids
from ..layers.stack import BatchLayout, run_encoder
from .bounds import out_of_bounds, too_large, uneven_heads, unknown_name
from .encoder_decoder import check_ids, check_range

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
DEVIATION, REFERENCE_WIDTH = 0.02, 768


@dataclass(frozen=True)
class BertConfig:
    """Sizes and names of a `Bert`."""

    vocabulary: int = 0
    """Number of ids; a recipe takes it from the data."""
    width: int = 256
    """Width of embeddings and blocks."""
    heads: int = 4
    """Number of attention heads; must divide the width."""
    hidden: int = 1024
    """Inner width of the feed-forward layers."""
    layers: int = 4
    """Number of blocks."""
    positions: int = 512
    """Maximum number of ids of a text."""
    segments: int = 2
    """Number of segment types: in a pair of texts, 0 is the first and 1 the second."""
    activation: str = "gelu"
    """Activation of the feed-forward layers: gelu, gelu_new, gelu_pytorch_tanh, relu, silu or swish."""
    dropout: float = 0.1
    """Share of embeddings and of each sublayer's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels do not support it."""
    head_dropout: float | None = None
    """Share of a classifier's input dropped in training; None uses `dropout`."""
    epsilon: float = 1e-12
    """Epsilon of all layer norms."""
    pad: int = 0
    """Id of padding, whose embedding is not trained."""
    tied: bool = True
    """Whether the token prediction layer shares the weights of the token embeddings."""
    pool: str = "first"
    """Input of the pooler: "first", the token [CLS], or "mean", the mean of all tokens."""

    def errors(self, where: str = "bert") -> list[str]:
        """Return all errors in these settings, one sentence each.

        >>> BertConfig(vocabulary=50, pad=50).errors()
        ['bert: pad (50) must lie in the vocabulary (50).']
        """
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


class ReadsText(Protocol):
    """The call of a BERT and of its heads."""

    @overload
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        segments: Tensor | None = None,
        *,
        return_maps: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, segments: Tensor | None = None, *, return_maps: Literal[True]
    ) -> tuple[Tensor, list[AttentionMap]]: ...
    @overload
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, segments: Tensor | None = None, *, return_maps: bool
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]: ...


class Bert(nn.Module):
    """Embeddings, encoder blocks with normalization after each sublayer, and a pooler.

        x₀ = norm(token[idₜ] + segment[sₜ] + position[t]);   xₗ = blockₗ(xₗ₋₁);   pooled = tanh(W·x_L[0] + b)

    With pool="mean" the pooler reads the mean of x_L instead of x_L[0].
    Shapes: ids (B, T) → hidden (B, T, W); pooled (B, W).
    Paper: Devlin et al. 2019, section 3. Weights are initialized from a normal distribution with standard deviation
    0.02 (not truncated), biases with zero (appendix A.2 and code). For widths below 768 see `deviation`, for positions
    `begin_in_order`. Differs from `transformers`: padding is given by lengths, not by a mask; its output is zero.

    Args:
        config: sizes and names.
        pooler: whether to build a pooler. Heads that read the first token need it.

    Raises:
        ValueError: for invalid sizes and names. The message lists them all.

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

    @same_type(ReadsText.forward)
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, segments: Tensor | None = None, *, return_maps: bool = False
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return the output of the last block for each token.

        Args:
            ids: (B, T), integers. Padding may be any id of the vocabulary.
            lengths: (B,), number of valid ids, from 0 to T; None for all.
            segments: (B, T), integers; None for zeros.
            return_maps: also return the attention maps of all blocks.

        Returns:
            hidden (B, T, W), zero in padding; or (hidden, maps): one (B, H, T, T) per block, also zero in padding.

        Raises:
            ValueError: for invalid arguments. The message has the value and a remedy.
        """
        lengths = None if lengths is None else torch.as_tensor(lengths, device=ids.device)
        self._check(ids, lengths, segments)
        layout = BatchLayout.of(ids, lengths)
        x, maps = self._encode(ids, segments, layout, return_maps=return_maps)
        x = layout.unpack(x)  # (B, T, W)
        if lengths is not None and layout.packed is None:
            is_padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]  # (B, T)
            x = x.masked_fill(is_padding[..., None], 0.0)
        return (x, maps) if return_maps else x

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    @same_type(forward)
    def pooled(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        segments: Tensor | None = None,
        *,
        return_maps: bool = False,
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return `pool` of the output of `forward`: (B, W), or (pooled, maps).

        If texts have different lengths and only the first token is read, the last block computes only that one.

        >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2)).eval()
        >>> ids, lengths = torch.randint(1, 50, (2, 7)), torch.tensor([7, 4])
        >>> torch.allclose(bert.pooled(ids, lengths), bert.pool(bert(ids, lengths), lengths), atol=1e-5)
        True
        """
        lengths = None if lengths is None else torch.as_tensor(lengths, device=ids.device)
        self._check(ids, lengths, segments)
        layout = BatchLayout.of(ids, lengths)
        if self.config.pool == "first" and layout.packed is not None and bool((layout.packed > 0).all()):
            first, maps = self._encode(ids, segments, layout, return_maps=return_maps, first_token=True)
            pooled = self._pooler(first)
        else:
            result = self(ids, lengths, segments, return_maps=return_maps)
            hidden, maps = result if isinstance(result, tuple) else (result, [])
            pooled = self.pool(hidden, lengths)
        return (pooled, maps) if return_maps else pooled

    def embed(self, ids: Tensor, segments: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the input of the first block: (…, T) → (…, T, W). positions (T,) default to 0, 1, ….

        >>> bert = Bert(BertConfig(vocabulary=50, width=12, heads=3, hidden=24, layers=2))
        >>> tuple(bert.embed(torch.tensor([[3, 1, 4]])).shape)
        (1, 3, 12)
        """
        segment_embeddings = self.segments.weight[0] if segments is None else self.segments(segments)
        position_embeddings = self.positions.weight[: ids.shape[-1]] if positions is None else self.positions(positions)
        x = self.tokens(ids)
        with trace_step("segment"):
            x = x + segment_embeddings
        with trace_step("position"):
            x = x + position_embeddings
        return self.dropout(self.norm(x))

    def pool(self, hidden: Tensor, lengths: Lengths | None = None) -> Tensor:
        """Pool the first token, [CLS], or the mean: (B, T, W) → (B, W). lengths as in `forward`."""
        if self.config.pool == "first":
            return self._pooler(hidden[:, 0])
        if lengths is None:
            return self._pooler(hidden.mean(1))
        lengths = torch.as_tensor(lengths, device=hidden.device)
        return self._pooler(hidden.sum(1) / lengths.clamp(min=1)[:, None])  # padding is zero

    def _pooler(self, vectors: Tensor) -> Tensor:
        if self.pooler is None:
            raise ValueError(
                "bert: pooler (None) must exist to pool; got a model without one. Try Bert(config, pooler=True)."
            )
        return torch.tanh(self.pooler(vectors))

    def _encode(
        self, ids: Tensor, segments: Tensor | None, layout: BatchLayout, **options: Any
    ) -> tuple[Tensor, list[AttentionMap]]:
        """Return the output of the last block, in this layout, and the maps. See `run_encoder` for the options."""
        packed_segments = None if segments is None else layout.pack(segments)
        x = self.embed(layout.pack(ids), packed_segments, layout.positions)  # (B, T, W) or (N, W)
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
                f"bert: segments ({shape(segments)}) must be integers of the shape of ids ({shape(ids)}); got "
                f"{dtype(segments)}."
            )
        check_range("bert", "ids", ids, "vocabulary", self.config.vocabulary)
        if segments is not None:
            check_range("bert", "segments", segments, "segments", self.config.segments)


def deviation(width: int) -> float:
    """Return the initial standard deviation of weights that sum `width` terms."""
    return DEVIATION * math.sqrt(REFERENCE_WIDTH / width)


@torch.no_grad()
def begin_in_order(positions: nn.Embedding) -> None:
    """Initialize learned positions with sinusoids, so that nearby positions are similar from the start.

    With random positions the model first has to learn which ones are neighbours. Until then, it can only predict token
    frequencies.
    """
    count, width = positions.weight.shape
    waves = sinusoids(torch.arange(count), width + width % 2)[:, :width]  # (T, W), of mean square ½
    positions.weight.copy_(waves * math.sqrt(2) * deviation(width))


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Initialize weights from a normal distribution (0.02 at width 768); biases and the padding embedding with zero.

    Narrower layers sum fewer terms. Their weights are larger by the square root of the ratio, so that sums have the
    same scale.
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
