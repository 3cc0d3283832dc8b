"""Attention rollout and flow through all layers, computed as map-vector products with O(N) memory per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..core.tensors import shape_of

if TYPE_CHECKING:
    from ..pictures.figure import Picture


class RolloutOptions(TypedDict, total=False):
    """Keyword arguments of `Seen.rollout`."""

    residual: float
    heads: str | int | Sequence[int]


@dataclass(frozen=True)
class Rollout:
    """Attention rollout: the contribution of each input token to each token of the last layer.

        Aₗ      = residual · I + (1 − residual) · meanₕ Wₗₕ                (N, N), never stored
        rollout = A_L · … · A₂ · A₁                                        (N, N), never stored

    A row or a column of the rollout takes L products of a map and a vector.

    Paper: Abnar & Zuidema 2020, section 3, with residual = 0.5.

    >>> import regard
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> weights = seen.rollout().row(0)
    >>> weights.shape, round(float(weights.sum()), 5)
    (torch.Size([5]), 1.0)

    >>> rollout = Rollout.of(seen.maps, residual=0.5, heads="mean")
    >>> rollout.length, torch.equal(rollout.from_token(0), weights)
    (5, True)
    >>> torch.allclose(rollout.to_token(3)[0], weights[3])              # a column of the same matrix
    True
    >>> rollout.flow(source=3, target=0).sum(-1).allclose(weights[3])   # the same weight passes through every layer
    True
    """

    maps: tuple[AttentionMap, ...]
    residual: float
    heads: tuple[int, ...] | None
    """Heads to average; None for all."""

    @classmethod
    def of(cls, maps: Sequence[AttentionMap], residual: float, heads: str | int | Sequence[int]) -> Rollout:
        """Return the rollout of maps (B, H, N, N), first layer first. `heads`: "mean" of all, or of some indices."""
        if not maps:
            raise ValueError("rollout: maps (0) must not be empty. Watch a model first.")
        if not 0 <= residual <= 1:
            raise ValueError(f"rollout: residual ({residual}) must lie in 0…1: the weight of the residual connection.")
        size = maps[0].shape
        for m in maps:
            if m.ndim != 4 or m.shape[-2] != m.shape[-1] or m.shape[0] != size[0] or m.shape[-1] != size[-1]:
                raise ValueError(
                    f"rollout: maps ({shape_of(size)} and {shape_of(m.shape)}) must be square maps of one length. "
                    "Select them first: seen.filter(kind='self') or seen.filter('decoder.*')."
                )
        return cls(tuple(maps), float(residual), _heads(heads, min(m.shape[1] for m in maps)))

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.maps[0].shape[-1]

    def row(self, token: int, batch: int = 0) -> Tensor:
        """Return the weights of the input tokens for one token of the last layer, (N,). They sum to 1."""
        return self._down(self._indicator(token), batch)[0]

    def from_token(self, token: int, batch: int = 0) -> Tensor:
        """Alias of `row`: from a token of the last layer to the input tokens."""
        return self.row(token, batch)

    def to_token(self, token: int, batch: int = 0) -> Tensor:
        """Return the weight of one input token for each token of the last layer, (N,)."""
        return self._up(self._indicator(token), batch)[-1]

    def flow(
        self, source: int | Sequence[int] | None = None, target: int | Sequence[int] | None = None, batch: int = 0
    ) -> Tensor:
        """Return the flow from source to target through each token of each layer, (layers + 1, N).

            throughₗ = (Aₗ … A₁ · source) ⊙ (target · A_L … Aₗ₊₁)

        Row 0 is the input and the last row is the output of the last layer. Every row has the same sum: the weight of
        the sources, averaged over the targets. None selects all tokens.
        """
        up = self._up(self._indicator(source), batch)
        targets = self._indicator(target)
        down = self._down(targets / targets.sum(), batch)
        return up * down

    def draw(self, token: int = -1, batch: int = 0, top: int = 20) -> Picture:
        """Draw the strongest weights of the input tokens for one token of the last layer as bars.

        >>> import regard
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> with regard.watch(model) as seen:
        ...     y = model(torch.randn(1, 5, 8))
        >>> seen.tokens(list("abcde")).rollout().draw(token=2).axes[0].get_title()
        'rollout of 1 layers: c'
        """
        from ..pictures import fonts, weight_bars

        if top < 1:
            raise ValueError(f"rollout: top ({top}) must be at least 1; got {top}.")
        strongest = self.row(token, batch).topk(min(top, self.length))
        tokens, last = self.maps[0].key_tokens, self.maps[-1].query_tokens
        indices: list[int] = strongest.indices.tolist()
        names = [str(index) if tokens is None else f"{fonts.label(tokens[index])}  {index}" for index in indices]
        name = f"token {token % self.length}" if last is None else fonts.label(last[token])
        return weight_bars.draw(
            names, strongest.values.float().cpu().numpy(), f"rollout of {len(self.maps)} layers: {name}"
        )

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()

    @torch.no_grad()
    def _down(self, x: Tensor, batch: int) -> Tensor:
        """Return x · A_L · … · A₁ with all intermediate products, input first: (layers + 1, N)."""
        steps = [x]
        for m in reversed(self.maps):
            attended: Tensor = steps[-1] @ self._entry(m, batch)  # (H, N)
            steps.append(self.residual * steps[-1] + (1 - self.residual) * attended.mean(0))
        return torch.stack(steps[::-1])

    @torch.no_grad()
    def _up(self, x: Tensor, batch: int) -> Tensor:
        """Return A_L · … · A₁ · x with all intermediate products, input first: (layers + 1, N)."""
        steps = [x]
        for m in self.maps:
            attended = (self._entry(m, batch) @ steps[-1]).mean(0)  # (H, N) → (N,)
            steps.append(self.residual * steps[-1] + (1 - self.residual) * attended)
        return torch.stack(steps)

    def _entry(self, m: AttentionMap, batch: int) -> AttentionMap:
        """Return the selected heads of one batch entry, (H, N, N)."""
        if not -m.shape[0] <= batch < m.shape[0]:
            raise ValueError(f"rollout: batch ({batch}) must lie in 0…{m.shape[0] - 1}.")
        entry = m.at(batch)
        if self.heads is None:
            return entry
        selected = torch.tensor(self.heads)
        return AttentionMap(entry.request.select((selected,)), entry.statistic[selected])

    def _indicator(self, tokens: int | Sequence[int] | None) -> Tensor:
        """Return a vector with 1 for the selected tokens and 0 elsewhere, (N,)."""
        m = self.maps[0]
        if tokens is None:
            return torch.ones(self.length, dtype=m.dtype, device=m.device)
        selected = [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]
        if not selected or any(not -self.length <= token < self.length for token in selected):
            raise ValueError(f"rollout: tokens ({selected}) must be at least one, each in 0…{self.length - 1}.")
        vector = torch.zeros(self.length, dtype=m.dtype, device=m.device)
        vector[selected] = 1
        return vector


def _heads(heads: str | int | Sequence[int], count: int) -> tuple[int, ...] | None:
    if isinstance(heads, str):
        if heads != "mean":
            raise ValueError(
                f"rollout: heads ({heads!r}) must be 'mean' or head indices; a maximum is not a product of maps."
            )
        return None
    selected = (heads,) if isinstance(heads, int) else tuple(int(head) for head in heads)
    if not selected or any(not -count <= head < count for head in selected):
        raise ValueError(f"rollout: heads ({selected}) must be at least one, each in 0…{count - 1}.")
    return tuple(head % count for head in selected)
