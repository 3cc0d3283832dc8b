"""Fast generation: a `GPT` that reads one token at a time at nearly the speed at which its weights can be read.

Results equal those of the model up to rounding. Weights are taken when the fast form is built, and some are copied, so
later changes of the model have no effect. Dropout is never applied, even in training mode.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from ..attention import attend
from ..attention.native.few_rows import Rotation, bind_linear
from ..attention.step_report import DecodingStep, report_step
from ..core.tensors import is_unmodified, operators_are_observed, shape, traced
from ..layers import Dropout, EncoderBlock, FeedForward, GatedFeedForward, MultiHeadAttention, RotaryPosition
from ..layers.residual import Residual
from .fast_gpt_block import FastBlock, row_norm
from .gpt import GPT
from .gpt_state import BoundStep, GPTState

KNOWN = (
    GPT,
    EncoderBlock,
    MultiHeadAttention,
    RotaryPosition,
    FeedForward,
    GatedFeedForward,
    Residual,
    Dropout,
    nn.Embedding,
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.ModuleList,
)
"""Modules that the fast form replaces."""


class FastGPT:
    """Read prompts, then one token per text and step, with the methods that a generation needs.

    One product computes queries, keys and values, another one gate and up. Norms, residual sums and the activation of
    the gate are part of these products. Keys and values of all tokens are stored in preallocated caches, which
    attention reads in place. A step allocates nothing but the logits. All buffers belong to the state, so several
    threads may use one object if each has its own state.

    >>> from .gpt import GPTConfig
    >>> model = GPT(GPTConfig.llama(vocabulary=50, width=12, heads=3, kv_heads=1, layers=2, positions=16)).eval()
    >>> ids = torch.randint(50, (2, 7))
    >>> fast = FastGPT(model)
    >>> state, logits = fast.begin(ids[:, :5], torch.tensor([5, 3]))          # (2, 50)
    >>> torch.allclose(logits[1], model(ids[1:, :3])[0, -1], atol=1e-5)
    True
    >>> logits = fast.step(torch.tensor([ids[0, 5], ids[1, 3]]), state)       # (2, 50)
    >>> torch.allclose(logits[1], model(ids[1:, :4])[0, -1], atol=1e-5)
    True
    """

    training = False

    @torch.no_grad()
    def __init__(self, model: GPT) -> None:
        self.model = model
        self.longest = model.longest
        """Maximum number of tokens of a text; None for a window with rotary positions, where any length works."""
        self._blocks = [FastBlock(block) for block in model.blocks if isinstance(block, EncoderBlock)]
        self._norm = row_norm(model.norm)
        self._rotation: Rotation | None = None

    def eval(self) -> FastGPT:
        return self

    def train(self, mode: bool = True) -> None:
        assert not mode, "supports inference only"

    def begin(self, ids: Tensor, lengths: Tensor | None = None, *, capacity: int = 64) -> tuple[GPTState, Tensor]:
        """Read prompts and return the state for `step` and the logits of the first new token, (B, V).

        Args:
            ids: (B, T), padded on the right.
            lengths: (B,), number of ids of each prompt, from 1 to T; None for T. No token attends to a later one, so
                padding does not change the result.
            capacity: number of tokens to allocate memory for at first. It grows if a text becomes longer.

        Raises:
            ValueError: for invalid arguments. The message has the value and a remedy.
        """
        model, weight = self.model, self.model.tokens.weight
        model._check(ids, lengths, None, 0)
        batch, tokens = ids.shape
        valid = torch.full((batch,), tokens) if lengths is None else lengths
        if not ids.numel() or int(valid.min()) < 1:
            raise ValueError(
                f"gpt: ids ({shape(ids)}) must hold a token of each text; got lengths {valid.tolist()}. Begin an empty "
                "text with the token that starts a document."
            )
        with torch.inference_mode(False), torch.no_grad():  # the state outlives the mode of this call
            ids, valid = ids.to(weight.device).clone(), valid.to(weight.device, torch.int64).clone()
            state = GPTState.allocate(model, batch, max(capacity, tokens))
            x = self._embed(ids, state.lengths).flatten(0, 1)  # (B·T, W)
            last = torch.arange(batch, device=ids.device) * tokens + valid - 1  # (B,)
            for block in self._blocks:
                x = block.read(x, state, self._table(state), last if block is self._blocks[-1] else None)
            state.set_lengths(valid)
            state.written = tokens
            return state, self._logits(x)  # (B, V)

    def step(self, tokens: Tensor, state: GPTState) -> Tensor:
        """Read the next token (B,) of each text, and return the logits of the one after it, (B, V).

        Raises:
            ValueError: if the number of tokens differs from that of texts, or a text becomes too long.
        """
        if tokens.shape != state.lengths.shape:
            raise ValueError(
                f"gpt: tokens ({shape(tokens)}) must be {len(state.lengths)}, one per text of the state. After the "
                "batch changes, call state.reorder(rows)."
            )
        if self.longest is not None and state.length >= self.longest:
            raise ValueError(
                f"gpt: tokens ({shape(tokens)}) must end within positions ({self.longest}); got {state.length} tokens "
                "before them. Shorten the text, or use a model with a longer context."
            )
        with torch.inference_mode(False), torch.no_grad():
            watched = torch._C._len_torch_function_stack() > 0
            state.reserve(1)
            if traced() or (watched and state.overwrites):  # an observer must see what is written
                state.bound = None
                return self._run_step(tokens, state, self._bind(state, observed=True))
            with torch._C.DisableTorchFunction():
                bound = state.bound = state.bound or self._bind(state, observed=False)
                logits = self._run_step(tokens, state, bound)
            if watched:
                report_step(bound.step, state.length)
            return logits

    def _run_step(self, tokens: Tensor, state: GPTState, bound: BoundStep) -> Tensor:
        x = bound.x
        x.copy_(self._embed(tokens.to(x.device)[:, None], state.lengths).squeeze(1))  # (B, W)
        for block in bound.blocks:
            for call in block.before:
                call()
            block.attention(state)
            for call in block.after:
                call()
        state.advance()
        return self._logits(x)

    def _bind(self, state: GPTState, observed: bool) -> BoundStep:
        """Return the calls of a step, with memory for its input and results."""
        x = self.model.tokens.weight.new_empty(len(state.lengths), self.model.config.width)
        table = self._table(state)
        blocks = [block.bind_step(x, state, table, observed) for block in self._blocks]
        modules = tuple(block.attention for block in self._blocks)
        step = DecodingStep(
            modules,
            tuple(block.query for block in blocks),
            tuple(state.caches[attention] for attention in modules),
            tuple(block.options for block in self._blocks),
        )
        return BoundStep(x, blocks, step)

    def _embed(self, ids: Tensor, first: Tensor) -> Tensor:
        """Return the input of the first block, (B, T, W), for tokens from position first (B,) on."""
        x = F.embedding(ids, self.model.tokens.weight)
        if self.model.positions is None:
            return x
        positions = first[:, None] + torch.arange(ids.shape[1], device=ids.device)  # (B, T)
        return x + F.embedding(positions, self.model.positions.weight)

    def _logits(self, x: Tensor) -> Tensor:
        """Return the logits (B, V) of the output of the last block (B, W)."""
        weight = self.model.vocabulary.weight.detach()
        logits = weight.new_empty(len(x), len(weight))
        bind_linear(x, weight, None, logits, norm=self._norm)()
        return logits

    def _table(self, state: GPTState) -> Rotation | None:
        """Return the rotation for all positions that the state has memory for."""
        position = self._blocks[0].attention.position if self._blocks else None
        if not isinstance(position, RotaryPosition):
            return None
        if self._rotation is None or len(self._rotation.cos) < state.capacity:
            weight, width = self.model.tokens.weight, self._blocks[0].width
            unit = weight.new_zeros(state.capacity, width, dtype=torch.promote_types(weight.dtype, torch.float32))
            unit[:, : width // 2] = 1  # (1, 0) is rotated to (cos, sin)
            self._rotation = Rotation(*(half.contiguous() for half in position(unit, 0).tensor_split(2, -1)))
        return self._rotation


def fast_gpt(model: Any) -> Any:
    """Return a `FastGPT` of `model`, or `model` itself under autocast or if custom code has to run.

    Custom code is: hooks, subclasses, quantized or replaced submodules, and `TorchDispatchMode`s, which observe single
    operators. `regard.watch` is not: it records the calls of `FastGPT` without changing them.
    """
    return model if operators_are_observed(model) or not _is_supported(model) else FastGPT(model)


def _is_supported(model: Any) -> bool:
    """Return whether the model consists of known modules in their known form, without hooks."""
    if type(model) is not GPT or _has_any_global_hook():
        return False
    parts = list(model.modules())
    if not all(
        type(part) in KNOWN and is_unmodified(part, type(part)) and "forward" not in vars(part) for part in parts
    ):
        return False
    norms = [part for part in parts if isinstance(part, nn.LayerNorm | nn.RMSNorm)]
    return (
        bool(len(model.blocks))
        and all(norm.weight is not None and norm.eps is not None for norm in norms)
        and all(part.norm_first for part in parts if isinstance(part, Residual))
        and all(_is_plain(part) for part in parts if isinstance(part, MultiHeadAttention))
        and model.vocabulary.bias is None
    )


def _is_plain(attention: MultiHeadAttention) -> bool:
    """Return whether an attention is `attend`, perhaps with a window, of rotated or plain queries and keys."""
    operator, position = attention.attend, attention.position
    windowed = isinstance(operator, partial) and operator.func is attend and not operator.args
    if not (operator is attend or (windowed and list(operator.keywords) == ["window"])):  # type: ignore[attr-defined]
        return False
    rotary = isinstance(position, RotaryPosition) and (position.layout, position.fraction) == ("halves", 1.0)
    biases = [layer.bias is None for layer in (attention.query, attention.key, attention.value)]
    return attention.similarity == "scaled_dot" and (position is None or rotary) and len(set(biases)) == 1
