"""Averages of the weights during training, which are evaluated and saved."""

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
    """Return the average that the settings select. It refers to the model's tensors without copying them."""
    if config.average == "exponential":
        return Exponential(model, config.average_decay)
    return Last(model, config.average_states if config.average == "last" else 0)


class Exponential:
    """Exponential moving average: mean ← d·mean + (1 − d)·weights, with d = min(decay, (1 + n) / (10 + n)) at update n.

    The smaller decay at the start keeps the first steps from dominating a short run. Integer tensors, such as counters
    in a normalization, are those of the last step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.current = weights_of(model)
        self.floats = [name for name, value in self.current.items() if value.is_floating_point()]
        self.decay = decay
        self.updates = 0
        self.mean: Tensors = {}

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
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
        """Return the mean by name, or the model's own weights before the first update."""
        return self.mean or self.current

    def state(self) -> Tensors:
        """Return the tensors for a training state."""
        return {"updates": torch.tensor(self.updates)} | {f"mean/{name}": value for name, value in self.mean.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.updates = int(tensors["updates"])
        self.mean = {
            name: tensors[f"mean/{name}"].to(value.device)
            for name, value in self.current.items()
            if f"mean/{name}" in tensors
        }


class Last:
    """Mean of the last k states, kept in a ring buffer. With k = 0, no average."""

    def __init__(self, model: nn.Module, states: int) -> None:
        self.current = weights_of(model)
        self.states = states
        self.updates = 0
        self.ring: list[Tensors] = []

    @torch.no_grad()
    def update(self) -> None:
        if not self.states:
            return
        slot = self.updates % self.states
        self.updates += 1
        if slot == len(self.ring):
            self.ring.append({name: value.clone() for name, value in self.current.items()})
        else:
            _copy(self.current, self.ring[slot])

    def weights(self) -> Tensors:
        if not self.ring:
            return self.current
        newest = self.ring[(self.updates - 1) % self.states]
        return {
            name: torch.stack([state[name] for state in self.ring]).mean(0) if value.is_floating_point() else value
            for name, value in newest.items()
        }

    def state(self) -> Tensors:
        states = {f"{slot}/{name}": value for slot, state in enumerate(self.ring) for name, value in state.items()}
        return states | {"updates": torch.tensor(self.updates)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.updates = int(tensors["updates"])
        self.ring = [
            {name: tensors[f"{slot}/{name}"].to(value.device) for name, value in self.current.items()}
            for slot in range(min(self.updates, self.states))
        ]


Average = Exponential | Last


@contextmanager
def averaged_weights(average: Average, model: nn.Module) -> Iterator[None]:
    """Give the model the averaged weights, and restore its own weights exactly on exit."""
    current, mean = weights_of(model), average.weights()
    if all(mean[name].data_ptr() == value.data_ptr() for name, value in current.items()):
        yield
        return
    saved = {name: value.clone() for name, value in current.items()}
    try:
        _copy(mean, current)
        yield
    finally:
        _copy(saved, current)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, value in target.items():
        value.copy_(source[name])
