"""Helpers of the studies of small tasks: a training loop, interleaved timing, labelled lines and verdicts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from studies._claim import line

ROW = 11.0
"""Distance in points between the labels of two lines that end at the same height."""


def learn(
    model: nn.Module,
    loss: Callable[[torch.Generator], Tensor],
    *,
    steps: int,
    rate: float,
    seed: int,
    enough: float = 0.0,
    after: Callable[[int], object] | None = None,
) -> list[float]:
    """Train with AdamW on newly generated data at each step, and return the loss of each step.

    The learning rate rises over the first tenth of the steps and then falls linearly to zero. Gradients are clipped to
    a norm of 1.

    Args:
        loss: draws a batch with the generator and returns its mean loss.
        seed: seed of the data.
        enough: stop when the mean of the last 20 losses is below this value.
        after: called after each step with the number of steps so far.

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
        if after is not None:
            after(len(losses))
        if len(losses) >= 20 and statistics.mean(losses[-20:]) < enough:
            break
    model.eval()
    return losses


def interleaved_times(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each function. Each round calls all of them once; the first round is discarded.

    >>> sorted(interleaved_times({"a": lambda: sum(range(9)), "b": lambda: None}, rounds=3))
    ['a', 'b']
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def verdict(parts: Iterable[tuple[bool, str]]) -> str:
    """Return a sentence from the parts of a claim: whether each held, and a description of the result.

    >>> verdict([(True, "it is fast"), (False, "it is not small")])
    'held in part: it is fast; but it is not small.'
    >>> verdict([(True, "it is fast")]), verdict([(False, "it is slow")])
    ('held: it is fast.', 'did not hold here: it is slow.')
    """
    held: list[str] = []
    failed: list[str] = []
    for true, description in parts:
        (held if true else failed).append(description)
    if not failed:
        return f"held: {'; '.join(held)}."
    if not held:
        return f"did not hold here: {'; '.join(failed)}."
    return f"held in part: {'; '.join(held)}; but {'; '.join(failed)}."


def lines(axes: Any, x: Sequence[float], named: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Plot several lines over the same x, labelled at their right ends. Labels that would overlap are moved apart.

    Set the limits and scales of the axes first. `named` maps each label to one list of seeds per x.
    """
    for values in named.values():
        line(axes, x, values, "")
    ends = {name: float(drawn.get_ydata()[-1]) for name, drawn in zip(named, axes.lines[-len(named) :], strict=True)}
    colours = [drawn.get_color() for drawn in axes.lines[-len(named) :]]
    points = 72 / axes.figure.dpi
    at = {name: float(axes.transData.transform((x[-1], end))[1]) * points for name, end in ends.items()}
    top = float(axes.transAxes.transform((0.0, 1.0))[1]) * points - ROW / 2  # the title is above
    for name, position in zip(named, _below(_spread_out([at[name] for name in named], ROW), ROW, top), strict=True):
        colour = colours[list(named).index(name)]
        shift = (6, position - at[name])
        axes.annotate(
            name, (x[-1], ends[name]), shift, textcoords="offset points", color=colour, va="center", fontsize=9
        )


def _spread_out(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions as little as possible so that they are `gap` apart, in the same order.

    >>> _spread_out([0.0, 0.0, 50.0], 10.0)
    [-5.0, 5.0, 50.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[list[float]] = []  # each: [sum of the target positions, number of positions]
    for index in order:
        groups.append([positions[index], 1.0])
        while len(groups) > 1 and _low(groups[-1], gap) < _low(groups[-2], gap) + gap * groups[-2][1]:
            total, count = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + count]
    moved = [0.0] * len(positions)
    spots = [_low(group, gap) + gap * rank for group in groups for rank in range(int(group[1]))]
    for index, spot in zip(order, spots, strict=True):
        moved[index] = spot
    return moved


def _below(positions: Sequence[float], gap: float, top: float) -> list[float]:
    """Move positions down so that all are at most `top` and still `gap` apart.

    >>> _below([95.0, 0.0, 105.0], 10.0, 100.0)
    [90.0, 0.0, 100.0]
    """
    moved = [0.0] * len(positions)
    for index in sorted(range(len(positions)), key=lambda index: -positions[index]):
        moved[index] = min(positions[index], top)
        top = moved[index] - gap
    return moved


def _low(group: Sequence[float], gap: float) -> float:
    """Return the lowest position of a group that is centred at its mean."""
    return group[0] / group[1] - gap * (group[1] - 1) / 2
