"""The Transformer: an encoder and a decoder based on attention only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import AttentionMap
from ..core.settings import refuse
from ..core.typed_call import same_type
from ..layers import (
    DecoderBlock,
    DecoderCache,
    Dropout,
    EncoderBlock,
    FeedForward,
    LearnedPosition,
    MultiHeadAttention,
    RotaryPosition,
    SinusoidalPosition,
)
from ..layers.feedforward import Activation
from ..layers.learned_similarity import LEARNED, PLAIN, Similarity
from ..layers.stack import BatchLayout, run_decoder, run_encoder, step_decoder
from .bounds import odd_rotary_width, out_of_bounds, too_large, uneven_heads, unknown_name
from .encoder_decoder import TIES, EncoderDecoder, Memory, State, check_ids, embeddings, vocabulary_layer

ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
POSITIONS = ("sinusoidal", "learned", "rotary")


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and names of a `Transformer`."""

    source_vocabulary: int = 0
    """Number of source ids; a recipe takes it from the data."""
    target_vocabulary: int = 0
    """Number of target ids; a recipe takes it from the data."""
    width: int = 256
    """Width of embeddings and blocks."""
    heads: int = 4
    """Number of attention heads; must divide the width."""
    hidden: int = 1024
    """Inner width of the feed-forward layers."""
    encoder_layers: int = 3
    """Number of encoder blocks."""
    decoder_layers: int = 3
    """Number of decoder blocks."""
    norm_first: bool = True
    """Whether blocks normalize before each sublayer (and once at the end), or after it."""
    position: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Positional encoding."""
    similarity: str = "scaled_dot"
    """Similarity of all attentions: dot, scaled_dot, cosine, additive or bilinear."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward layers."""
    dropout: float = 0.1
    """Share of embeddings and of each sublayer's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels do not support it."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared embeddings: target and output layer, these and the source, or none."""
    positions: int = 512
    """Number of learned positions. The other encodings have no limit."""

    def errors(self) -> list[str]:
        """Return all errors in these settings, one sentence each.

        >>> TransformerConfig(11, 13, width=10, heads=3).errors()
        ['transformer: width (10) must be divisible by heads (3); try 9 or 12.']
        """
        names = {
            "position": POSITIONS,
            "activation": ACTIVATIONS,
            "similarity": (*PLAIN, *LEARNED),
            "tie": TIES,
        }
        problems = [
            *out_of_bounds("transformer", self),
            *uneven_heads("transformer", self.width, self.heads),
            *unknown_name("transformer", self, names),
        ]
        if not problems and self.position == "sinusoidal" and self.width % 2:
            problems.append(f"transformer: width ({self.width}) must be even for sinusoidal positions.")
        if not problems and self.position == "rotary":
            problems = odd_rotary_width("transformer", self.width, self.heads)
        return problems or too_large("transformer", self._parameters)

    @property
    def _parameters(self) -> int:
        blocks = self.encoder_layers * (4 * self.width + 2 * self.hidden)
        blocks += self.decoder_layers * (8 * self.width + 2 * self.hidden)
        rows = self.source_vocabulary + self.target_vocabulary
        rows += 2 * self.positions if self.position == "learned" else 0
        return self.width * (blocks + rows)


@dataclass
class TransformerState:
    """The state between decoding steps: B sentences with K hypotheses each.

    The hypotheses of a sentence share the keys and values of the source. Those of the target are separate.
    """

    memory: Memory
    caches: list[DecoderCache] = field(default_factory=list)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        for cache in self.caches:
            cache.attention.reorder(rows)
        if sentences is not None:
            self.memory = self.memory.reorder(sentences)
            for cache in self.caches:
                cache.cross_attention.reorder(sentences)


