"""Recurrent sequence-to-sequence models: an encoder, and a decoder of three parts.

    c  context   cᵢ = c(H, sᵢ₋₁)              relevant part of the source             `decoder_context.py`
    f  state     sᵢ = f(cᵢ, sᵢ₋₁, yᵢ₋₁)       summary of the target so far            `layers/recurrent.py`
    g  output    yᵢ = g(cᵢ, sᵢ, yᵢ₋₁)         the next token

    h₁ … h_Ts ──▶ c ──▶ f ──▶ g ──▶ yᵢ
                  ▲     │
                  └─────┘ s

Only c and f run step by step. Embeddings and their part of the gates are computed before the steps, and upper layers
and g after them, for all steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..attention import AttentionMap
from ..core.settings import refuse
from ..core.trace import trace_step
from ..core.typed_call import same_type
from ..layers import Dropout
from ..layers.recurrent import CELLS, Hidden, RecurrentState, cell_class, run_rnn
from .bounds import out_of_bounds, too_large, unknown_name
from .decoder_context import CONTEXTS, Context, KeysType, context_of
from .encoder_decoder import TIES, EncoderDecoder, Memory, State, check_ids, embeddings, vocabulary_layer


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Sizes and names of a `Seq2Seq`."""

    source_vocabulary: int = 0
    """Number of source ids; a recipe takes it from the data."""
    target_vocabulary: int = 0
    """Number of target ids; a recipe takes it from the data."""
    width: int = 256
    """Width of embeddings and of the last hidden vector."""
    hidden: int = 256
    """Width of the decoder states."""
    encoder_hidden: int = 256
    """Width of the encoder states, in each direction."""
    layers: int = 1
    """Number of layers of the encoder, and of the decoder."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent cell."""
    bidirectional: bool = True
    """Whether the encoder reads in both directions."""
    context: str = "additive"
    """Context of the decoder: fixed, additive, dot, bilinear, cosine or hard."""
    dropout: float = 0.0
    """Share of embeddings and hidden vectors dropped in training."""
    tie: Literal["none", "target", "all"] = "target"
    """Shared embeddings: target and output layer, these and the source, or none."""

    def errors(self) -> list[str]:
        """Return all errors in these settings, one sentence each.

        >>> Seq2SeqConfig(11, 13, dropout=1.0).errors()
        ['seq2seq: dropout (1.0) must lie in [0, 1): it is the share that is dropped.']
        """
        names = {"cell": CELLS, "context": CONTEXTS, "tie": TIES}
        problems = [*out_of_bounds("seq2seq", self), *unknown_name("seq2seq", self, names)]
        memory = self.encoder_hidden * (2 if self.bidirectional else 1)
        if not problems and self.context in ("dot", "cosine") and self.hidden != memory:
            problems.append(
                f"seq2seq: hidden ({self.hidden}) must be the width of the encoder's states ({memory}) for "
                f"{self.context} scores, two directions counted twice. Change one, or use bilinear or additive scores."
            )
        return problems or too_large("seq2seq", self._parameters)

    @property
    def _parameters(self) -> int:
        rows = self.width * (self.source_vocabulary + self.target_vocabulary)
        encoder, decoder = (
            self.encoder_hidden * (self.width + self.encoder_hidden),
            self.hidden * (self.width + self.hidden + 2 * self.encoder_hidden),
        )
        return rows + 3 * self.layers * (2 * encoder + decoder)


