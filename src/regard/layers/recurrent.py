"""Recurrence step by step, for decoders whose input depends on the previous state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Hidden = tuple[Tensor, ...]
"""State of a cell: (s,) for a GRU, (s, memory) for an LSTM; (B, W) each."""
CELLS: dict[str, Any] = {"gru": nn.GRU, "lstm": nn.LSTM}


class RecurrentState(nn.Module):
    """The state of a decoder: sᵢ = f(cᵢ, sᵢ₋₁, yᵢ₋₁), a GRU or LSTM over the concatenated input and context.

        gru:   r, z = σ(Wy + Cc + Us),  n = tanh(Wy + Cc + r ⊙ Us),  s′ = (1 − z) ⊙ n + z ⊙ s
        lstm:  i, f, o = σ(Wy + Cc + Us),  g = tanh(Wy + Cc + Us),  m′ = f ⊙ m + i ⊙ g,  s′ = o ⊙ tanh(m′)

    `rnn` is the `nn.GRU` or `nn.LSTM` with the weights, for inputs [y; c]. If all contexts are known in advance,
    `at_once` runs it; otherwise `unroll` computes the same step by step.
    Shapes: y (T, B, E), c (B, C), s (B, W).
    Paper: Cho et al. 2014, section 2.3; Bahdanau et al. 2015, appendix A.2.2. Raises ValueError for an unknown cell.

    >>> state = RecurrentState(3, 4, 5)
    >>> y, s, c = torch.randn(2, 6, 3), (torch.zeros(6, 5),), torch.randn(6, 4)
    >>> steps = state.unroll(y)
    >>> for _ in range(2):
    ...     s = steps.step(c, s)
    >>> torch.allclose(s[0], state.at_once(y, c, (torch.zeros(6, 5),))[-1], atol=1e-6)
    True
    """

    def __init__(self, input_width: int, context_width: int, width: int, *, cell: str = "gru") -> None:
        super().__init__()
        self.rnn = cell_class("recurrent state", cell)(input_width + context_width, width)
        self.input_width, self.width, self.cell = input_width, width, cell

    def begin(self, state: Tensor) -> Hidden:
        """Return the initial hidden state from s₀ (B, W). The memory of an LSTM starts with zeros."""
        state = state.to(self.rnn.weight_hh_l0.dtype)  # autocast may have reduced its precision
        return (state, torch.zeros_like(state)) if self.cell == "lstm" else (state,)

    def at_once(self, inputs: Tensor, context: Tensor, hidden: Hidden) -> Tensor:
        """Return all states (T, B, W) if all steps share one context (B, C)."""
        joined = torch.cat((inputs, context.expand(len(inputs), -1, -1)), -1)  # (T, B, E + C)
        states: Tensor = run_rnn(self.rnn, joined, tuple(h[None] for h in hidden))[0]
        return states

    def unroll(self, inputs: Tensor) -> Unrolled:
        """Start a pass over inputs (T, B, E) whose contexts are passed step by step."""
        return Unrolled(self, inputs)


class Unrolled:
    """One pass of a `RecurrentState` over T steps. The input part of the gates is computed for all steps in advance."""

    def __init__(self, state: RecurrentState, inputs: Tensor) -> None:
        self._rnn, width = state.rnn, state.input_width
        input_weight = state.rnn.weight_ih_l0  # (gates, E + C)
        self._inputs = iter(
            F.linear(inputs, input_weight[:, :width], state.rnn.bias_ih_l0).unbind(0)
        )  # (B, gates) each
        self._context = input_weight[:, width:].T  # (C, gates)

    def step(self, context: Tensor, hidden: Hidden) -> Hidden:
        """Return the next state from the context (B, C) and the previous state."""
        rnn, s = self._rnn, hidden[0]
        x = torch.addmm(next(self._inputs), context, self._context).to(s.dtype)  # (B, gates)
        u = F.linear(s, rnn.weight_hh_l0, rnn.bias_hh_l0).to(s.dtype)  # (B, gates)
        if isinstance(rnn, nn.LSTM):
            i, f, g, o = (x + u).chunk(4, -1)
            memory = f.sigmoid() * hidden[1] + i.sigmoid() * g.tanh()
            return o.sigmoid() * memory.tanh(), memory
        both = 2 * s.shape[-1]
        r, z = (x[:, :both] + u[:, :both]).sigmoid().chunk(2, -1)
        n = torch.addcmul(x[:, both:], r, u[:, both:]).tanh()
        return (torch.lerp(n, s, z),)


def cell_class(where: str, cell: str) -> Any:
    """Return the module class of a cell. Raise ValueError for an unknown name."""
    if cell not in CELLS:
        raise ValueError(f"{where}: cell ({cell!r}) must be one of {', '.join(CELLS)}.")
    return CELLS[cell]


def run_rnn(rnn: nn.Module, inputs: Any, hidden: Hidden | None = None) -> tuple[Any, Hidden]:
    """Run an `nn.GRU` or `nn.LSTM`, with hidden states as a tuple for both: (layers · directions, B, W)."""
    if isinstance(rnn, nn.LSTM):
        result: tuple[Any, Hidden] = rnn(inputs, hidden)
        return result
    outputs, last = rnn(inputs, None if hidden is None else hidden[0])
    return outputs, (last,)
