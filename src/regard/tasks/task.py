"""The interface of a task: data, a model, its loss and the metric that selects the best weights."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ..data.epoch_batches import EpochBatches

Item = TypeVar("Item")
BatchType = TypeVar("BatchType", bound=Sized)
"""The batches of a task. A batch has a length, the number of its entries."""


@dataclass(frozen=True)
class Loss:
    """The loss of a batch.

    >>> Loss(torch.tensor(12.0), count=4).total / 4                     # the mean per token
    tensor(3.)
    """

    total: Tensor
    """Sum over the tokens (or other units counted by `count`): ()."""
    count: int
    """Number of tokens in this share of the batch."""
    extras: Mapping[str, float | Tensor] = field(default_factory=dict)
    """Means over the batch to log, such as the share of padding."""


class Task(ABC, Generic[BatchType]):
    """Base class of every task.

    A subclass sets `model`, `goal` and `train`, and defines `batch_loss` and `evaluate`. Without a `train` it overrides
    `batches` and `batches_in` instead. A batch has a length, the number of its entries.

    Fit a line to three points:

    >>> import numpy as np
    >>> class Points(EpochBatches[Tensor]):
    ...     def plan(self, epoch):
    ...         return [np.array([0, 1]), np.array([2])]
    ...     def batch(self, indices):
    ...         return torch.tensor([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0]])[indices]     # (B, 2): x and y
    >>> class Line(Task[Tensor]):
    ...     goal = ("loss", "min")
    ...     def __init__(self):
    ...         self.model, self.train = nn.Linear(1, 1), Points()
    ...     def batch_loss(self, batch):
    ...         return Loss((self.model(batch[:, :1]) - batch[:, 1:]).square().sum(), len(batch))
    ...     def evaluate(self):
    ...         return {"loss": float(self.loss(self.train.batch([0, 1, 2])).total) / 3}
    >>> task = Line()
    >>> [len(batch) for batch in task.batches(0, start=0, rank=0, world=1)], task.batches_in(0), task.device.type
    ([2, 1], 2, 'cpu')
    >>> task.loss(torch.empty(0, 2)).count, task.batch_loss(torch.ones(1, 2)).count      # an empty share has loss 0
    (0, 1)
    >>> list(task.evaluate()), task.samples(), task.save(Path("run"))
    (['loss'], [], None)

    An evaluation of several parts reports its progress, and stops when its time is over:

    >>> task.report = lambda share: print(f"{share:.0%}")
    >>> list(task.evaluated("points", [1, 2], 2))
    50%
    100%
    [1, 2]
    """

    model: nn.Module
    goal: tuple[str, str]
    """The metric of `evaluate` that selects the best weights, and its direction: ("bleu", "max") or ("loss", "min")."""
    train: EpochBatches[BatchType]
    """Batches to train on."""
    rates: Mapping[str, float] | None = None
    """Factors of the learning rate by parameter name; 1 for parameters that are not listed."""
    unit: str = "tokens"
    """Units that `Loss.count` counts, shown with the speed: tokens, texts or images."""
    deadline: float | None = None
    """Time, by `time.monotonic`, when an evaluation should end. The loop sets it for a run limited by minutes."""
    report: Callable[[float], None] | None = None
    """Called during an evaluation with its finished share. The loop sets it."""

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def batches(self, epoch: int, *, start: int, rank: int, world: int) -> Iterator[BatchType]:
        """Iterate over the batches of an epoch from index `start`. A process gets entries rank::world of each batch.

        The batches depend only on the arguments and the task's seed, which makes resuming exact.
        """
        return self.train.epoch(epoch, start=start, rank=rank, world=world)

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches in an epoch."""
        return self.train.count(epoch)

    def loss(self, batch: BatchType) -> Loss:
        """Return the loss of this process's share of a batch; an empty share has loss 0 and gradients of zero."""
        if not len(batch):
            return Loss(torch.stack([p.sum() for p in self.model.parameters()]).sum() * 0.0, 0)
        return self.batch_loss(batch)

    @abstractmethod
    def batch_loss(self, batch: BatchType) -> Loss:
        """Return the loss of a batch with at least one entry. `model` is never wrapped: any method may be called."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Return metrics on held-out data. The loop sets evaluation mode and turns gradients off."""

    def evaluated(self, name: str, items: Iterable[Item], count: int) -> Iterator[Item]:
        """Yield the parts of an evaluation, and report the finished share after each.

        The first evaluation stops at the `deadline`, after at least one part. Later evaluations use as many parts, so
        that their metrics can be compared.

        Args:
            name: name of the parts, if an evaluation has several loops.
            items: the parts, such as batches.
            count: their number, or an estimate, which only the reported share depends on.
        """
        limits: dict[str, int | None] = self.__dict__.setdefault("_evaluated_limits", {})
        limit = limits.get(name)
        for number, item in enumerate(items):
            late = self.deadline is not None and name not in limits and time.monotonic() > self.deadline
            if number == limit or (number and late):
                limits[name] = number
                break
            yield item
            if self.report is not None:
                self.report(min(1.0, (number + 1) / (limit or count)))
        limits.setdefault(name, None)

    def samples(self) -> list[tuple[str, str, str]]:
        """Return a few inputs, the model's outputs, and references."""
        return []

    def save(self, folder: Path) -> None:
        """Write what the model needs besides its weights, such as the vocabulary."""
