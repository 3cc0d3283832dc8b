"""Means of the weights over the course of training: what is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..models.weights import weights_of
from .config import Training

Tensors = dict[str, Tensor]


def average_of(config: Training, model: nn.Module) -> Average:
    """The average that the settings ask for. It reads the tensors of the model where they are."""
    if config.average == "exponential":
        return Exponential(model, config.average_decay)
    return Last(model, config.average_states if config.average == "last" else 0)


class Exponential:
    """mean ← d·mean + (1 − d)·weights, with d = min(decay, (1 + n) / (10 + n)) at update n, so that a short run does
    not drag its first steps along.

    Whole numbers, such as counters in a normalisation, are those of the last step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.current = weights_of(model)
        self.floats = [name for name, value in self.current.items() if value.is_floating_point()]
        self.decay = decay
        self.updates = 0
        self.mean: Tensors = {}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        if not self.mean:
            self.mean = {name: value.clone() for name, value in self.current.items()}
            return
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        mean, current = [self.mean[name] for name in self.floats], [self.current[name] for name in self.floats]
        get_ema_multi_avg_fn(decay)(mean, current, None)  # one call for all tensors
        for name in self.current.keys() - set(self.floats):
            self.mean[name].copy_(self.current[name])

    def weights(self) -> Tensors:
        """The mean so far, by name; the model's own weights where nothing was averaged."""
        return self.mean or self.current

    def state(self) -> Tensors:
        """What a training state keeps of it."""
        return {"updates": torch.tensor(self.updates)} | {f"mean/{name}": value for name, value in self.mean.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what `state` gave."""
        self.updates = int(tensors["updates"])
        self.mean = {
            name: tensors[f"mean/{name}"].to(value.device)
            for name, value in self.current.items()
            if f"mean/{name}" in tensors
        }


class Last:
    """The mean of the last k states: a ring in which the newest takes the place of the oldest. With k = 0, no mean."""

    def __init__(self, model: nn.Module, states: int) -> None:
        self.current = weights_of(model)
        self.states = states
        self.updates = 0
        self.ring: list[Tensors] = []

    @torch.no_grad()
    def update(self) -> None:
        if not self.states:
            return
        place = self.updates % self.states
        self.updates += 1
        if place == len(self.ring):
            self.ring.append({name: value.clone() for name, value in self.current.items()})
        else:
            _copy(self.current, self.ring[place])

    def weights(self) -> Tensors:
        if not self.ring:
            return self.current
        newest = self.ring[(self.updates - 1) % self.states]
        return {
            name: torch.stack([state[name] for state in self.ring]).mean(0) if value.is_floating_point() else value
            for name, value in newest.items()
        }

    def state(self) -> Tensors:
        kept = {f"{place}/{name}": value for place, state in enumerate(self.ring) for name, value in state.items()}
        return kept | {"updates": torch.tensor(self.updates)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.updates = int(tensors["updates"])
        self.ring = [
            {name: tensors[f"{place}/{name}"].to(value.device) for name, value in self.current.items()}
            for place in range(min(self.updates, self.states))
        ]


Average = Exponential | Last


@contextmanager
def applied(average: Average, model: nn.Module) -> Iterator[None]:
    """The model with averaged weights, and then, bit by bit, as it was."""
    current, mean = weights_of(model), average.weights()
    if all(mean[name].data_ptr() == value.data_ptr() for name, value in current.items()):
        yield
        return
    kept = {name: value.clone() for name, value in current.items()}
    try:
        _copy(mean, current)
        yield
    finally:
        _copy(kept, current)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, value in target.items():
        value.copy_(source[name])
