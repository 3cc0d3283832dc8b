"""A recurrent layer by its equations: what `nn.GRU` and `nn.LSTM` do in one operation, place by place in the open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.trace import trace_step

Hidden = tuple[Tensor, ...]
"""(h,) of a GRU, (h, its memory) of an LSTM; (B, E) each."""
Give = Callable[[Tensor, str], None]
"""Told the dimensions of a tensor: B, rows, in (of what is read), out (of a state), all (of every direction)."""


def recurrence(name: str, args: Sequence[Any], give: Give = lambda tensor, letters: None) -> tuple[Tensor, ...]:
    """What `torch.gru` or `torch.lstm` gives for these arguments, in evaluation: outputs, then the last hidden states.

        gru:   r = σ(W·x + U·h),  z = σ(W·x + U·h),  n = tanh(W·x + r ⊙ (U·h)),  h′ = (1 − z) ⊙ n + z ⊙ h
        lstm:  i, f, o = σ(W·x + U·h),  g = tanh(W·x + U·h),  m′ = f ⊙ m + i ⊙ g,  h′ = o ⊙ tanh(m′)

    Each W and U has its bias. Both forms are taken: (input, hx, weights, …, batch_first), and, for sentences packed
    by place, (data, batch_sizes, hx, weights, …).

    >>> layer, x = torch.nn.GRU(3, 4, bidirectional=True), torch.randn(5, 2, 3)
    >>> zero = torch.zeros(2, 2, 4)
    >>> found = recurrence("gru", (x, zero, layer._flat_weights, True, 1, 0.0, False, True, False))
    >>> torch.allclose(found[0], layer(x)[0], atol=1e-6), torch.allclose(found[1], layer(x)[1], atol=1e-6)
    (True, True)
    """
    cell, names = CELLS[name]
    packed = not isinstance(args[3], bool)
    hx, weights, bias, layers, dropout, training, both = args[2 if packed else 1 :][:7]
    assert not (training and dropout), "a model is explained as it runs, not as it learns"
    rows, sizes, back = _packed(args, packed)
    starts = hx if isinstance(hx, tuple) else (hx,)
    for start in starts:
        give(start, f"{len(start)} B out")  # (layers · directions, B, E)
    firsts = list(zip(*(part.unbind(0) for part in starts), strict=True))
    ways = ("forward", "backward")[: 2 if both else 1]
    each = 4 if bias else 2
    last: list[Hidden] = []
    for layer in range(layers):
        found = []
        with trace_step("layer", layer + 1) if layers > 1 else nullcontext():
            for way in ways:
                number = len(last)
                parts = _cut(weights[each * number : each * (number + 1)], names, "all" if layer else "in", give)
                for first in firsts[number]:
                    give(first, "B out")
                places = rows.split(sizes)
                for place in places:
                    give(place, f"B {'all' if layer else 'in'}")
                with trace_step(way):
                    states, hidden = _read(cell, places, firsts[number], parts, way == "backward")
                    joined = torch.cat(states)  # (N, E)
                    give(joined, "rows out")
                    found.append(joined)
                last.append(hidden)
            rows = found[0] if len(found) == 1 else torch.cat(found, -1)  # (N, C)
            give(rows, "rows all")
    return back(rows), *(torch.stack(parts) for parts in zip(*last, strict=True))


def _packed(args: Sequence[Any], packed: bool) -> tuple[Tensor, list[int], Callable[[Tensor], Tensor]]:
    """What is read as rows (N, W), place after place; how many sentences reach each place; rows as they were given."""
    if packed:
        return args[0], args[1].tolist(), lambda rows: rows
    x = args[0].transpose(0, 1) if args[8] else args[0]  # (Ts, B, W)
    long, batch = x.shape[:2]

    def back(rows: Tensor) -> Tensor:
        found = rows.unflatten(0, (long, batch))
        return found.transpose(0, 1) if args[8] else found

    return x.flatten(0, 1), [batch] * long, back


def _cut(weights: Sequence[Tensor], names: Sequence[str], given: str, give: Give) -> dict[str, tuple[Tensor, ...]]:
    """The weights of each gate, (W, U, b of W, b of U); PyTorch has those of all gates in one matrix."""
    cut = [weight.chunk(len(names)) for weight in weights]
    for matrices, letters in zip(cut, (f"out {given}", "out out", "out", "out"), strict=False):
        for matrix in matrices:
            give(matrix, letters)
    return dict(zip(names, zip(*cut, strict=True), strict=True))


def _read(
    cell: Callable[..., Hidden], places: Sequence[Tensor], hidden: Hidden, parts: Any, back: bool
) -> tuple[list[Tensor], Hidden]:
    """One direction of one layer: its state at every place, and the last hidden states.

    Sentences are packed longest first: at a place the first n of B are there. The others keep what they have, which
    is their last state on the way forward, and their first on the way back.
    """
    states: list[Tensor] = [hidden[0]] * len(places)
    for place in reversed(range(len(places))) if back else range(len(places)):
        x = places[place]
        whole = len(x) == len(hidden[0])
        with trace_step("place", place + 1):
            found = cell(x, hidden if whole else tuple(h[: len(x)] for h in hidden), parts)
        states[place] = found[0]
        hidden = found if whole else tuple(torch.cat((new, h[len(x) :])) for new, h in zip(found, hidden, strict=True))
    return states, hidden


def _sides(part: tuple[Tensor, ...], x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """W·x and U·h of one gate, (n, E) each."""
    w, u, *biases = part
    b, c = biases or (None, None)
    with trace_step("of the input"):
        of_x = F.linear(x, w, b)
    with trace_step("of the state"):
        return of_x, F.linear(h, u, c)


def _gate(name: str, part: tuple[Tensor, ...], x: Tensor, h: Tensor) -> Tensor:
    with trace_step(name):
        of_x, of_h = _sides(part, x, h)
        return torch.sigmoid(of_x + of_h)


def _gru(x: Tensor, hidden: Hidden, parts: Any) -> Hidden:
    (h,) = hidden
    r = _gate("reset gate", parts["reset gate"], x, h)
    z = _gate("update gate", parts["update gate"], x, h)
    with trace_step("candidate", "n = tanh(W·x + r ⊙ (U·h))"):
        of_x, of_h = _sides(parts["candidate"], x, h)
        n = torch.tanh(of_x + r * of_h)
    with trace_step("new state", "h′ = (1 − z) ⊙ n + z ⊙ h"):
        return (torch.lerp(n, h, z),)


def _lstm(x: Tensor, hidden: Hidden, parts: Any) -> Hidden:
    h, memory = hidden
    i, f, o = (_gate(name, parts[name], x, h) for name in ("input gate", "forget gate", "output gate"))
    with trace_step("candidate", "g = tanh(W·x + U·h)"):
        of_x, of_h = _sides(parts["candidate"], x, h)
        g = torch.tanh(of_x + of_h)
    with trace_step("memory", "m′ = f ⊙ m + i ⊙ g"):
        memory = f * memory + i * g
    with trace_step("new state", "h′ = o ⊙ tanh(m′)"):
        return o * torch.tanh(memory), memory


CELLS: dict[str, tuple[Callable[..., Hidden], tuple[str, ...]]] = {
    "gru": (_gru, ("reset gate", "update gate", "candidate")),
    "lstm": (_lstm, ("input gate", "forget gate", "candidate", "output gate")),
}
"""By the name of PyTorch's function: the equations, and the gates in the order of its weights."""
