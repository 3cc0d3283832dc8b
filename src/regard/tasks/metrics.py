"""How good a classifier is: accuracy, F1, and which classes it takes for which.

confusion[i, j] = |{n : wantedₙ = i and predictedₙ = j}|       rows: true; columns: predicted
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


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


def figures(logits: Tensor, wanted: Tensor) -> dict[str, float]:
    """Loss, accuracy and macro F1 of logits (N, C) for classes (N,).

    >>> figures(torch.eye(2), torch.tensor([0, 0]))["accuracy"]
    0.5
    """
    predicted = logits.argmax(1)
    matrix = confusion(predicted, wanted, logits.shape[1])
    loss = float(F.cross_entropy(logits, wanted))
    return {"loss": loss, "accuracy": accuracy(predicted, wanted), "f1": f1_of(matrix).macro}


def _check(predicted: Tensor, wanted: Tensor) -> None:
    if predicted.shape != wanted.shape or predicted.ndim != 1:
        raise ValueError(
            f"metrics: predicted {tuple(predicted.shape)} and wanted {tuple(wanted.shape)} must both be (N,), class "
            "numbers. `logits.argmax(-1)` makes them of logits."
        )
    if not len(wanted):
        raise ValueError("metrics: predicted (0,) must hold at least one prediction; got none.")
