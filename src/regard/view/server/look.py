"""What is computed over whole heads and over several: received weight, profiles, rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .heads import CELLS, Head, Mean, Stretch
from .target import Layer
from .tiles import stretches
from .work import Task

MOST = 8192
"""Numbers of a row, a column or an axis that are sent at once."""
RESIDUAL = 0.5


def received(head: Head | Mean, task: Task) -> tuple[int, Tensor]:
    """Keys an entry, and the mean weight of each entry's keys over all queries."""
    cells = -(-head.keys // MOST)
    found = head.picture([Stretch(0, head.queries, 1)], stretches(0, head.keys, cells), "mean", task)
    return cells, found[0]


def profile(layer: Layer, head: Head, task: Task) -> dict[str, float]:
    """Means over the queries: entropy in nats, distance in tokens, and the weight on chosen keys.

    A query of a causal map stands at the end of its keys: the last at the last, whatever came before the first.
    """
    ahead = head.keys - head.queries if layer.kind == "causal" else 0
    place = torch.arange(head.keys)
    total = dict.fromkeys(("entropy", "distance", "first", "previous", "same"), 0.0)
    step = max(1, CELLS // head.keys)
    for start in task.over(range(0, head.queries, step)):
        stop = min(start + step, head.queries)
        weights = head.weights(start, stop, slice(0, head.keys), task).cpu().nan_to_num(0.0)  # (rows, Tk)
        at = torch.arange(start, stop).unsqueeze(-1) + ahead  # (rows, 1)
        total["entropy"] += float(torch.special.entr(weights).sum())
        total["distance"] += float((weights * (place - at).abs()).sum())
        total["first"] += float(weights[:, 0].sum())
        total["previous"] += float(_diagonal(weights, start + ahead - 1))
        total["same"] += float(_diagonal(weights, start + ahead))
    return {name: value / head.queries for name, value in total.items()}


def _diagonal(weights: Tensor, first: int) -> Tensor:
    """The sum of cells (0, first), (1, first + 1), …, those that there are."""
    outside = first >= weights.shape[1] or -first >= weights.shape[0]
    return weights.new_zeros(()) if outside else weights.diagonal(first).sum()


def rollout(layers: Sequence[Layer], token: int, task: Task) -> Tensor:
    """What a token of the last layer drew on through all layers, (N,), together 1.

        x ← ½ x + ½ meanₕ x · Wₗₕ      from the last layer to the first; x marks the token at first

    Paper: Abnar & Zuidema 2020, section 3.
    """
    x = torch.zeros(layers[0].keys)
    x[token] = 1
    for layer in reversed(layers):
        x = RESIDUAL * x + (1 - RESIDUAL) * Mean(layer.heads).before(x, task).cpu()
    return x
