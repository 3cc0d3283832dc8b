"""The learning rate at each step, as a share of the highest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .config import Training


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then a fall.

        1 ┤    ╭──╮                      warm-up        s / w
          │   ╱    ╲                     cosine         f + (1 − f) · (1 + cos πp) / 2
          │  ╱      ╲____                inverse_sqrt   √(w / s)
        0 ┼─┴────────────╴ step s        p: from 0 at the end of the warm-up to 1 at the end of the run

    The end of the run is a number of steps, a time, or whichever comes first. A schedule that follows the clock is no
    function of the step: two such runs are never equal to the bit.

    >>> schedule = Schedule("cosine", warmup=100, steps=1100)
    >>> [round(schedule(step), 3) for step in (1, 50, 100, 600, 1100)]
    [0.01, 0.5, 1.0, 0.5, 0.0]
    """

    kind: str
    warmup: int
    steps: float = math.inf
    """Steps of the whole run; ∞ where only time ends it."""
    seconds: float = math.inf
    final: float = 0.0

    @staticmethod
    def of(config: Training, steps: float) -> Schedule:
        """The schedule of a run of `steps`, as far as steps and epochs limit it."""
        seconds = math.inf if config.minutes is None else 60 * config.minutes
        return Schedule(config.schedule, config.warmup, steps, seconds, config.final_rate)

    def __call__(self, step: int, seconds: float = 0.0) -> float:
        """The share for step number `step`, from 1 on, after `seconds` of training."""
        rise = min(1.0, step / max(1, self.warmup))
        if self.kind == "constant" or (step <= self.warmup and self.kind == "inverse_sqrt"):
            return rise
        if self.kind == "inverse_sqrt":
            return math.sqrt(max(1, self.warmup) / step)
        return rise * (self.final + (1 - self.final) * (1 + math.cos(math.pi * self.progress(step, seconds))) / 2)

    def progress(self, step: int, seconds: float) -> float:
        """How much of the fall is over, 0 to 1."""
        after = max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        return min(1.0, max(after, seconds / self.seconds))
