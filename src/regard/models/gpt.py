"""GPT: a stack of causal blocks that predicts the next token, in the forms of GPT-2 and of the Llama family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap, attend
from ..attention.packed_layout import Lengths
from ..core.settings import refuse
from ..core.tensors import shape
from ..core.trace import trace_step
from ..core.typed_call import same_type
from ..layers import (
    Dropout,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    RotaryPosition,
)
from ..layers.blocks import Norm
from ..layers.cache import Cache
from ..layers.position import scaling_errors
from ..layers.stack import BatchLayout, run_encoder
from .bert import ACTIVATIONS
from .bounds import odd_rotary_width, out_of_bounds, too_large, uneven_heads, unknown_name
from .encoder_decoder import check_ids, check_range
from .token_decoder import CachedState

NORMS = ("layer", "rms")
POSITIONS = ("learned", "rotary")
FEEDFORWARDS = ("plain", "gated")
BIASES = ("all", "qkv", "none")


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and names of a `GPT`. The defaults are those of GPT-2; `llama` has those of the Llama family.

    >>> config = GPTConfig(vocabulary=100, width=64, heads=5)
    >>> config.inner_width, config.errors()
    (256, ['gpt: width (64) must be divisible by heads (5); try 60 or 65.'])
    """

    vocabulary: int = 0
    """Number of ids; a recipe takes it from the data."""
    width: int = 384
    """Width of embeddings and blocks."""
    heads: int = 6
    """Number of attention heads; must divide the width."""
    kv_heads: int | None = None
    """Number of key and value heads, each shared by several query heads; must divide `heads`. None for `heads`."""
    hidden: int | None = None
    """Inner width of the feed-forward layers; None for 4 · width."""
    layers: int = 6
    """Number of blocks."""
    positions: int = 256
    """Maximum number of tokens of a text: the context length."""
    norm: Literal["layer", "rms"] = "layer"
    """Normalization: layer norm (GPT-2) or root mean square (Llama)."""
    position: Literal["learned", "rotary"] = "learned"
    """Positional encoding: learned vectors (GPT-2) or rotated queries and keys (Llama)."""
    feedforward: Literal["plain", "gated"] = "plain"
    """Feed-forward layers: two linear layers (GPT-2) or a gate and two linear layers (Llama: SwiGLU with silu)."""
    activation: str = "gelu_new"
    """Activation of the feed-forward layers: gelu, gelu_new, gelu_pytorch_tanh, relu, silu or swish."""
    bias: Literal["all", "qkv", "none"] = "all"
    """Biases of linear layers: all of them (GPT-2), only queries, keys and values (Qwen2), or none (Llama)."""
    tied: bool = True
    """Whether the output layer shares the weights of the token embeddings."""
    window: int | None = None
    """Number of latest tokens that a token attends to, including itself (Mistral); None for all."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    rotary_factor: float = 1.0
    """Divisor of the rotary frequencies, for texts longer than those of the training."""
    rotary_bands: tuple[float, float, int] | None = None
    """(low, high, length): frequencies with more than `high` periods in `length` positions are not divided by
    `rotary_factor`, those with fewer than `low` are (Llama 3.1); None divides all."""
    epsilon: float = 1e-5
    """Epsilon of all norms."""
    dropout: float = 0.0
    """Share of embeddings and of each sublayer's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training; the fast kernels do not support it."""

    @classmethod
    def llama(cls, **settings: Any) -> GPTConfig:
        """Return a configuration in the form of the Llama family. Settings override it.

        >>> GPTConfig.llama(vocabulary=100, width=64, heads=4, kv_heads=2).norm
        'rms'
        """
        form: dict[str, Any] = {
            "norm": "rms",
            "position": "rotary",
            "feedforward": "gated",
            "activation": "silu",
            "bias": "none",
        }
        return cls(**{**form, **settings})

    @property
    def inner_width(self) -> int:
        """Inner width of the feed-forward layers."""
        return 4 * self.width if self.hidden is None else self.hidden

    def errors(self, where: str = "gpt") -> list[str]:
        """Return all errors in these settings, one sentence each."""
        names = {
            "activation": ACTIVATIONS,
            "norm": NORMS,
            "position": POSITIONS,
            "feedforward": FEEDFORWARDS,
            "bias": BIASES,
        }
        problems = [
            *out_of_bounds(where, self),
            *uneven_heads(where, self.width, self.heads),
            *unknown_name(where, self, names),
        ]
        if self.vocabulary == 0:
            problems.append(f"{where}: vocabulary (0) must be at least 1.")
        if self.kv_heads is not None and self.kv_heads > 0 and self.heads % self.kv_heads:
            problems.append(f"{where}: kv_heads ({self.kv_heads}) must divide heads ({self.heads}).")
        if not self.rotary_base > 1:
            problems.append(f"{where}: rotary_base ({self.rotary_base}) must be more than 1; the papers use 10000.")
        problems += [
            problem.replace(": ", ": rotary_", 1)
            for problem in scaling_errors(where, self.rotary_factor, self.rotary_bands)
        ]
        if not self.epsilon > 0:
            problems.append(f"{where}: epsilon ({self.epsilon}) must be more than 0; 1e-5 is typical.")
        if not problems and self.position == "rotary":
            problems = odd_rotary_width(where, self.width, self.heads)
        return problems or too_large(where, self._parameters)

    @property
    def _parameters(self) -> int:
        shared = 1 if self.kv_heads is None else self.kv_heads / self.heads
        attention = round((2 + 2 * shared) * self.width)
        feedforward = (3 if self.feedforward == "gated" else 2) * self.inner_width
        embeddings = self.vocabulary * (1 if self.tied else 2) + self.positions * (self.position == "learned")
        return self.width * (self.layers * (attention + feedforward) + embeddings)


