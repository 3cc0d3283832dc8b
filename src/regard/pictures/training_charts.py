"""Charts of training runs: curves and confusion matrices."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..core.files import replacing, write_text

CURVES = ("loss", "learning_rate")


def draw(records: Sequence[dict[str, Any]], goal: str) -> bytes:
    """Draw loss, goal and learning rate over the steps, for training and evaluation. Return a PNG file."""
    from matplotlib.figure import Figure  # without pyplot and its global state

    train = [record for record in records if record["event"] == "train"]
    valid = [record for record in records if record["event"] == "evaluate"]
    names = list(dict.fromkeys((*CURVES[:1], goal, *CURVES[1:])))
    figure = Figure(figsize=(4.2 * len(names), 3.2), layout="constrained")
    for index, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), index + 1)
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


MAX_NUMBERED_CLASSES = 20
"""Maximum number of classes for which counts and names are written."""


def save_confusion(matrix: Tensor, names: Sequence[str], f1: Sequence[float], path: str | Path) -> None:
    """Draw a confusion matrix (.png, .svg or .pdf), normalized by row, and write its values to a .json file beside it.

    Args:
        matrix: counts; rows are true classes, columns are predicted classes.
        names: names of the classes.
        f1: F1 score of each class, as in `f1_of(matrix).each`.
        path: path of the picture.

    Raises:
        ValueError: if the matrix is not (names, names) or the suffix is unknown.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "confusion.png"
    >>> save_confusion(torch.tensor([[8, 2], [1, 9]]), ["cat", "dog"], [0.84, 0.86], path)
    >>> json.loads(path.with_suffix(".json").read_text())["matrix"]
    [[8, 2], [1, 9]]
    """
    path = Path(path)
    if tuple(matrix.shape) != (len(names), len(names)) or not names:
        raise ValueError(f"metrics: matrix {tuple(matrix.shape)} must be square, a row for each of {len(names)} names.")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"metrics: path ({path}) must end in .png, .svg or .pdf.")
    with replacing(path) as temporary:
        _draw(matrix, names, temporary)
    values = {
        "names": list(names),
        "matrix": matrix.tolist(),  # rows: true classes
        "accuracy": float(matrix.diagonal().sum() / max(1, int(matrix.sum()))),
        "f1": dict(zip(names, f1, strict=True)),
    }
    write_text(path.with_suffix(".json"), json.dumps(values, ensure_ascii=False) + "\n")


def _draw(matrix: Tensor, names: Sequence[str], path: Path) -> None:
    from matplotlib.figure import Figure

    from . import fonts

    fractions = matrix.double() / matrix.sum(1, keepdim=True).clamp(min=1)  # (classes, classes)
    numbered = len(names) <= MAX_NUMBERED_CLASSES
    side = 2.2 + 0.45 * len(names) if numbered else 8.0
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(fractions.numpy(), vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, label="fraction of the row", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if numbered:
        labels, families = fonts.fit([fonts.label(name, 24) for name in names])
        options: dict[str, Any] = {"parse_math": False, "fontfamily": families}
        axes.set_xticks(range(len(names)), labels, rotation=45, ha="right", **options)
        axes.set_yticks(range(len(names)), labels, **options)
        for (row, column), count in np.ndenumerate(matrix.numpy()):
            colour = "white" if fractions[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=120)
