"""Recurrence one step at a time, for a decoder whose input is not known before its last state.

What does not wait for the steps is done for all of them at once: the gates' share of the inputs before them, and the
gradients of the weights after them, as one matrix product in place of one per step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Hidden = tuple[Tensor, ...]
"""What a cell hands on: (s,) of a GRU, (s, its memory) of an LSTM; (B, W) each. The first is the state."""


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
        self.rnn = kind_of("recurrent state", cell).module(input_width + context_width, width)
        self.input_width, self.width, self.cell = input_width, width, cell

    def begin(self, state: Tensor) -> Hidden:
        """What the first step is handed, from s₀ (B, W); the memory of an LSTM starts empty."""
        return CELLS[self.cell].begin(state.to(self.rnn.weight_hh_l0.dtype))  # under autocast it may be narrower

    def at_once(self, inputs: Tensor, context: Tensor, hidden: Hidden) -> Tensor:
        """All states (T, B, W) where one context (B, C) serves every step."""
        joined = torch.cat((inputs, context.expand(len(inputs), -1, -1)), -1)  # (T, B, E + C)
        return over(self.rnn, joined, tuple(h[None] for h in hidden))[0]

    def weights(self) -> Weights:
        """The weights as the steps take them; the same for any number of calls of `unroll`."""
        rnn = self.rnn
        return CELLS[self.cell].weights(
            rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0, self.input_width
        )

    def unroll(self, inputs: Tensor, weights: Weights | None = None) -> Unrolled:
        """Begin a pass over inputs (T, B, E), whose contexts are given step by step."""
        return Unrolled(CELLS[self.cell], inputs, self.weights() if weights is None else weights)


class Weights(NamedTuple):
    """The weights of a cell, cut by what they are applied to."""

    inputs: Tensor
    """(gates, E)"""
    bias: Tensor
    """(gates,)"""
    context: Tensor
    """(gates, C)"""
    state: Tensor
    """(gates, W)"""
    own: Tensor | None
    """(W,): the bias that a GRU's reset gate closes with its state, apart from the others."""


class Unrolled:
    """One pass of a `RecurrentState` over T steps."""

    def __init__(self, kind: Any, inputs: Tensor, weights: Weights) -> None:
        base = F.linear(inputs, weights.inputs, weights.bias).to(weights.bias.dtype)  # (T, B, gates)
        if weights.own is not None:
            base = torch.cat((base, weights.own.expand(*base.shape[:-1], -1)), -1)  # (T, B, gates + W)
        self.kind = kind
        self.contexts: list[Tensor] = []
        self.states: list[Tensor] = []
        if torch.is_grad_enabled():
            base = _Late.apply(base, weights.context, self.contexts, kind.context_columns(base.shape[-1]))
            base = _Late.apply(base, weights.state, self.states, kind.state_columns(base.shape[-1]))
        self._base = base.unbind(0)
        self._context, self._state = weights.context.detach(), weights.state.detach()

    def step(self, context: Tensor, hidden: Hidden) -> Hidden:
        """The next state from the context (B, C) and the last one."""
        base = self._base[len(self.contexts)]  # (B, gates)
        context = context.to(base.dtype)
        self.contexts.append(context.detach())
        self.states.append(hidden[0].detach())
        found = self.kind.apply(base, context, self._context, self._state, *hidden)
        return found if isinstance(found, tuple) else (found,)


class _Late(torch.autograd.Function):
    """Hands on a base to which steps will add x·Wᵀ, and finds W's gradient for all steps together.

    The steps take W as a constant. What reaches the base as its gradient is what would reach every x·Wᵀ; by the time
    it does, `inputs` holds the x of each step: dW = Σ over steps of gradᵀ·x, one product over (T·B) rows.
    """

    @staticmethod
    def forward(ctx: Any, base: Tensor, weight: Tensor, inputs: list[Tensor], columns: slice) -> Tensor:
        ctx.inputs, ctx.columns = inputs, columns
        return base.view_as(base)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x = torch.cat(ctx.inputs)  # (steps · B, in)
        g = grad[: len(ctx.inputs), :, ctx.columns].flatten(0, 1)  # (steps · B, out)
        return grad, g.T @ x, None, None