class GPT(nn.Module):
    """Token embeddings with positions, causal blocks with normalization before each sublayer, and an output layer.

        x₀ = token[idₜ] + position[t];   xₗ = blockₗ(xₗ₋₁);   logits = W · norm(x_L)

    The logits at position t predict the token at t + 1. With rotary positions, nothing is added to the embeddings;
    each block rotates its queries and keys.
    Shapes: ids (B, T) → logits (B, T, V); hidden (B, T, W).
    Paper: Radford et al. 2019 (GPT-2), section 2.3; Touvron et al. 2023 (Llama), section 2.2; Jiang et al. 2023
    (Mistral), section 2. Weights are initialized from a normal distribution with deviation 0.02, those that end a
    residual branch with 0.02 / √(2 · layers); biases with zero.

    Raises:
        ValueError: for invalid sizes and names. The message lists them all.

    >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16)).eval()
    >>> ids = torch.randint(50, (2, 7))
    >>> logits, maps = model(ids, torch.tensor([7, 4]), return_maps=True)
    >>> tuple(logits.shape), [m.shape for m in maps]
    ((2, 7, 50), [(2, 3, 7, 7), (2, 3, 7, 7)])
    >>> caches = model.caches()
    >>> with torch.no_grad():
    ...     steps = [model(ids[:, t : t + 1], caches=caches) for t in range(7)]
    >>> torch.allclose(torch.cat(steps, 1), model(ids), atol=1e-5)
    True

    The hidden states, the input of the first block, and generation step by step:

    >>> tuple(model.hidden(ids).shape), tuple(model.embed(ids).shape), model.longest
    ((2, 7, 12), (2, 7, 12), 16)
    >>> with torch.no_grad():
    ...     state, logits = model.begin(ids, torch.tensor([7, 4]))
    ...     logits = model.step(logits.argmax(-1), state)
    >>> tuple(logits.shape)
    (2, 50)
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        refuse(config.errors())
        self.config = config
        norm = _norm(config)
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width) if config.position == "learned" else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config, norm) for _ in range(config.layers))
        self.norm = norm(config.width)
        self.vocabulary = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.vocabulary.weight = self.tokens.weight
        self._initialize()

    @overload
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        *,
        caches: Sequence[Cache] | None = None,
        return_maps: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        *,
        caches: Sequence[Cache] | None = None,
        return_maps: Literal[True],
    ) -> tuple[Tensor, list[AttentionMap]]: ...
    @overload
    def forward(
        self, ids: Tensor, lengths: Lengths | None = None, *, caches: Sequence[Cache] | None = None, return_maps: bool
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]: ...
    def forward(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        *,
        caches: Sequence[Cache] | None = None,
        return_maps: bool = False,
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return the logits of the next token at each position.

        Args:
            ids: (B, T), integers. With caches, the tokens that follow the cached ones.
            lengths: (B,), number of valid ids, from 0 to T; None for all. Logits of padding are zero times the output
                layer. Texts of different lengths are computed without padding.
            caches: keys and values of earlier tokens, from `caches()`, one per block, to which this call adds its own.
                Only without lengths.
            return_maps: also return the attention maps of all blocks.

        Returns:
            logits (B, T, V); or (logits, maps): one map (B, H, T, T) per block; with caches, T keys and all cached
            ones.

        Raises:
            ValueError: for invalid arguments. The message has the value and a remedy.
        """
        result = self.hidden(ids, lengths, caches=caches, return_maps=return_maps)
        hidden, maps = result if isinstance(result, tuple) else (result, [])
        logits = self.vocabulary(hidden)  # (B, T, V)
        return (logits, maps) if return_maps else logits

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    @same_type(forward)
    def hidden(
        self,
        ids: Tensor,
        lengths: Lengths | None = None,
        *,
        caches: Sequence[Cache] | None = None,
        return_maps: bool = False,
    ) -> Tensor | tuple[Tensor, list[AttentionMap]]:
        """Return the input of the output layer, (B, T, W), zero in padding; or (hidden, maps). See `forward`."""
        lengths = None if lengths is None else torch.as_tensor(lengths, device=ids.device)
        start = caches[0].start if caches else 0
        self._check(ids, lengths, caches, caches[0].length if caches else 0)
        layout = BatchLayout.of(ids, lengths)
        x = self.embed(layout.pack(ids), layout.positions, start)  # (B, T, W) or (N, W)
        x, maps = run_encoder(self.blocks, x, layout, is_causal=True, caches=caches, return_maps=return_maps)
        x = layout.unpack(self.norm(x))  # (B, T, W)
        return (x, maps) if return_maps else x

    def embed(self, ids: Tensor, positions: Tensor | None = None, start: int | Tensor = 0) -> Tensor:
        """Return the input of the first block: (…, T) → (…, T, W).

        positions (T,) default to start, start + 1, …; start may be one number for each of B texts (B,).
        """
        x = self.tokens(ids)
        if self.positions is not None:
            if positions is None and isinstance(start, Tensor):
                positions = start[:, None] + torch.arange(ids.shape[-1], device=ids.device)  # (B, T)
            with trace_step("position"):
                if positions is None:
                    x = x + self.positions.weight[start : start + ids.shape[-1]]
                else:
                    x = x + self.positions(positions)
        return self.dropout(x)

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens of a text; None for a window with rotary positions, where any length works."""
        return None if self.positions is None and self.config.window is not None else self.config.positions

    def begin(self, ids: Tensor, lengths: Tensor | None = None, *, capacity: int = 64) -> tuple[CachedState, Tensor]:
        """Read prompts and return the state for `step` and the logits of the first new token, (B, V).

        Args:
            ids: (B, T), padded on the right.
            lengths: (B,), number of ids of each prompt, from 1 to T; None for T. No token attends to a later one, so
                padding does not change the result.
            capacity: number of tokens to allocate memory for at first.
        """
        device = self.tokens.weight.device
        ids, state = ids.to(device), CachedState(self.caches(capacity))
        hidden = self.hidden(ids, caches=state.caches)  # (B, T, W)
        if lengths is None:
            return state, self.vocabulary(hidden[:, -1])  # (B, V)
        lengths = lengths.to(device)
        state.truncate(lengths)
        return state, self.vocabulary(hidden[torch.arange(len(ids), device=device), lengths - 1])  # (B, V)

    def step(self, tokens: Tensor, state: CachedState) -> Tensor:
        """Read the next token (B,) of each text, and return the logits of the one after it, (B, V)."""
        hidden = self.hidden(tokens[:, None].to(self.tokens.weight.device), caches=state.caches)  # (B, 1, W)
        logits: Tensor = self.vocabulary(hidden[:, 0])  # (B, V)
        return logits

    def caches(self, capacity: int = 64) -> list[Cache]:
        """Return empty caches, one per block, for decoding step by step, with memory for `capacity` tokens at first."""
        return [Cache(capacity) for _ in self.blocks]

    def compile(self, *args: object, **kwargs: object) -> None:
        """Compile each block with `torch.compile`, which affects `forward`, `hidden`, `begin` and `step`.

        `nn.Module.compile` would compile `forward` alone, which neither training nor generation calls. The arguments
        are those of `torch.compile`.

        >>> model = GPT(GPTConfig(vocabulary=50, width=12, heads=3, layers=2, positions=16))
        >>> model.compile(dynamic=True)
        """
        for block in self.blocks:
            block.compile(*args, **kwargs)

    @torch.no_grad()
    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith((".out.weight", ".down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.layers))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def _check(self, ids: Tensor, lengths: Tensor | None, caches: Sequence[Cache] | None, start: int) -> None:
        check_ids("gpt", ids, lengths)
        if caches is not None and (lengths is not None or len(caches) != len(self.blocks)):
            got = f"lengths {shape(lengths)}" if lengths is not None else f"{len(caches)} caches"
            raise ValueError(
                f"gpt: caches ({len(caches)}) must be {len(self.blocks)}, one per block, and come without lengths; got "
                f"{got}. Use model.caches()."
            )
        if self.longest is not None and start + ids.shape[1] > self.longest:
            raise ValueError(
                f"gpt: ids ({shape(ids)}) must end within positions ({self.longest}); got {start} cached "
                "tokens before them. Shorten the text, or use a model with a longer context."
            )
        check_range("gpt", "ids", ids, "vocabulary", self.config.vocabulary)


def _norm(config: GPTConfig) -> Norm:
    return partial(nn.LayerNorm if config.norm == "layer" else nn.RMSNorm, eps=config.epsilon)


def _rotary(config: GPTConfig) -> RotaryPosition:
    """Return the positions of the Llama family, whose checkpoints were trained with float32 angles."""
    return RotaryPosition(
        base=config.rotary_base,
        layout="halves",
        factor=config.rotary_factor,
        bands=config.rotary_bands,
        precision=torch.float32,
    )


def _block(config: GPTConfig, norm: Norm) -> EncoderBlock:
    attention = MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        bias=config.bias != "none",
        dropout=config.attention_dropout,
        position=_rotary(config) if config.position == "rotary" else None,
        attend=attend if config.window is None else partial(attend, window=(config.window - 1, 0)),
    )
    if config.bias == "qkv":
        attention.out = nn.Linear(config.width, config.width, bias=False)
    kind = GatedFeedForward if config.feedforward == "gated" else FeedForward
    feedforward = kind(
        config.width, config.inner_width, activation=ACTIVATIONS[config.activation], bias=config.bias == "all"
    )
    return EncoderBlock(attention, feedforward, norm_first=True, dropout=config.dropout, norm=norm)
