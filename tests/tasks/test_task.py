"""The base class of tasks: methods that every task inherits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.data.epoch_batches import EpochBatches
from regard.tasks.task import Loss, Task


class Numbers(EpochBatches[torch.Tensor]):
    """Seven numbers in batches of three; an epoch begins one number later than the one before."""

    def plan(self, epoch: int) -> list[np.ndarray]:
        order = np.roll(np.arange(7), -epoch)
        return [order[:3], order[3:6], order[6:]]

    def take(self, indices: np.ndarray, share: slice, *, epoch: int, number: int) -> torch.Tensor:
        return torch.from_numpy(indices[share]).float()


class Scale(Task):
    goal = ("loss", "min")

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 2)
        self.train = Numbers()

    def batch_loss(self, batch: torch.Tensor) -> Loss:
        return Loss(self.model(batch[:, None]).sum(), len(batch))

    def evaluate(self) -> dict[str, float]:
        return {"loss": 0.0}


def test_batches_are_shares_of_an_epoch() -> None:
    task = Scale()
    assert task.batches_in(5) == 3 and task.device == torch.device("cpu")
    shares = [task.batches(1, start=1, rank=rank, world=2) for rank in (0, 1)]
    assert [[batch.tolist() for batch in share] for share in shares] == [[[4.0, 6.0], [0.0]], [[5.0], []]]


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match=rf"rank \({rank}\) must lie in 0 … world − 1; got a world of {world}\."):
        Scale().batches(0, start=0, rank=rank, world=world)


def test_a_start_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start \(4\) must lie in 0 … 3, the batches of epoch 2\."):
        Scale().batches(2, start=4, rank=0, world=1)


def test_an_empty_share_has_no_loss_and_zero_gradients() -> None:
    task = Scale()
    loss = task.loss(torch.empty(0))
    loss.total.backward()
    assert loss.total == 0 and loss.count == 0 and loss.extras == {}
    assert all(p.grad is not None and not p.grad.any() for p in task.model.parameters())
    assert task.loss(torch.ones(3)).count == 3


def test_most_methods_have_defaults() -> None:
    task = Scale()
    assert task.samples() == [] and task.rates is None