class _GRU(torch.autograd.Function):
    """One step. Columns of the base: n of input and context, r, z, n of the state: C and U each meet one stretch."""

    module = nn.GRU

    @staticmethod
    def begin(state: Tensor) -> Hidden:
        return (state,)

    @staticmethod
    def weights(of_input: Tensor, of_state: Tensor, input_bias: Tensor, state_bias: Tensor, width: int) -> Weights:
        hidden = of_state.shape[1]
        gates, n = of_input.split((2 * hidden, hidden))
        moved = torch.cat((n, gates))  # (3W, E + C): PyTorch's order is r, z, n
        bias = torch.cat((input_bias[2 * hidden :], input_bias[: 2 * hidden] + state_bias[: 2 * hidden]))
        return Weights(moved[:, :width], bias, moved[:, width:], of_state, state_bias[2 * hidden :])

    @staticmethod
    def context_columns(size: int) -> slice:
        return slice(0, size // 4 * 3)

    @staticmethod
    def state_columns(size: int) -> slice:
        return slice(size // 4, size)

    @staticmethod
    def forward(ctx: Any, base: Tensor, context: Tensor, c: Tensor, u: Tensor, s: Tensor) -> Tensor:
        width = s.shape[-1]
        p = base.clone()
        p[:, : 3 * width].addmm_(context, c.T)
        p[:, width:].addmm_(s, u.T)
        n, gates, own = p.split((width, 2 * width, width), -1)
        r, z = gates.sigmoid_().chunk(2, -1)
        n = n.addcmul_(r, own).tanh_()
        ctx.save_for_backward(p, s, c, u)
        return torch.lerp(n, s, z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p, s, c, u = ctx.saved_tensors
        n, r, z, own = p.chunk(4, -1)
        width = s.shape[-1]
        d = torch.empty_like(p)
        dn, dr, dz, down = d.chunk(4, -1)
        kept = grad * z
        torch.mul(grad - kept, 1 - n * n, out=dn)
        torch.mul(dn, r, out=down)
        torch.mul(dn * own, r - r * r, out=dr)
        torch.mul((s - n).mul_(kept), 1 - z, out=dz)
        return d, d[:, : 3 * width] @ c, None, None, kept.addmm_(d[:, width:], u)


class _LSTM(torch.autograd.Function):
    """One step. Columns of the base: i, f, g, o, as PyTorch orders them."""

    module = nn.LSTM

    @staticmethod
    def begin(state: Tensor) -> Hidden:
        return state, torch.zeros_like(state)

    @staticmethod
    def weights(of_input: Tensor, of_state: Tensor, input_bias: Tensor, state_bias: Tensor, width: int) -> Weights:
        return Weights(of_input[:, :width], input_bias + state_bias, of_input[:, width:], of_state, None)

    @staticmethod
    def context_columns(size: int) -> slice:
        return slice(0, size)

    state_columns = context_columns

    @staticmethod
    def forward(
        ctx: Any, base: Tensor, context: Tensor, c: Tensor, u: Tensor, s: Tensor, m: Tensor
    ) -> tuple[Tensor, Tensor]:
        p = torch.addmm(base, context, c.T).addmm_(s, u.T)
        i, f, g, o = p.chunk(4, -1)
        for gate, bend in ((i, torch.sigmoid_), (f, torch.sigmoid_), (g, torch.tanh_), (o, torch.sigmoid_)):
            bend(gate)
        memory = (f * m).addcmul_(i, g)
        bent = memory.tanh()
        ctx.save_for_backward(p, m, bent, c, u)
        return o * bent, memory

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_memory: Tensor) -> tuple[Tensor | None, ...]:
        p, m, bent, c, u = ctx.saved_tensors
        i, f, g, o = p.chunk(4, -1)
        d = torch.empty_like(p)
        di, df, dg, do = d.chunk(4, -1)
        torch.mul(grad * bent, o - o * o, out=do)
        whole = torch.addcmul(grad_memory, grad * o, 1 - bent * bent)  # all that reaches the new memory
        torch.mul(whole * g, i - i * i, out=di)
        torch.mul(whole * m, f - f * f, out=df)
        torch.mul(whole * i, 1 - g * g, out=dg)
        return d, d @ c, None, None, d @ u, whole * f


CELLS: dict[str, Any] = {"gru": _GRU, "lstm": _LSTM}


def kind_of(where: str, cell: str) -> Any:
    """The cell of a name; raises ValueError for another name."""
    if cell not in CELLS:
        raise ValueError(f"{where}: cell ({cell!r}) must be one of {', '.join(CELLS)}.")
    return CELLS[cell]


def over(rnn: nn.Module, inputs: Any, hidden: Hidden | None = None) -> tuple[Any, Hidden]:
    """What an `nn.GRU` or `nn.LSTM` gives, with its hidden states as a tuple for both: (layers · directions, B, W)."""
    if isinstance(rnn, nn.LSTM):
        return rnn(inputs, hidden)
    outputs, last = rnn(inputs, None if hidden is None else hidden[0])
    return outputs, (last,)
