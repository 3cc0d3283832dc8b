"""Statistics over whole heads and several layers: received weight, profiles, rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.cells import Cells, split
from ..lens.head_profile import MEASURES, first_position, totals
from .head_views import Head, Mean
from .target import Layer
from .work_queue import Task

MAX_VALUES = 8192
"""Maximum number of values sent for a row, a column or an axis."""
RESIDUAL = 0.5


def received(head: Head | Mean, task: Task) -> tuple[int, Tensor]:
    """Return the number of keys per entry, and the mean weight of each entry's keys over all queries."""
    cells = -(-head.keys // MAX_VALUES)
    means = head.picture([Cells(0, head.queries, 1)], split(0, head.keys, cells), "mean", task)  # (1, entries)
    return cells, means[0]


def profile(head: Head, task: Task) -> Tensor:
    """Return the statistics of `regard.lens.head_profile`, (5,), computed band by band."""
    position = first_position(head.request)
    total = torch.zeros(len(MEASURES), dtype=torch.float64)
    for start, _, part in head.parts(task):
        total += totals(part, position + start)
    return total / head.queries


def rollout(layers: Sequence[Layer], token: int, task: Task) -> Tensor:
    """Return the rollout weights of the input for one token of the last layer, (N,). They sum to 1.

        x ← ½ x + ½ meanₕ x · Wₗₕ      from the last layer to the first; x is initially one-hot

    Paper: Abnar & Zuidema 2020, section 3.
    """
    x = torch.zeros(layers[0].keys)
    x[token] = 1
    for layer in task.over(layers[::-1]):
        x = RESIDUAL * x + (1 - RESIDUAL) * Mean(layer.heads).left_multiply(x, task).cpu()
    return x


def numbers(values: Tensor) -> list[float | None]:
    """Return the values as JSON numbers, with None for values that are not finite."""
    listed: list[float | None] = values.double().tolist()
    return listed if bool(values.isfinite().all()) else [x if abs(x or 0) < float("inf") else None for x in listed]
