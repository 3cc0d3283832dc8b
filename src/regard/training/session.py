"""A run in memory: model, optimiser, average, place in the data; one step of it, and its state."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..models.weights import load_weights, weights_of
from ..tasks.task import Task
from .checkpoint import Progress, part, parts
from .config import Training, mixed
from .distributed import Group
from .loss_window import Diverged, Window
from .optimizer import Optimizer, Schedule
from .random_state import randomness, restore, seed_all
from .signals import Signals
from .weight_average import average_of


class Objective(nn.Module):
    """The task's loss as a module, so that it is this that several processes wrap and the task meets a bare model."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model  # its parameters are those of this module
        self.loss = task.loss

    def forward(self, batch: Any) -> tuple[Tensor, int, Mapping[str, float | Tensor]]:
        found = self.loss(batch)
        return found.total, found.count, found.extras


class Session:
    """A run in memory."""

    def __init__(self, task: Task, config: Training, group: Group, signals: Signals) -> None:
        self.task, self.config, self.group, self.signals = task, config, group, signals
        self.model = task.model.to(group.device).train()
        if config.compile:
            self.model.compile()
        self.objective = group.wrap(Objective(task))
        self.optimizer = Optimizer(self.model, config, task.rates)
        self.average = average_of(config, self.model)
        self.mixed = mixed(config.precision, group.device)
        self.total = total_steps(task, config)
        self.schedule = Schedule.of(config, self.total)
        self.progress = Progress(world=group.world)
        self.window = Window()
        self.rate = 0.0
        self.stopping = False
        """Whether an end was asked for, in any process."""
        seed_all(config.seed, group.rank)
        self._began = time.monotonic()

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return round(self.progress.epoch + self.progress.batch / self.task.batches_in(self.progress.epoch), 4)

    def batches(self) -> Iterator[Sequence[Any]]:
        """The batches of each step, for ever. A step never reaches over the end of an epoch."""
        at = self.progress
        while True:
            epoch, many = at.epoch, self.task.batches_in(at.epoch)
            stream = self.task.batches(epoch, start=at.batch, rank=self.group.rank, world=self.group.world)
            while at.epoch == epoch:
                wanted = min(self.config.accumulate, many - at.batch)
                taken = list(islice(stream, wanted))
                if len(taken) < max(1, wanted):
                    raise ValueError(
                        f"training: batches_in({epoch}) ({many}) must be how many batches({epoch}) yields; got "
                        f"{at.batch + len(taken)}. Count what is yielded, and yield at least one."
                    )
                yield taken  # and `step` moves on

    def step(self, batches: Sequence[Any]) -> None:
        """Gradients of the batches, summed over them and over the processes; then a step of the optimiser."""
        at, total, tokens = self.progress, torch.zeros((), device=self.group.device), 0
        for number, batch in enumerate(batches):
            batch = batch.to(self.group.device) if hasattr(batch, "to") else batch
            more = number + 1 < len(batches)
            with self.group.quiet(self.objective, more):  # gradients travel once a step
                with torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.mixed):
                    loss, count, extras = self.objective(batch)
                self.group.summed(loss).backward()
            total, tokens = total + loss.detach(), tokens + count
            self.window.add_extras(extras, count)
        total, tokens = self._shared(total, tokens)
        at.step, at.batch, at.tokens = at.step + 1, at.batch + len(batches), at.tokens + tokens
        if at.batch == self.task.batches_in(at.epoch):
            at.epoch, at.batch = at.epoch + 1, 0
        self.rate = self.config.learning_rate * self.schedule(at.step, at.seconds)
        norm = self.optimizer.step(self.rate, tokens)
        if at.step % self.config.average_every == 0:
            self.average.update()
        self.window.add(total, norm, tokens)

    def _shared(self, total: Tensor, tokens: int) -> tuple[Tensor, int]:
        """Loss and tokens of all processes; the time of the first; whether anybody was asked to stop."""
        seconds, asked = time.monotonic() - self._began, self.signals.asked
        if self.group.world == 1:  # nothing is waited for
            self.progress.seconds, self.stopping = seconds, asked
            return total, tokens
        mine = [float(tokens), float(asked), seconds if self.group.first else 0.0]
        told = torch.tensor([float(total), *mine], dtype=torch.float64, device=self.group.device)
        loss, count, stopping, seconds = self.group.sum(told).tolist()
        self.progress.seconds, self.stopping = seconds, stopping > 0
        return torch.tensor(loss, dtype=torch.float64), round(count)

    def check(self) -> None:
        """Raise `Diverged` if the loss or a gradient since the last check was no number."""
        ago = self.window.read()
        if ago is not None:
            self._refuse(self.progress.step - ago, "loss and gradient")

    def _refuse(self, step: int, what: str) -> None:
        config = self.config
        rate = config.learning_rate * self.schedule(step, self.progress.seconds)
        warmup = f"{config.warmup:.0%} of the run" if 0 < config.warmup < 1 else f"{config.warmup:g} steps"
        clip = f"a clip below {config.clip:g}" if config.clip else "clipping (now off)"
        raise Diverged(
            f"training: {what} must stay finite; got NaN or ∞ at step {step}, at a learning rate of {rate:.3g}. Try a "
            f"lower one ({config.learning_rate / 3:.1g}), a longer warm-up (now {warmup}) or {clip}, in "
            "another folder. The last state is whole, and model.safetensors holds the best weights so far."
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a state; the processes meet here, to bring the states of their generators."""
        random = {name: self.group.gather(value) for name, value in randomness().items()}
        if not self.group.first:
            return {}
        weights = weights_of(self.model)
        floats = [value for value in weights.values() if value.is_floating_point()]
        if not math.isfinite(get_total_norm(floats)):
            self._refuse(self.progress.step, "weights")
        return parts(
            model=weights,
            optimizer=self.optimizer.state(),
            average=self.average.state(),
            random={f"{rank}/{name}": row for name, rows in random.items() for rank, row in enumerate(rows)},
        )

    def restore(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Become what `tensors` and `progress` were taken of."""
        load_weights(self.model, part(tensors, "model"), "training")
        self.optimizer.load(part(tensors, "optimizer"))
        self.average.load(part(tensors, "average"))
        random = part(tensors, f"random/{self.group.rank}")
        if random:  # more processes than before: the new ones keep their seeds
            restore(random)
        progress.world = self.group.world
        self.progress, self.window = progress, Window(progress.window)
        self._began = time.monotonic() - progress.seconds


def total_steps(task: Task, config: Training) -> float:
    """Steps after which `steps` or `epochs` end the run; ∞ where only time does."""
    limits = [math.inf if config.steps is None else float(config.steps)]
    if config.epochs is not None:
        limits.append(sum(math.ceil(task.batches_in(epoch) / config.accumulate) for epoch in range(config.epochs)))
    return min(limits)
