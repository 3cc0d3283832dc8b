"""Metrics of classifiers: accuracy, F1 and the confusion matrix.

confusion[i, j] = |{n : wantedₙ = i and predictedₙ = j}|       rows: true; columns: predicted
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["F1", "accuracy", "confusion", "f1", "f1_of", "figures"]


class F1(NamedTuple):
    """F1 scores of a classifier."""

    macro: float
    """Mean over the classes that occur among the labels or the predictions."""
    each: Tensor
    """F1 of each class, (classes,) float64; 0 for a class that does not occur."""


def accuracy(predicted: Tensor, wanted: Tensor) -> float:
    """Return the fraction of correct predictions: (N,), (N,) → number.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    _check(predicted, wanted)
    return float((predicted == wanted).double().mean())


def confusion(predicted: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """Count how often class i was predicted as class j: (N,), (N,) → (classes, classes) int64.

    Raises:
        ValueError: if the shapes differ, there are no predictions, or a class is outside 0 … classes − 1.

    >>> confusion(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]), 3)
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 1, 1]])
    """
    _check(predicted, wanted)
    for name, labels in (("predicted", predicted), ("wanted", wanted)):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            raise ValueError(f"metrics: {name} ({low} … {high}) must be in the range of classes, 0 … {classes - 1}.")
    cells = wanted.long() * classes + predicted.long()  # (N,)
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes).cpu()


def f1(predicted: Tensor, wanted: Tensor, classes: int) -> F1:
    """Return F1 = 2·precision·recall / (precision + recall) = 2·correct / (true + predicted) of each class.

    Raises:
        ValueError: under the same conditions as `confusion`.

    >>> macro, each = f1(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]), 3)
    >>> round(macro, 4), [round(value, 4) for value in each.tolist()]
    (0.7778, [1.0, 0.6667, 0.6667])
    """
    return f1_of(confusion(predicted, wanted, classes))


def f1_of(matrix: Tensor) -> F1:
    """Return the F1 scores of a confusion matrix (classes, classes).

    >>> f1_of(torch.tensor([[3, 0], [0, 5]])).macro
    1.0
    """
    occurs = (matrix.sum(0) + matrix.sum(1)).double()  # (classes,)
    each = 2 * matrix.diagonal().double() / occurs.clamp(min=1)
    return F1(float(each[occurs > 0].mean()), each)


def figures(logits: Tensor, wanted: Tensor) -> dict[str, float]:
    """Return the loss, accuracy and macro F1 of logits (N, C) for labels (N,).

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
            f"metrics: predicted {tuple(predicted.shape)} and wanted {tuple(wanted.shape)} must both be class "
            "indices (N,). Use `logits.argmax(-1)` to convert logits."
        )
    if not len(wanted):
        raise ValueError("metrics: predicted (0,) must hold at least one prediction; got none.")
