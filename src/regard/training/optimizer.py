"""AdamW with gradients divided by tokens and clipped on the way, its state by names of parameters, and the schedule of
the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from .config import Training


class Optimizer:
    """AdamW over the parameters of a model that want gradients.

    Fused where the device has it: on two cores a step over 13 million parameters took 34 ms, 197 ms otherwise.
    `rates` are shares of the learning rate for parameters by name, such as smaller ones for lower layers.
    """

    def __init__(self, model: nn.Module, config: Training, rates: Mapping[str, float] | None = None) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError("training: model (0 parameters) must have some that want gradients; got none. Unfreeze.")
        groups: dict[tuple[float, float], dict[str, nn.Parameter]] = {}
        for name, p in sorted(named.items(), key=lambda item: item[1].ndim < 2):  # matrices first
            decay = config.weight_decay if p.ndim >= 2 else 0.0  # biases and gains of norms: no decay
            groups.setdefault((decay, (rates or {}).get(name, 1.0)), {})[name] = p
        self.names = [name for group in groups.values() for name in group]  # as state_dict numbers them
        self.parameters = [p for group in groups.values() for p in group.values()]
        self.fused = all(p.device.type in ("cpu", "cuda") for p in self.parameters)
        made = [
            {"params": list(group.values()), "weight_decay": decay, "share": share}
            for (decay, share), group in groups.items()
        ]
        self.adamw = torch.optim.AdamW(
            made, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=self.fused
        )
        self.clip = config.clip

    def step(self, learning_rate: float, tokens: float) -> Tensor:
        """Divide the gradients by `tokens`, clip, step, clear them; returns the norm before clipping, (), not waited
        for.

        Clipping g/n to norm c divides g by max(n, ‖g‖/c): AdamW does both as it goes.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = get_total_norm(gradients)
        divisor = torch.clamp(norm / self.clip if self.clip else torch.zeros_like(norm), min=max(tokens, 1))
        if self.fused:
            # what the fused AdamW divides gradients by as it reads them
            self.adamw.grad_scale = divisor.float()  # type: ignore[attr-defined]
        else:
            torch._foreach_div_(gradients, divisor)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate * group["share"]
        self.adamw.step()
        self.adamw.zero_grad()
        return norm / max(tokens, 1)

    def state(self) -> dict[str, Tensor]:
        """name/exp_avg and the like."""
        states = self.adamw.state_dict()["state"]
        return {f"{self.names[i]}/{key}": value for i, entry in states.items() for key, value in entry.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what `state` gave."""
        numbers = {name: i for i, name in enumerate(self.names)}
        states: dict[int, dict[str, Tensor]] = {}
        for path, value in tensors.items():
            name, _, key = path.rpartition("/")
            states.setdefault(numbers[name], {})[key] = value
        self.adamw.load_state_dict({"state": states, "param_groups": self.adamw.state_dict()["param_groups"]})


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
