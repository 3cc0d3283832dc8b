"""Recurrent layers by their equations: the computation of `nn.GRU` and `nn.LSTM`, position by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.trace import trace_step

Hidden = tuple[Tensor, ...]
"""(h,) for a GRU, (h, memory) for an LSTM; (B, E) each."""
AssignLetters = Callable[[Tensor, str], None]
"""Receives the dimensions of a tensor: B, rows, in (input), out (state), all (states of all directions)."""


def recurrence(
    name: str, args: Sequence[Any], assign: AssignLetters = lambda tensor, letters: None
) -> tuple[Tensor, ...]:
    """Return the result of `torch.gru` or `torch.lstm` in evaluation mode: outputs, then the last hidden states.

        gru:   r = σ(W·x + U·h),  z = σ(W·x + U·h),  n = tanh(W·x + r ⊙ (U·h)),  h′ = (1 − z) ⊙ n + z ⊙ h
        lstm:  i, f, o = σ(W·x + U·h),  g = tanh(W·x + U·h),  m′ = f ⊙ m + i ⊙ g,  h′ = o ⊙ tanh(m′)

    Each W and U has its own bias. Both argument forms are supported: (input, hx, weights, …, batch_first), and, for
    packed sequences, (data, batch_sizes, hx, weights, …).

    >>> layer, x = torch.nn.GRU(3, 4, bidirectional=True), torch.randn(5, 2, 3)
    >>> zero = torch.zeros(2, 2, 4)
    >>> result = recurrence("gru", (x, zero, layer._flat_weights, True, 1, 0.0, False, True, False))
    >>> torch.allclose(result[0], layer(x)[0], atol=1e-6), torch.allclose(result[1], layer(x)[1], atol=1e-6)
    (True, True)
    """
    cell, names = CELLS[name]
    packed = not isinstance(args[3], bool)
    hx, weights, bias, layers, dropout, training, both = args[2 if packed else 1 :][:7]
    assert not (training and dropout), "dropout is not supported: a model is explained in evaluation mode"
    rows, sizes, back = _packed(args, packed)
    starts = hx if isinstance(hx, tuple) else (hx,)
    for start in starts:
        assign(start, f"{len(start)} B out")  # (layers · directions, B, E)
    firsts = list(zip(*(part.unbind(0) for part in starts), strict=True))
    directions = ("forward", "backward")[: 2 if both else 1]
    per_direction = 4 if bias else 2
    last: list[Hidden] = []
    for layer in range(layers):
        outputs = []
        with trace_step("layer", layer + 1) if layers > 1 else nullcontext():
            for direction in directions:
                number = len(last)
                parts = _split_gates(
                    weights[per_direction * number : per_direction * (number + 1)],
                    names,
                    "all" if layer else "in",
                    assign,
                )
                for first in firsts[number]:
                    assign(first, "B out")
                positions = rows.split(sizes)
                for position in positions:
                    assign(position, f"B {'all' if layer else 'in'}")
                with trace_step(direction):
                    states, hidden = _run_direction(cell, positions, firsts[number], parts, direction == "backward")
                    joined = torch.cat(states)  # (N, E)
                    assign(joined, "rows out")
                    outputs.append(joined)
                last.append(hidden)
            rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)  # (N, C)
            assign(rows, "rows all")
    return back(rows), *(torch.stack(parts) for parts in zip(*last, strict=True))


def _packed(args: Sequence[Any], packed: bool) -> tuple[Tensor, list[int], Callable[[Tensor], Tensor]]:
    """Return the input as rows (N, W), the batch size at each position, and the inverse function for the output."""
    if packed:
        return args[0], args[1].tolist(), lambda rows: rows
    x = args[0].transpose(0, 1) if args[8] else args[0]  # (Ts, B, W)
    length, batch = x.shape[:2]

    def back(rows: Tensor) -> Tensor:
        x = rows.unflatten(0, (length, batch))
        result: Tensor = x.transpose(0, 1) if args[8] else x
        return result

    return x.flatten(0, 1), [batch] * length, back


def _split_gates(
    weights: Sequence[Tensor], names: Sequence[str], width: str, assign: AssignLetters
) -> dict[str, tuple[Tensor, ...]]:
    """Split the fused weights of PyTorch by gate: (W, U, bias of W, bias of U) for each."""
    cut = [weight.chunk(len(names)) for weight in weights]
    for matrices, letters in zip(cut, (f"out {width}", "out out", "out", "out"), strict=False):
        for matrix in matrices:
            assign(matrix, letters)
    return dict(zip(names, zip(*cut, strict=True), strict=True))


def _run_direction(
    cell: Callable[..., Hidden], inputs: Sequence[Tensor], hidden: Hidden, parts: Any, back: bool
) -> tuple[list[Tensor], Hidden]:
    """Run one direction of one layer. Return its state at every position, and the last hidden states.

    Sequences are sorted by length, longest first. Only the first n of B sequences reach a given position. The others
    keep their state: the last one in forward direction, the initial one in backward direction.
    """
    states: list[Tensor] = [hidden[0]] * len(inputs)
    for position in reversed(range(len(inputs))) if back else range(len(inputs)):
        x = inputs[position]
        complete = len(x) == len(hidden[0])
        with trace_step("place", position + 1):
            updated = cell(x, hidden if complete else tuple(h[: len(x)] for h in hidden), parts)
        states[position] = updated[0]
        if not complete:
            updated = tuple(torch.cat((new, h[len(x) :])) for new, h in zip(updated, hidden, strict=True))
        hidden = updated
    return states, hidden


def _projections(part: tuple[Tensor, ...], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return W·x and U·h of one gate, (n, E) each."""
    w, u, *biases = part
    b, c = biases or (None, None)
    with trace_step("of the input"):
        of_x = F.linear(x, w, b)
    with trace_step("of the state"):
        return of_x, F.linear(h, u, c)


def _gate(name: str, part: tuple[Tensor, ...], x: Tensor, h: Tensor) -> Tensor:
    with trace_step(name):
        of_x, of_h = _projections(part, x, h)
        return torch.sigmoid(of_x + of_h)


def _gru(x: Tensor, hidden: Hidden, parts: Any) -> Hidden:
    (h,) = hidden
    r = _gate("reset gate", parts["reset gate"], x, h)
    z = _gate("update gate", parts["update gate"], x, h)
    with trace_step("candidate", "n = tanh(W·x + r ⊙ (U·h))"):
        of_x, of_h = _projections(parts["candidate"], x, h)
        n = torch.tanh(of_x + r * of_h)
    with trace_step("new state", "h′ = (1 − z) ⊙ n + z ⊙ h"):
        return (torch.lerp(n, h, z),)


def _lstm(x: Tensor, hidden: Hidden, parts: Any) -> Hidden:
    h, memory = hidden
    i, f, o = (_gate(name, parts[name], x, h) for name in ("input gate", "forget gate", "output gate"))
    with trace_step("candidate", "g = tanh(W·x + U·h)"):
        of_x, of_h = _projections(parts["candidate"], x, h)
        g = torch.tanh(of_x + of_h)
    with trace_step("memory", "m′ = f ⊙ m + i ⊙ g"):
        memory = f * memory + i * g
    with trace_step("new state", "h′ = o ⊙ tanh(m′)"):
        return o * torch.tanh(memory), memory


CELLS: dict[str, tuple[Callable[..., Hidden], tuple[str, ...]]] = {
    "gru": (_gru, ("reset gate", "update gate", "candidate")),
    "lstm": (_lstm, ("input gate", "forget gate", "candidate", "output gate")),
}
"""Equations and gates, in the order of the weights, by name of the PyTorch function."""
