"""Sums since the last line of metrics, read from the device no more often than needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor


class Diverged(ValueError):
    """The loss or the gradient is no longer a number."""


@dataclass
class Sums:
    """Plain numbers: JSON gives them back to the bit."""

    loss: float = 0.0
    norm: float = 0.0
    """Of the gradients, before clipping."""
    tokens: int = 0
    steps: int = 0
    since: float = 0.0
    """Seconds of training at which the window began."""
    extras: dict[str, float] = field(default_factory=dict)
    """Weighted by `weight`, the tokens of this process alone."""
    weight: int = 0


class Window:
    """Losses stay on the device until somebody asks; then all of them are read at once, and checked."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.sums = Sums(**(values or {}))
        self._unread: list[tuple[Tensor, Tensor]] = []  # loss and norm of each step
        self._extras: list[tuple[Mapping[str, float | Tensor], int]] = []  # of each batch, and its tokens

    def add(self, loss: Tensor, norm: Tensor, tokens: int) -> None:
        """What a step gave: the sum of its loss over its tokens, (), and the norm of its gradient, ()."""
        self._unread.append((loss.detach(), norm.detach()))
        self.sums.tokens += tokens
        self.sums.steps += 1

    def add_extras(self, extras: Mapping[str, float | Tensor], tokens: int) -> None:
        """What a batch gave besides."""
        self._extras.append((extras, tokens))

    def read(self) -> int | None:
        """Read what was added; the number of steps ago, from 0 on, at which something was no number, or None."""
        for extras, tokens in self._extras:
            for name, value in extras.items():
                self.sums.extras[name] = self.sums.extras.get(name, 0.0) + float(value) * tokens
            self.sums.weight += tokens
        self._extras.clear()
        if not self._unread:
            return None
        rows = torch.stack([torch.stack((loss.double(), norm.double())) for loss, norm in self._unread]).tolist()
        self._unread.clear()
        for ago, (loss, norm) in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                return ago
            self.sums.loss += loss
            self.sums.norm += norm
        return None

    def values(self) -> dict[str, Any]:
        """What a training state keeps; `read` comes first."""
        assert not self._unread
        return asdict(self.sums)

    def line(self, seconds: float) -> dict[str, float]:
        """The means for a line of metrics after `seconds` of training; a new window begins."""
        sums = self.sums
        means = {
            "loss": sums.loss / max(1, sums.tokens),
            "gradient_norm": sums.norm / max(1, sums.steps),
            **{name: value / max(1, sums.weight) for name, value in sums.extras.items()},
            "tokens_per_second": sums.tokens / max(1e-9, seconds - sums.since),
        }
        self.sums = Sums(since=seconds)
        return means
