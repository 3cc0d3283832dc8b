"""What is computed over whole heads and over several: received weight, profiles, rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.cells import Cells, split
from ..lens.head_profile import MEASURES, first_position, totals
from .head_views import Head, Mean
from .target import Layer
from .work_queue import Task

MOST = 8192
"""Numbers of a row, a column or an axis that are sent at once."""
RESIDUAL = 0.5


def received(head: Head | Mean, task: Task) -> tuple[int, Tensor]:
    """Keys an entry, and the mean weight of each entry's keys over all queries."""
    cells = -(-head.keys // MOST)
    found = head.picture([Cells(0, head.queries, 1)], split(0, head.keys, cells), "mean", task)
    return cells, found[0]


def profile(head: Head, task: Task) -> Tensor:
    """The figures of `regard.lens.head_profile`, band by band: (5,)"""
    ahead = first_position(head.request)
    found = torch.zeros(len(MEASURES), dtype=torch.float64)
    for start, _, part in head.parts(task):
        found += totals(part, ahead + start)
    return found / head.queries


def rollout(layers: Sequence[Layer], token: int, task: Task) -> Tensor:
    """What a token of the last layer drew on through all layers, (N,), together 1.

        x ← ½ x + ½ meanₕ x · Wₗₕ      from the last layer to the first; x marks the token at first

    Paper: Abnar & Zuidema 2020, section 3.
    """
    x = torch.zeros(layers[0].keys)
    x[token] = 1
    for layer in task.over(layers[::-1]):
        x = RESIDUAL * x + (1 - RESIDUAL) * Mean(layer.heads).before(x, task).cpu()
    return x
