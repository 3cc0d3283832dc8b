"""Base class of batches of pairs, texts, passages and images: order of an epoch, and split among processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

BatchType = TypeVar("BatchType")


class TensorBatch:
    """Base class of batches: dataclasses whose tensors move to a device together.

    >>> from regard.data import TextBatch
    >>> batch = TextBatch(torch.ones(1, 3), torch.tensor([3]), torch.tensor([0]), torch.tensor([7]))
    >>> batch.to("meta").ids.device
    device(type='meta')
    """

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device."""
        moved = {name: x.to(device, non_blocking=True) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)  # type: ignore[type-var]  # every subclass is a dataclass


def generator(*seed: int) -> np.random.Generator:
    """Return a generator that is reproducible on every platform: PCG64 and SeedSequence are both stable."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


class EpochBatches(ABC, Generic[BatchType]):
    """The batches of a data set. Their order is a function of seed and epoch.

    >>> class Letters(EpochBatches[str]):
    ...     def plan(self, epoch):
    ...         return [np.array([0, 1]), np.array([2])]
    ...     def batch(self, indices):
    ...         return "".join("abc"[index] for index in indices)
    >>> letters = Letters()
    >>> list(letters.epoch(0)), letters.count(0), letters.batch(np.array([2, 0]))
    (['ab', 'c'], 2, 'ca')
    >>> list(letters.epoch(0, rank=1, world=2))                       # the second of two processes
    ['b', '']
    >>> letters.take(np.array([0, 1]), slice(1, None), epoch=0, number=0)
    'b'
    """

    @abstractmethod
    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """Return the indices of the entries of each batch."""

    def take(self, indices: np.ndarray, share: slice, *, epoch: int, number: int) -> BatchType:
        """Return the entries `indices[share]` of batch `number` of an epoch."""
        return self.batch(indices[share])

    def batch(self, indices: np.ndarray) -> BatchType:
        """Return these entries as a batch. It does not depend on the epoch."""
        raise NotImplementedError

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self.plan(epoch))

    def epoch(self, epoch: int, *, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[BatchType]:
        """Iterate over the batches of an epoch from batch `start` on. All ranks get the same number.

        Rank r takes entries r::world of each batch. If a batch has fewer entries than there are ranks, the last ranks
        get a batch without entries, so that all take the same number of steps.
        """
        if not 0 <= rank < world:
            raise ValueError(f"batches: rank ({rank}) must lie in 0 … world − 1; got a world of {world}.")
        plan = self.plan(epoch)
        if not 0 <= start <= len(plan):
            raise ValueError(f"batches: start ({start}) must lie in 0 … {len(plan)}, the batches of epoch {epoch}.")
        share = slice(rank, None, world)
        return (self.take(plan[number], share, epoch=epoch, number=number) for number in range(start, len(plan)))
