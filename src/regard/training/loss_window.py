"""Running sums since the last record of metrics, read from the device only when needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor


class Diverged(ValueError):
    """Raised if the loss, a gradient or a weight is not finite."""


@dataclass
class Sums:
    """Running sums as plain numbers, which JSON restores exactly."""

    loss: float = 0.0
    norm: float = 0.0
    """Sum of gradient norms before clipping."""
    tokens: int = 0
    steps: int = 0
    since: float = 0.0
    """Training time in seconds at the start of the window."""
    extras: dict[str, float] = field(default_factory=dict)
    """Sums of additional metrics, weighted by the tokens of this process. `weight` is the total weight."""
    weight: int = 0


class Window:
    """Accumulates losses on the device. `read` transfers all of them at once and checks that they are finite."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.sums = Sums(**(values or {}))
        self._unread: list[tuple[Tensor, Tensor]] = []  # loss and norm of each step
        self._extras: list[tuple[Mapping[str, float | Tensor], int]] = []  # extras of each batch, and its tokens

    def add(self, loss: Tensor, norm: Tensor, tokens: int) -> None:
        """Add a step: its loss summed over tokens, (), and the norm of its gradient, ()."""
        self._unread.append((loss.detach(), norm.detach()))
        self.sums.tokens += tokens
        self.sums.steps += 1

    def add_extras(self, extras: Mapping[str, float | Tensor], tokens: int) -> None:
        """Add the additional metrics of a batch."""
        self._extras.append((extras, tokens))

    def read(self) -> int | None:
        """Transfer and check the added values.

        Return None if all are finite, otherwise how many steps ago the first non-finite value occurred (0 for the last
        step).
        """
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
        """Return the sums for a training state. Call `read` first."""
        assert not self._unread
        return asdict(self.sums)

    def means(self, seconds: float) -> dict[str, float]:
        """Return the means of the window after `seconds` of training. Call `read` first."""
        sums = self.sums
        return {
            "loss": sums.loss / max(1, sums.tokens),
            "gradient_norm": sums.norm / max(1, sums.steps),
            **{name: value / max(1, sums.weight) for name, value in sums.extras.items()},
            "tokens_per_second": sums.tokens / max(1e-9, seconds - sums.since),
        }

    def line(self, seconds: float) -> dict[str, float]:
        """Return the means for a record of metrics after `seconds` of training, and start a new window."""
        means = self.means(seconds)
        self.sums = Sums(since=seconds)
        return means
