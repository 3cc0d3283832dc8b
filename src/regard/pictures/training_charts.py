"""The curves of a run as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

SHOWN = ("loss", "learning_rate")


def draw(records: Sequence[dict[str, Any]], goal: str) -> bytes:
    """A PNG: the loss in training and evaluation, the goal, the learning rate; each over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    train = [record for record in records if record["event"] == "train"]
    valid = [record for record in records if record["event"] == "evaluate"]
    names = list(dict.fromkeys((*SHOWN[:1], goal, *SHOWN[1:])))
    figure = Figure(figsize=(4.2 * len(names), 3.2), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        for part, label, mark in ((train, "training", ""), (valid, "evaluation", "o")):
            points = [(record["step"], record[name]) for record in part if name in record]
            if points:
                axes.plot(*zip(*points, strict=True), marker=mark, markersize=3, label=label)
        axes.set(xlabel="step", title=name.replace("_", " "))
        axes.grid(alpha=0.3)
        if name == "loss" and axes.lines:
            axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