class Transformer(nn.Module):
    """Encoder blocks over the source, decoder blocks over the target and the encoder output: an `EncoderDecoder`.

        x = √W · embedding + position;   memory = encoder(x);   hidden = decoder(y, memory);   logits = V · hidden

    Shapes: source (B, Ts), target (B, T) → hidden (B, T, W), logits (B, T, V).
    Paper: Vaswani et al. 2017, section 3; normalization before each sublayer: Xiong et al. 2020. Weights are
    initialized Xavier-uniform, biases with zero, embeddings from a normal distribution with deviation 1/√W.

    Raises:
        ValueError: for invalid sizes and names.

    >>> import torch
    >>> model = Transformer(TransformerConfig(11, 13, width=8, heads=2, hidden=16))
    >>> source, lengths = torch.randint(4, 11, (2, 7)), torch.tensor([7, 4])
    >>> hidden, maps = model.decode(torch.randint(4, 13, (2, 3)), model.encode(source, lengths), return_maps=True)
    >>> tuple(model.logits(hidden).shape), [m.shape for m in maps]
    ((2, 3, 13), [(2, 2, 3, 7), (2, 2, 3, 7), (2, 2, 3, 7)])
    >>> memory = model.encode(source, lengths)
    >>> logits, state = model.step(torch.tensor([2, 2]), model.begin(memory))      # one step, from BOS
    >>> tuple(logits.shape), model.longest, model.attends
    ((2, 13), None, True)
    """

    attends = True

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        refuse(config.errors())
        self.config = config
        width = config.width
        self.source, self.target = embeddings(
            "transformer", config.source_vocabulary, config.target_vocabulary, width, config.tie
        )
        self.vocabulary = vocabulary_layer(self.target, config.tie)
        self.source_position, self.target_position = _position(config), _position(config)
        self.dropout = Dropout(config.dropout)
        options: dict[str, Any] = {"norm_first": config.norm_first, "dropout": config.dropout}
        self.encoder = nn.ModuleList(
            EncoderBlock(_attention(config), _feedforward(config), **options) for _ in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderBlock(_attention(config), _attention(config, cross=True), _feedforward(config), **options)
            for _ in range(config.decoder_layers)
        )
        # with norm_first, the output of the last block is not normalized yet
        self.encoder_norm = nn.LayerNorm(width) if config.norm_first else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if config.norm_first else nn.Identity()
        for block in (*self.encoder, *self.decoder):
            for linear in (block.feedforward.up, block.feedforward.down):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)

    @property
    def longest(self) -> int | None:
        """Maximum number of target tokens: that of the learned positions; None if there is no limit."""
        return self.config.positions if self.config.position == "learned" else None

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode source ids (B, Ts) of lengths (B,)."""
        check_ids("transformer", source, lengths, least=1)
        layout = BatchLayout.of(source, lengths)
        x = self._embed(self.source, self.source_position, source, layout=layout)
        x, _ = run_encoder(self.encoder, x, layout)
        return Memory(layout.unpack(self.encoder_norm(x)), lengths)

    @same_type(EncoderDecoder.decode)
    def decode(
        self, target: Tensor, memory: Memory, *, lengths: Tensor | None = None, return_maps: bool = False
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return hidden vectors (B, T, W) for the input ids (B, T), and the maps if requested. See `EncoderDecoder`."""
        check_ids("transformer", target, lengths)
        layout, memory_layout = BatchLayout.all_of((target, lengths), (memory.states, memory.lengths))
        x = self._embed(self.target, self.target_position, target, layout=layout)
        states = memory_layout.pack(memory.states)
        x, maps = run_decoder(self.decoder, x, states, layout, memory_layout, return_maps=return_maps)
        hidden = layout.unpack(self.decoder_norm(x))  # (B, T, W)
        return (hidden, maps) if return_maps else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits: (..., W) → (..., V)."""
        logits: Tensor = self.vocabulary(hidden)
        return logits

    def begin(self, memory: Memory) -> TransformerState:
        """Return the initial state, with one hypothesis per sentence."""
        return TransformerState(memory, [DecoderCache() for _ in self.decoder])

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, TransformerState]:
        """Return the logits (B·K, V) of the next tokens, and the next state. See `EncoderDecoder`."""
        assert isinstance(state, TransformerState)
        memory = state.memory
        x = self._embed(self.target, self.target_position, tokens[:, None], state.caches[0].length)  # (B·K, 1, W)
        x = step_decoder(self.decoder, x, memory.states, memory.lengths, state.caches)
        return self.logits(self.decoder_norm(x.squeeze(1))), state  # (B·K, V)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Return the logits (B, T, V) of all next tokens."""
        memory = self.encode(source, source_lengths)
        return self.logits(self.decode(target, memory, lengths=target_lengths))

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def _embed(
        self,
        embedding: nn.Embedding,
        position: nn.Module | None,
        ids: Tensor,
        offset: int = 0,
        layout: BatchLayout | None = None,
    ) -> Tensor:
        """Embed ids (B, T) → (B, T, W), or (N, W) if the layout is packed. offset: position of the first id."""
        x = embedding(ids if layout is None else layout.pack(ids)) * math.sqrt(self.config.width)
        positions = None if layout is None or position is None else layout.positions  # (N,)
        if position is not None and layout is not None and positions is not None:
            table = position(x.new_zeros(layout.longest, x.shape[1]))  # (T, W): one row per position
            x = x + table.index_select(0, positions)  # (N, W)
        elif position is not None:
            x = position(x, offset)  # (B, T, W)
        return self.dropout(x)


def _attention(config: TransformerConfig, cross: bool = False) -> MultiHeadAttention:
    # rotary positions encode distances, which are undefined between target and source
    rotary = RotaryPosition() if config.position == "rotary" and not cross else None
    return MultiHeadAttention(
        config.width,
        config.heads,
        dropout=config.attention_dropout,
        similarity=cast(Similarity, config.similarity),
        position=rotary,
    )


def _feedforward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.width, config.hidden, activation=ACTIVATIONS[config.activation], dropout=config.dropout)


def _position(config: TransformerConfig) -> nn.Module | None:
    if config.position == "learned":
        return LearnedPosition(config.width, length=config.positions)
    return SinusoidalPosition(config.width) if config.position == "sinusoidal" else None
