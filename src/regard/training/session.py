"""The in-memory state of a run: model, optimizer, weight average and position in the data."""

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
from .random_state import restore, rng_states, seed_all
from .signals import Signals
from .weight_average import average_of

BUDGET = 0.1
"""Share of a limit in minutes that an evaluation may take."""
MEASURED_STEPS, MEASURED_SECONDS = 3, 10.0
"""Steps and seconds after which the speed is known well enough to compare the warm-up with the run."""


class Objective(nn.Module):
    """The task's loss as a module. Distributed training wraps this module, so the task's own model stays unwrapped."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__()
        self.model = task.model  # registers its parameters
        self.loss = task.loss

    def forward(self, batch: Any) -> tuple[Tensor, int, Mapping[str, float | Tensor]]:
        loss = self.loss(batch)
        return loss.total, loss.count, loss.extras


class Session:
    """The in-memory state of a run."""

    def __init__(self, task: Task[Any], config: Training, group: Group, signals: Signals) -> None:
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
        """Whether any process was asked to stop."""
        self.evaluation_seconds: float | None = None
        """Duration of the last evaluation of this process; None before the first one."""
        self._first_step: tuple[int, float] | None = None  # step and seconds after the first step of this process
        seed_all(config.seed, group.rank)
        self._began = time.monotonic()

    @property
    def epochs(self) -> float:
        """Number of passes over the data so far."""
        return round(self.progress.epoch + self.progress.batch / self.task.batches_in(self.progress.epoch), 4)

    def batches(self) -> Iterator[Sequence[Any]]:
        """Iterate endlessly over the batches of each step. A step never crosses the end of an epoch."""
        at = self.progress
        while True:
            epoch, count = at.epoch, self.task.batches_in(at.epoch)
            stream = self.task.batches(epoch, start=at.batch, rank=self.group.rank, world=self.group.world)
            while at.epoch == epoch:
                size = min(self.config.accumulate, count - at.batch)
                batches = list(islice(stream, size))
                if len(batches) < max(1, size):
                    raise ValueError(
                        f"training: batches_in({epoch}) ({count}) must be the number of batches that batches({epoch}) "
                        f"yields; got {at.batch + len(batches)}. An epoch needs at least one batch."
                    )
                yield batches  # `step` advances the position

    def step(self, batches: Sequence[Any]) -> None:
        """Accumulate gradients over the batches and the processes, then take an optimizer step."""
        at, total, tokens = self.progress, torch.zeros((), device=self.group.device), 0
        for number, batch in enumerate(batches):
            batch = batch.to(self.group.device) if hasattr(batch, "to") else batch
            more = number + 1 < len(batches)
            with self.group.no_sync(self.objective, more):  # gradients are synchronized once per step
                with torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.mixed):
                    loss, count, extras = self.objective(batch)
                self.group.scale_loss(loss).backward()
            total, tokens = total + loss.detach(), tokens + count
            self.window.add_extras(extras, count)
        total, tokens = self._all_reduce(total, tokens)
        at.step, at.batch, at.tokens = at.step + 1, at.batch + len(batches), at.tokens + tokens
        if at.batch == self.task.batches_in(at.epoch):
            at.epoch, at.batch = at.epoch + 1, 0
        self.rate = self.config.learning_rate * self.schedule(at.step, at.seconds)
        norm = self.optimizer.step(self.rate, tokens)
        if at.step % self.config.average_every == 0:
            self.average.update()
        self.window.add(total, norm, tokens)

    def _all_reduce(self, total: Tensor, tokens: int) -> tuple[Tensor, int]:
        """Return the loss and tokens summed over processes.

        Also update the training time, measured by the first process, and whether any process was asked to stop.
        """
        seconds, requested = time.monotonic() - self._began, self.signals.stop_requested
        if self.group.world == 1:  # no synchronization with the device
            self.progress.seconds, self.stopping = seconds, requested
            return total, tokens
        local = [float(tokens), float(requested), seconds if self.group.first else 0.0]
        sums = torch.tensor([float(total), *local], dtype=torch.float64, device=self.group.device)
        loss, count, stopping, seconds = self.group.sum(sums).tolist()
        self.progress.seconds, self.stopping = seconds, stopping > 0
        return torch.tensor(loss, dtype=torch.float64), round(count)

    @property
    def reserve(self) -> float:
        """Seconds of a limit in minutes that are kept for the last evaluation."""
        most = BUDGET * 60 * (self.config.minutes or 0.0)
        return most if self.evaluation_seconds is None else min(most, self.evaluation_seconds)

    def check_warmup(self) -> None:
        """Raise ValueError if the run would end before its warm-up.

        Steps and epochs are compared at the start of a run, and minutes once the speed is known.
        """
        at, config = self.progress, self.config
        if at.step == 0 and config.warmup > self.total:
            raise ValueError(
                f"training: warmup ({config.warmup:g}) must not be longer than the run, {self.total:,.0f} steps in "
                f"{config.epochs} epochs; the learning rate would never reach its peak. Try warmup 0.1, a tenth of the "
                "run."
            )
        if config.minutes is None or config.warmup <= max(1, at.step):
            return
        if self._first_step is None:
            self._first_step = (at.step, at.seconds)
        step, seconds = self._first_step
        limit = 60 * config.minutes
        if at.step < step + MEASURED_STEPS or at.seconds < min(limit / 20, MEASURED_SECONDS):
            return
        expected = at.step + (limit - at.seconds) * (at.step - step) / max(1e-9, at.seconds - seconds)
        if config.warmup > min(expected, self.total):
            raise ValueError(
                f"training: warmup ({config.warmup:g}) must not be longer than the run, about {expected:,.0f} steps in "
                f"{config.minutes:g} minutes; the learning rate would never reach its peak. Try warmup 0.1, a tenth of "
                "the run."
            )

    def check(self) -> None:
        """Raise `Diverged` if the loss or a gradient since the last check was not finite."""
        ago = self.window.read()
        if ago is not None:
            self._raise_diverged(self.progress.step - ago, "loss and gradient")

    def _raise_diverged(self, step: int, what: str) -> None:
        config = self.config
        rate = config.learning_rate * self.schedule(step, self.progress.seconds)
        warmup = f"{config.warmup:.0%} of the run" if 0 < config.warmup < 1 else f"{config.warmup:g} steps"
        clip = f"a clip below {config.clip:g}" if config.clip else "clipping (now off)"
        raise Diverged(
            f"training: {what} must stay finite; got NaN or ∞ at step {step}, at a learning rate of {rate:.3g}. Try a "
            f"lower one ({config.learning_rate / 3:.1g}), a longer warm-up (now {warmup}) or {clip}, in "
            "another folder. The last state is undamaged, and model.safetensors holds the best weights so far."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of a state in the first process. All processes must call it, to gather RNG states."""
        random = {name: self.group.gather(value) for name, value in rng_states().items()}
        if not self.group.first:
            return {}
        weights = weights_of(self.model)
        floats = [value for value in weights.values() if value.is_floating_point()]
        if not math.isfinite(get_total_norm(floats)):
            self._raise_diverged(self.progress.step, "weights")
        return parts(
            model=weights,
            optimizer=self.optimizer.state(),
            average=self.average.state(),
            random={f"{rank}/{name}": row for name, rows in random.items() for rank, row in enumerate(rows)},
        )

    def restore(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state saved in `tensors` and `progress`."""
        load_weights(self.model, part(tensors, "model"), "training")
        self.optimizer.load(part(tensors, "optimizer"))
        self.average.load(part(tensors, "average"))
        random = part(tensors, f"random/{self.group.rank}")
        if random:  # missing for a rank that the saved run did not have: it keeps its seed
            restore(random)
        progress.world = self.group.world
        self.progress, self.window = progress, Window(progress.window)
        self._began = time.monotonic() - progress.seconds


def total_steps(task: Task[Any], config: Training) -> float:
    """Return the number of steps after which `steps` or `epochs` end the run; ∞ if only time does."""
    limits = [math.inf if config.steps is None else float(config.steps)]
    if config.epochs is not None:
        limits.append(sum(math.ceil(task.batches_in(epoch) / config.accumulate) for epoch in range(config.epochs)))
    return min(limits)
