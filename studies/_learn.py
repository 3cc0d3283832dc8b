"""What the studies of small tasks share: a loop that trains, turns that are timed, lines that are named, a verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from studies._claim import line

ROW = 11.0
"""Points between the names of two lines that end at one place."""


def learn(
    model: nn.Module,
    loss: Callable[[torch.Generator], Tensor],
    *,
    steps: int,
    rate: float,
    seed: int,
    enough: float = 0.0,
) -> list[float]:
    """Train on data made anew at each step, by AdamW; the loss of each step.

    The rate rises over a tenth of the steps, then falls linearly to zero; gradients are clipped to a norm of 1.

    Args:
        loss: draws a batch by the generator, and gives its mean loss.
        seed: of the data.
        enough: stop where the mean of the last 20 losses is below it.

    >>> layer = nn.Linear(1, 1)
    >>> def loss(draw: torch.Generator) -> Tensor:
    ...     x = torch.randn(16, 1, generator=draw)
    ...     return (layer(x) - 3 * x).square().mean()
    >>> len(learn(layer, loss, steps=200, rate=0.1, seed=0)), round(layer.weight.item(), 1)
    (200, 3.0)
    """
    draw = torch.Generator().manual_seed(10_000 + seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    losses: list[float] = []
    model.train()
    for _ in range(steps):
        value = loss(draw)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
        if len(losses) >= 20 and statistics.mean(losses[-20:]) < enough:
            break
    model.eval()
    return losses


def in_turn(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each way, all of them once in each round, after one round that does not count.

    >>> sorted(in_turn({"a": lambda: sum(range(9)), "b": lambda: None}, rounds=3))
    ['a', 'b']
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(found[1:]) for name, found in taken.items()}


def verdict(parts: Iterable[tuple[bool, str]]) -> str:
    """One sentence of what was claimed part by part: whether each held, and what was found, in words.

    >>> verdict([(True, "it is fast"), (False, "it is not small")])
    'held in part: it is fast; but it is not small.'
    >>> verdict([(True, "it is fast")]), verdict([(False, "it is slow")])
    ('held: it is fast.', 'did not hold here: it is slow.')
    """
    held: list[str] = []
    failed: list[str] = []
    for true, said in parts:
        (held if true else failed).append(said)
    if not failed:
        return f"held: {'; '.join(held)}."
    if not held:
        return f"did not hold here: {'; '.join(failed)}."
    return f"held in part: {'; '.join(held)}; but {'; '.join(failed)}."


def lines(axes: Any, x: Sequence[float], named: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Several lines of the same places, named at their right ends, where names that would meet step aside.

    Limits and scales of the axes come first; values are one list of seeds for each x.
    """
    for values in named.values():
        line(axes, x, values, "")
    ends = {name: float(drawn.get_ydata()[-1]) for name, drawn in zip(named, axes.lines[-len(named) :], strict=True)}
    colours = [drawn.get_color() for drawn in axes.lines[-len(named) :]]
    points = 72 / axes.figure.dpi
    at = {name: float(axes.transData.transform((x[-1], end))[1]) * points for name, end in ends.items()}
    top = float(axes.transAxes.transform((0.0, 1.0))[1]) * points - ROW / 2  # above it stands the title
    for name, place in zip(named, _below(_apart([at[name] for name in named], ROW), ROW, top), strict=True):
        colour = colours[list(named).index(name)]
        shift = (6, place - at[name])
        axes.annotate(
            name, (x[-1], ends[name]), shift, textcoords="offset points", color=colour, va="center", fontsize=9
        )


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved as little as keeps them `gap` apart, in the same order.

    >>> _apart([0.0, 0.0, 50.0], 10.0)
    [-5.0, 5.0, 50.0]
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[list[float]] = []  # each: [sum of the places it wants, less their rank, and how many]
    for index in order:
        groups.append([places[index], 1.0])
        while len(groups) > 1 and _low(groups[-1], gap) < _low(groups[-2], gap) + gap * groups[-2][1]:
            total, count = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + count]
    found = [0.0] * len(places)
    spots = [_low(group, gap) + gap * rank for group in groups for rank in range(int(group[1]))]
    for index, spot in zip(order, spots, strict=True):
        found[index] = spot
    return found


def _below(places: Sequence[float], gap: float, top: float) -> list[float]:
    """Places that are apart, the highest of them moved down to where all are at `top` or below.

    >>> _below([95.0, 0.0, 105.0], 10.0, 100.0)
    [90.0, 0.0, 100.0]
    """
    found = [0.0] * len(places)
    for index in sorted(range(len(places)), key=lambda index: -places[index]):
        found[index] = min(places[index], top)
        top = found[index] - gap
    return found


def _low(group: Sequence[float], gap: float) -> float:
    """Where the lowest of a group stands, when the group stands around its mean."""
    return group[0] / group[1] - gap * (group[1] - 1) / 2