class RecurrentEncoder(nn.Module):
    """A GRU or LSTM over the source, in one or both directions: (B, Ts, E) → states (B, Ts, C), summary (B, C).

    The sentences are packed: padding is not computed, and the backward direction starts at the end of each sentence.
    The summary is the concatenation of the last states of both directions.
    Paper: Bahdanau et al. 2015, section 3.2.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.rnn = cell_class("seq2seq", config.cell)(
            config.width,
            config.encoder_hidden,
            config.layers,
            batch_first=True,
            bidirectional=config.bidirectional,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.directions = 2 if config.bidirectional else 1
        self.width = self.directions * config.encoder_hidden

    def forward(self, x: Tensor, lengths: Tensor) -> Memory:
        with trace_step("pack"):
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, hidden = run_rnn(self.rnn, packed)
        with trace_step("unpack"):
            states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])  # (B, Ts, C)
        summary = hidden[0][-self.directions :].transpose(0, 1).flatten(1)  # (B, C)
        return Memory(states, lengths, summary)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


class Output(nn.Module):
    """g: hidden = tanh(W · [c; s; y]), the input of the vocabulary layer.

    Shapes: c (…, C), s (…, S), y (…, W) → (…, W).
    Paper: Luong et al. 2015, equation 5, and y as in Bahdanau et al. 2015, equation 4.
    """

    def __init__(self, context_width: int, state_width: int, width: int, dropout: float) -> None:
        super().__init__()
        self.mix = nn.Linear(context_width + state_width + width, width)
        self.dropout = Dropout(dropout)

    def forward(self, context: Tensor, state: Tensor, token: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.mix(torch.cat((context, state, token), -1))))

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


@dataclass
class Seq2SeqState:
    """The state between decoding steps: B sentences with K hypotheses each."""

    keys: Any
    """Keys of the context for the B sentences."""
    hidden: Hidden
    """Hidden state of the first layer, (B·K, W) each."""
    above: Hidden | None
    """Hidden states of the upper layers, (layers, B·K, W) each."""

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.hidden = tuple(h.index_select(0, rows) for h in self.hidden)
        if self.above is not None:
            self.above = tuple(h.index_select(1, rows) for h in self.above)
        if sentences is not None:
            self.keys = self.keys.reorder(sentences)


class Seq2Seq(nn.Module):
    """A recurrent encoder and a recurrent decoder, connected by a context: an `EncoderDecoder`.

    Papers: Sutskever et al. 2014 and Cho et al. 2014 (fixed); Bahdanau et al. 2015 (additive); Luong et al. 2015 (dot,
    bilinear). Differs from these: the first decoder layer computes the context, and the upper layers run over its
    states (Wu et al. 2016, section 3); s₀ of every layer = tanh(W · summary).

    Args:
        config: sizes and names.
        context: a custom context instead of `config.context`: an object with `constant`,
            `keys`, `forward` and `maps` (see `AttentiveContext`).

    >>> model = Seq2Seq(Seq2SeqConfig(11, 13, width=8, hidden=6, encoder_hidden=5))
    >>> source, lengths = torch.randint(4, 11, (2, 7)), torch.tensor([7, 4])
    >>> hidden, (m,) = model.decode(torch.randint(4, 13, (2, 3)), model.encode(source, lengths), return_maps=True)
    >>> tuple(model.logits(hidden).shape), m.shape
    ((2, 3, 13), (2, 1, 3, 7))
    >>> memory = model.encode(source, lengths)
    >>> logits, state = model.step(torch.tensor([2, 2]), model.begin(memory))      # one step, from BOS
    >>> tuple(logits.shape), model.longest, model.attends
    ((2, 13), None, True)
    """

    longest = None

    def __init__(self, config: Seq2SeqConfig, context: Context[KeysType] | None = None) -> None:
        super().__init__()
        if context is None:
            refuse(config.errors())
        else:  # a custom context has no name and its own rules
            refuse(replace(config, context="fixed").errors())
        self.config = config
        width, hidden = config.width, config.hidden
        self.source, self.target = embeddings(
            "seq2seq", config.source_vocabulary, config.target_vocabulary, width, config.tie
        )
        self.vocabulary = vocabulary_layer(self.target, config.tie)
        self.dropout = Dropout(config.dropout)
        self.encoder = RecurrentEncoder(config)
        memory_width = self.encoder.width
        self.initial = nn.Linear(memory_width, config.layers * hidden)
        self.context: Any = context_of(config.context, hidden, memory_width) if context is None else context
        self.state = RecurrentState(width, memory_width, hidden, cell=config.cell)
        self.above: nn.Module | None = None
        if config.layers > 1:
            dropout = config.dropout if config.layers > 2 else 0.0
            self.above = cell_class("seq2seq", config.cell)(hidden, hidden, config.layers - 1, dropout=dropout)
        self.output = Output(memory_width, hidden, width, config.dropout)

    @property
    def attends(self) -> bool:
        """Whether the context depends on the decoder state, so that `decode` can return maps."""
        return not self.context.constant

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode source ids (B, Ts) of lengths (B,)."""
        check_ids("seq2seq", source, lengths, least=1)
        return self.encoder(self.dropout(self.source(source)), lengths)

    @same_type(EncoderDecoder.decode)
    def decode(
        self, target: Tensor, memory: Memory, *, lengths: Tensor | None = None, return_maps: bool = False
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return hidden vectors (B, T, W) for the input ids (B, T), and the maps if requested. See `EncoderDecoder`."""
        check_ids("seq2seq", target, lengths)
        tokens = self.dropout(self.target(target.T))  # (T, B, W)
        keys = self.context.keys(memory)
        first, above = self._begin(memory)
        contexts, states, queries = self._steps(tokens, keys, first)
        top = states if self.above is None else run_rnn(self.above, self.dropout(states), above)[0]  # (T, B, S)
        hidden = self.output(contexts, top, tokens).transpose(0, 1)  # (B, T, W)
        return (hidden, self.context.maps(queries.transpose(0, 1), keys)) if return_maps else hidden

    def _steps(self, tokens: Tensor, keys: Any, hidden: Hidden) -> tuple[Tensor, Tensor, Tensor]:
        """Return contexts (T, B, C), states (T, B, S), and the states before them, which are the queries."""
        start = hidden[0]
        if self.context.constant:  # the steps do not depend on each other's contexts
            context = self.context(start, keys)  # (B, C)
            states = self.state.at_once(tokens, context, hidden)  # (T, B, S)
            return context.expand(len(tokens), -1, -1), states, torch.cat((start[None], states[:-1]))
        steps = self.state.unroll(tokens)
        contexts: list[Tensor] = []
        all_states = [start]
        for _ in range(len(tokens)):
            contexts.append(self.context(hidden[0], keys))
            hidden = steps.step(contexts[-1], hidden)
            all_states.append(hidden[0])
        if not contexts:
            return tokens.new_zeros(0, len(start), self.encoder.width), start[None][:0], start[None][:0]
        return torch.stack(contexts), torch.stack(all_states[1:]), torch.stack(all_states[:-1])

    def _begin(self, memory: Memory) -> tuple[Hidden, Hidden | None]:
        """Return the initial hidden states of the first layer and of the upper layers."""
        start = torch.tanh(self.initial(memory.summary)).unflatten(-1, (self.config.layers, -1))  # (B, layers, S)
        first, *others = (self.state.begin(s) for s in start.unbind(1))
        return first, tuple(torch.stack(parts) for parts in zip(*others, strict=True)) if others else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits: (..., W) → (..., V)."""
        logits: Tensor = self.vocabulary(hidden)
        return logits

    def begin(self, memory: Memory) -> Seq2SeqState:
        """Return the initial state, with one hypothesis per sentence."""
        first, above = self._begin(memory)
        return Seq2SeqState(self.context.keys(memory), first, above)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, Seq2SeqState]:
        """Return the logits (B·K, V) of the next tokens, and the next state. See `EncoderDecoder`."""
        assert isinstance(state, Seq2SeqState)
        token = self.dropout(self.target(tokens))  # (B·K, W)
        context = self.context(state.hidden[0], state.keys)  # (B·K, C)
        with trace_step("state"):
            hidden = self.state.unroll(token[None]).step(context, state.hidden)
        top, above = hidden[0], state.above
        if self.above is not None:
            outputs, above = run_rnn(self.above, self.dropout(top)[None], above)
            top = outputs[0]
        logits = self.logits(self.output(context, top, token))  # (B·K, V)
        return logits, replace(state, hidden=hidden, above=above)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Return the logits (B, T, V) of all next tokens."""
        memory = self.encode(source, source_lengths)
        return self.logits(self.decode(target, memory, lengths=target_lengths))

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...
