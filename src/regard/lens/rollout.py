"""Attention through all layers: rollout and flow, as products of maps with vectors, in memory of O(N) per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..core.tensors import shape_of


@dataclass(frozen=True)
class Rollout:
    """What the tokens of the last layer drew on, through all layers.

        Aₗ      = residual · I + (1 − residual) · meanₕ Wₗₕ                (N, N), never stored
        rollout = A_L · … · A₂ · A₁                                        (N, N), never stored

    A row of it is a vector pushed down through the layers, a column one pulled up: L products of a map and a vector.

    Paper: Abnar & Zuidema 2020, section 3, with residual = 0.5.

    >>> import regard
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> drew_on = seen.rollout().row(0)
    >>> drew_on.shape, round(float(drew_on.sum()), 5)
    (torch.Size([5]), 1.0)
    """

    maps: tuple[AttentionMap, ...]
    residual: float
    heads: tuple[int, ...] | None
    """Which heads are averaged; None for all."""

    @classmethod
    def of(cls, maps: Sequence[AttentionMap], residual: float, heads: str | int | Sequence[int]) -> Rollout:
        if not maps:
            raise ValueError("rollout: maps (0) must be at least one; got none. Watch a model first.")
        if not 0 <= residual <= 1:
            raise ValueError(f"rollout: residual ({residual}) must lie in 0…1: the share of a token's own vector.")
        size = maps[0].shape
        for m in maps:
            if m.ndim != 4 or m.shape[-2] != m.shape[-1] or m.shape[0] != size[0] or m.shape[-1] != size[-1]:
                raise ValueError(
                    f"rollout: maps ({shape_of(size)} and {shape_of(m.shape)}) must be square and of one length, from "
                    "a sequence to itself. Choose some first: seen.filter(kind='self') or seen.filter('decoder.*')."
                )
        return cls(tuple(maps), float(residual), _heads(heads, min(m.shape[1] for m in maps)))

    @property
    def length(self) -> int:
        return self.maps[0].shape[-1]

    def row(self, token: int, batch: int = 0) -> Tensor:
        """What a token of the last layer drew on: one weight per token of the input, (N,), together 1."""
        return self._down(self._mark(token), batch)[0]

    def from_token(self, token: int, batch: int = 0) -> Tensor:
        """The same as `row`: looking from a token of the last layer at the input."""
        return self.row(token, batch)

    def to_token(self, token: int, batch: int = 0) -> Tensor:
        """How much each token of the last layer drew on this one of the input, (N,)."""
        return self._up(self._mark(token), batch)[-1]

    def flow(
        self, source: int | Sequence[int] | None = None, target: int | Sequence[int] | None = None, batch: int = 0
    ) -> Tensor:
        """What passes through each token of each layer on its way from source to target, (layers + 1, N).

            throughₗ = (Aₗ … A₁ · source) ⊙ (target · A_L … Aₗ₊₁)

        Row 0 is the input, the last row the last layer's output; each row sums to the same total, what the targets
        (on average) drew on the sources. None stands for all tokens.
        """
        up = self._up(self._mark(source), batch)
        wanted = self._mark(target)
        down = self._down(wanted / wanted.sum(), batch)
        return up * down

    @torch.no_grad()
    def _down(self, x: Tensor, batch: int) -> Tensor:
        """x · A_L · … · A₁ and what it is on the way, input first: (layers + 1, N)."""
        steps = [x]
        for m in reversed(self.maps):
            drawn: Tensor = steps[-1] @ self._entry(m, batch)  # (H, N)
            steps.append(self.residual * steps[-1] + (1 - self.residual) * drawn.mean(0))
        return torch.stack(steps[::-1])

    @torch.no_grad()
    def _up(self, x: Tensor, batch: int) -> Tensor:
        """A_L · … · A₁ · x and what it is on the way, input first: (layers + 1, N)."""
        steps = [x]
        for m in self.maps:
            drawn = (self._entry(m, batch) @ steps[-1]).mean(0)  # (H, N) → (N,)
            steps.append(self.residual * steps[-1] + (1 - self.residual) * drawn)
        return torch.stack(steps)

    def _entry(self, m: AttentionMap, batch: int) -> AttentionMap:
        """The heads of one batch entry, (H, N, N)."""
        if not -m.shape[0] <= batch < m.shape[0]:
            raise ValueError(f"rollout: batch ({batch}) must lie in 0…{m.shape[0] - 1}.")
        entry = m.at(batch)
        if self.heads is None:
            return entry
        chosen = torch.tensor(self.heads)
        return AttentionMap(entry.request.select((chosen,)), entry.statistic[chosen])

    def _mark(self, tokens: int | Sequence[int] | None) -> Tensor:
        """1 for the chosen tokens, (N,)."""
        m = self.maps[0]
        if tokens is None:
            return torch.ones(self.length, dtype=m.dtype, device=m.device)
        chosen = [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]
        if not chosen or any(not -self.length <= token < self.length for token in chosen):
            raise ValueError(f"rollout: tokens ({chosen}) must be at least one, each in 0…{self.length - 1}.")
        marked = torch.zeros(self.length, dtype=m.dtype, device=m.device)
        marked[chosen] = 1
        return marked


def _heads(heads: str | int | Sequence[int], count: int) -> tuple[int, ...] | None:
    if isinstance(heads, str):
        if heads != "mean":
            raise ValueError(
                f"rollout: heads ({heads!r}) must be 'mean' or numbers; a maximum over heads is no product of maps."
            )
        return None
    chosen = (heads,) if isinstance(heads, int) else tuple(int(head) for head in heads)
    if not chosen or any(not -count <= head < count for head in chosen):
        raise ValueError(f"rollout: heads ({chosen}) must be at least one, each in 0…{count - 1}.")
    return tuple(head % count for head in chosen)
