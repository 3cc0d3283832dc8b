"""The curves of a run as a picture."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..core.files import replacing, write_text

SHOWN = ("loss", "learning_rate")


def draw(records: Sequence[dict[str, Any]], goal: str) -> bytes:
    """A PNG: the loss in training and evaluation, the goal, the learning rate; each over the steps."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    train = [record for record in records if record["event"] == "train"]
    valid = [record for record in records if record["event"] == "evaluate"]
    names = list(dict.fromkeys((*SHOWN[:1], goal, *SHOWN[1:])))
    figure = Figure(figsize=(4.2 * len(names), 3.2), layout="constrained")
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


NUMBERED = 20
"""Classes up to which the picture has the counts in its cells, and a name for each row."""


def save_confusion(matrix: Tensor, names: Sequence[str], f1: Sequence[float], path: str | Path) -> None:
    """Draw a confusion matrix (.png, .svg or .pdf), each row by its share, and write its numbers beside it (.json).

    f1: that of each class, as `f1_of(matrix).each` gives it.

    Rows are what is so, columns what was said, in the order of `names`.

    Raises:
        ValueError: for a matrix that is not (names, names), or another ending.
    """
    path = Path(path)
    if tuple(matrix.shape) != (len(names), len(names)) or not names:
        raise ValueError(f"metrics: matrix {tuple(matrix.shape)} must be square, a row for each of {len(names)} names.")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"metrics: path ({path}) must end in .png, .svg or .pdf.")
    with replacing(path) as made:
        _draw(matrix, names, made)
    told = {
        "names": list(names),
        "matrix": matrix.tolist(),  # rows: what is so
        "accuracy": float(matrix.diagonal().sum() / max(1, int(matrix.sum()))),
        "f1": dict(zip(names, f1, strict=True)),
    }
    write_text(path.with_suffix(".json"), json.dumps(told, ensure_ascii=False) + "\n")


def _draw(matrix: Tensor, names: Sequence[str], path: Path) -> None:
    from matplotlib.figure import Figure

    from . import fonts

    shares = matrix.double() / matrix.sum(1, keepdim=True).clamp(min=1)  # (classes, classes)
    numbered = len(names) <= NUMBERED
    side = 2.2 + 0.45 * len(names) if numbered else 8.0
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares.numpy(), vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, label="share of the row", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if numbered:
        shown, families = fonts.fit([fonts.label(name, 24) for name in names])
        how: dict[str, Any] = {"parse_math": False, "fontfamily": families}
        axes.set_xticks(range(len(names)), shown, rotation=45, ha="right", **how)
        axes.set_yticks(range(len(names)), shown, **how)
        for (row, column), count in np.ndenumerate(matrix.numpy()):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=120)
