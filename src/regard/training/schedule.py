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
          │  ╱      ╲____                linear         f + (1 − f) · (1 − p)
        0 ┼─┴────────────╴ step s        inverse_sqrt   √(w / s)

    p: from 0 at the end of the warm-up to 1 at the end of the run.

    The end of the run is a number of steps, a time, or whichever comes first. A schedule that follows the clock is no
    function of the step: two such runs are never equal to the bit.

    >>> schedule = Schedule("cosine", warmup=100, steps=1100)
    >>> [round(schedule(step), 3) for step in (1, 50, 100, 600, 1100)]
    [0.01, 0.5, 1.0, 0.5, 0.0]
    """

    kind: str
    warmup: float
    """Steps; below 1, the share of the run."""
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
        warmup = self._warmup
        rise = min(1.0, step / max(1.0, warmup))
        if 0 < self.warmup < 1:  # the share of steps or of time, whichever is over first
            rise = min(1.0, max(rise, seconds / (self.warmup * self.seconds)))
        if self.kind == "constant" or (step <= warmup and self.kind == "inverse_sqrt"):
            return rise
        if self.kind == "inverse_sqrt":
            return math.sqrt(max(1.0, warmup) / step)
        p = self.progress(step, seconds)
        fall = 1 - p if self.kind == "linear" else (1 + math.cos(math.pi * p)) / 2
        return rise * (self.final + (1 - self.final) * fall)

    def progress(self, step: int, seconds: float) -> float:
        """How much of the fall is over, 0 to 1."""
        if self.steps == math.inf:
            return min(1.0, seconds / self.seconds)
        after = max(0, step - self._warmup) / max(1, self.steps - self._warmup)
        return min(1.0, max(after, seconds / self.seconds))

    @property
    def _warmup(self) -> float:
        """In steps; ∞ for a share of a run that only time ends."""
        return self.warmup * self.steps if 0 < self.warmup < 1 else self.warmup
