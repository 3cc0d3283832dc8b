"""Recurrence one step at a time, for a decoder whose input is not known before its last state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Hidden = tuple[Tensor, ...]
"""What a cell hands on: (s,) of a GRU, (s, its memory) of an LSTM; (B, W) each. The first is the state."""
CELLS: dict[str, Any] = {"gru": nn.GRU, "lstm": nn.LSTM}


class RecurrentState(nn.Module):
    """The state of a decoder: sᵢ = f(cᵢ, sᵢ₋₁, yᵢ₋₁), a GRU or LSTM over the input and the context side by side.

        gru:   r, z = σ(Wy + Cc + Us),  n = tanh(Wy + Cc + r ⊙ Us),  s′ = (1 − z) ⊙ n + z ⊙ s
        lstm:  i, f, o = σ(Wy + Cc + Us),  g = tanh(Wy + Cc + Us),  m′ = f ⊙ m + i ⊙ g,  s′ = o ⊙ tanh(m′)

    `rnn` is the `nn.GRU` or `nn.LSTM` that holds the weights, of inputs [y; c]: it computes the same, where every
    context is known beforehand (`at_once`); where it is not, `unroll` takes one step after the other.
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
        self.rnn = kind_of("recurrent state", cell)(input_width + context_width, width)
        self.input_width, self.width, self.cell = input_width, width, cell

    def begin(self, state: Tensor) -> Hidden:
        """What the first step is handed, from s₀ (B, W); the memory of an LSTM starts empty."""
        state = state.to(self.rnn.weight_hh_l0.dtype)  # under autocast it may be narrower
        return (state, torch.zeros_like(state)) if self.cell == "lstm" else (state,)

    def at_once(self, inputs: Tensor, context: Tensor, hidden: Hidden) -> Tensor:
        """All states (T, B, W) where one context (B, C) serves every step."""
        joined = torch.cat((inputs, context.expand(len(inputs), -1, -1)), -1)  # (T, B, E + C)
        return over(self.rnn, joined, tuple(h[None] for h in hidden))[0]

    def unroll(self, inputs: Tensor) -> Unrolled:
        """Begin a pass over inputs (T, B, E), whose contexts are given step by step."""
        return Unrolled(self, inputs)


class Unrolled:
    """One pass of a `RecurrentState` over T steps. What the inputs add to the gates is computed for all steps first."""

    def __init__(self, state: RecurrentState, inputs: Tensor) -> None:
        self._rnn, width = state.rnn, state.input_width
        of_input = state.rnn.weight_ih_l0  # (gates, E + C)
        self._inputs = iter(F.linear(inputs, of_input[:, :width], state.rnn.bias_ih_l0).unbind(0))  # (B, gates) each
        self._context = of_input[:, width:].T  # (C, gates)

    def step(self, context: Tensor, hidden: Hidden) -> Hidden:
        """The next state from the context (B, C) and the last one."""
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


def kind_of(where: str, cell: str) -> Any:
    """The module of a cell; raises ValueError for an unknown name."""
    if cell not in CELLS:
        raise ValueError(f"{where}: cell ({cell!r}) must be one of {', '.join(CELLS)}.")
    return CELLS[cell]


def over(rnn: nn.Module, inputs: Any, hidden: Hidden | None = None) -> tuple[Any, Hidden]:
    """What an `nn.GRU` or `nn.LSTM` gives, with its hidden states as a tuple for both: (layers · directions, B, W)."""
    if isinstance(rnn, nn.LSTM):
        return rnn(inputs, hidden)
    outputs, last = rnn(inputs, None if hidden is None else hidden[0])
    return outputs, (last,)
