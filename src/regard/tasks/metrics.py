"""How good a classifier is: accuracy, F1, and which classes it takes for which.

confusion[i, j] = |{n : wantedₙ = i and predictedₙ = j}|       rows: true; columns: predicted
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.files import replacing

NUMBERED = 20
"""Classes up to which the picture has the counts in its cells, and a name for each row."""


class F1(NamedTuple):
    """F1 of a classifier."""

    macro: float
    """The mean over the classes that occur, in what is so or in what was said."""
    each: Tensor
    """(classes,) float64; 0 for a class that does not occur."""


def accuracy(predicted: Tensor, wanted: Tensor) -> float:
    """The share of predictions that are right: (N,), (N,) → number.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    _check(predicted, wanted)
    return float((predicted == wanted).double().mean())


def confusion(predicted: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """How often class i was taken for class j: (N,), (N,) → (classes, classes) int64.

    Raises:
        ValueError: for other shapes, no prediction at all, or a class beyond 0 … classes − 1.

    >>> confusion(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]), 3)
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 1, 1]])
    """
    _check(predicted, wanted)
    for name, given in (("predicted", predicted), ("wanted", wanted)):
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"metrics: {name} ({low} … {high}) must lie in 0 … {classes - 1}, the classes; got one beyond."
            )
    cells = wanted.long() * classes + predicted.long()  # (N,)
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes).cpu()


def f1(predicted: Tensor, wanted: Tensor, classes: int) -> F1:
    """F1 = 2·precision·recall / (precision + recall) = 2·hits / (times it is so + times it was said), of each class.

    Raises ValueError as `confusion` does.

    >>> macro, each = f1(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]), 3)
    >>> round(macro, 4), [round(value, 4) for value in each.tolist()]
    (0.7778, [1.0, 0.6667, 0.6667])
    """
    return f1_of(confusion(predicted, wanted, classes))


def f1_of(matrix: Tensor) -> F1:
    """F1 from a confusion matrix, (classes, classes).

    >>> f1_of(torch.tensor([[3, 0], [0, 5]])).macro
    1.0
    """
    occurs = (matrix.sum(0) + matrix.sum(1)).double()  # (classes,)
    each = 2 * matrix.diagonal().double() / occurs.clamp(min=1)
    return F1(float(each[occurs > 0].mean()), each)


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
    with replacing(path.with_suffix(".json")) as made:
        made.write_text(json.dumps(told, ensure_ascii=False) + "\n", encoding="utf-8")


def _draw(matrix: Tensor, names: Sequence[str], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = matrix.double() / matrix.sum(1, keepdim=True).clamp(min=1)  # (classes, classes)
    numbered = len(names) <= NUMBERED
    side = 2.2 + 0.45 * len(names) if numbered else 8.0
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    axes = figure.add_subplot()
    image = axes.imshow(shares.numpy(), vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, label="share of the row", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if numbered:
        shown, families = _labels(names)
        how: dict[str, Any] = {"parse_math": False, "fontfamily": families}
        axes.set_xticks(range(len(names)), shown, rotation=45, ha="right", **how)
        axes.set_yticks(range(len(names)), shown, **how)
        for (row, column), count in zip(
            ((i, j) for i in range(len(names)) for j in range(len(names))), matrix.flatten().tolist(), strict=True
        ):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=120)


def _labels(names: Sequence[str], width: int = 24) -> tuple[list[str], list[str]]:
    """The names as they can be drawn, and the font families that have their glyphs."""
    fonts = import_module("regard.pictures.fonts")  # not at the top: `view` is built on this package
    shown, families = fonts.fit([fonts.label(name, width) for name in names])
    return list(shown), list(families)


def _check(predicted: Tensor, wanted: Tensor) -> None:
    if predicted.shape != wanted.shape or predicted.ndim != 1:
        raise ValueError(
            f"metrics: predicted {tuple(predicted.shape)} and wanted {tuple(wanted.shape)} must both be (N,), class "
            "numbers. `logits.argmax(-1)` makes them of logits."
        )
    if not len(wanted):
        raise ValueError("metrics: predicted (0,) must hold at least one prediction; got none.")
