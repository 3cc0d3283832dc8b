"""What each head does, in five figures: how spread, how far, and how much on the tokens that heads like best."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..attention.request import Request
from ..attention.streamed_views import Block, blocks
from ..pictures.panel_selection import entry
from .recorded_call import kind_of

if TYPE_CHECKING:
    from ..pictures.figure import Picture

MEASURES = ("entropy", "distance", "first", "previous", "same")


@dataclass(frozen=True)
class Profile:
    """Five figures for each head, by name: `profile["entropy"]` is (layers, heads).

    NaN stands for a head that a layer does not have.
    """

    names: Sequence[str]
    """Of the layers."""
    values: Tensor
    """(layers, heads, 5), in the order of MEASURES."""

    def __getitem__(self, measure: str) -> Tensor:
        if measure not in MEASURES:
            raise KeyError(f"profile: measure ({measure!r}) must be one of {', '.join(MEASURES)}.")
        return self.values[..., MEASURES.index(measure)]

    def __iter__(self) -> Iterator[str]:
        return iter(MEASURES)

    def __repr__(self) -> str:
        layers, heads, _ = self.values.shape
        mean = self.values.flatten(0, 1).nanmean(0).tolist()
        figures = ", ".join(f"{name} {value:.3g}" for name, value in zip(MEASURES, mean, strict=True))
        return f"Profile({layers} × {heads} heads; on average {figures})"

    def draw(self, title: str = "") -> Picture:
        """The picture: layers × heads for each figure; bars where there is one layer."""
        from ..pictures.profile_chart import draw

        return draw(self.names, MEASURES, self.values.cpu().numpy(), title)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture: .png, .svg or .pdf."""
        from ..pictures.figure import check_path, save

        path = check_path("profile", path)
        return save(self.draw(), path)

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


def profile(
    maps: AttentionMap | Sequence[tuple[str, AttentionMap]],
    *,
    batch: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> Profile:
    """Figures of every head of a map, or of the (name, map) pairs of several layers: means over the queries.

        entropy    −Σⱼ wᵢⱼ log wᵢⱼ    in nats: e to its power is the number of keys that a query looks at
        distance   Σⱼ wᵢⱼ |pᵢ − j|    in tokens; pᵢ is the position of query i
        first      wᵢ₀                the weight on the first key
        previous   wᵢⱼ, j = pᵢ − 1    on the key before the query; 0 where there is none
        same       wᵢⱼ, j = pᵢ        on the query's own

    pᵢ = i, moved by the mask's own offset; under a causal mask that was given cell by cell the last query stands at the
    last key. The weights are streamed: memory grows with Tq + Tk.

    Raises:
        ValueError: for a batch entry that there is not.

    >>> import regard
    >>> q = torch.zeros(2, 8, 4)                                      # (heads, Tq, D): all keys alike
    >>> _, m = regard.attend(q, q, q, is_causal=True, return_map=True)
    >>> [f"{float(x):.3f}" for x in profile(m)["first"][0]]           # (1 + 1/2 + … + 1/8) / 8
    ['0.340', '0.340']
    """
    layers = [("", maps)] if isinstance(maps, AttentionMap) else maps
    found = [entry("profile", m, batch, _means) for _, m in layers]  # (heads, 5) each
    values = torch.full((len(layers), max(len(each) for each in found), len(MEASURES)), torch.nan, dtype=torch.float64)
    for layer, each in zip(values, found, strict=True):
        layer[: len(each)] = each
    made = Profile([name for name, _ in layers], values)
    if path is not None:
        made.save(path)
    return made


def _means(m: AttentionMap) -> Tensor:
    """(*lead, 5)"""
    return totals(m, ahead_of(m.request)) / m.request.queries


def ahead_of(request: Request) -> int:
    """How many keys come before the first query's own, where the mask has no offset that tells."""
    return request.keys - request.queries if kind_of(request) == "causal" else 0


@torch.no_grad()
def totals(m: AttentionMap, ahead: int) -> Tensor:
    """The figures summed over the queries, in the order of MEASURES: (*lead, 5).

    Those of a map's parts add up to those of the whole: `ahead` is then `ahead_of` the whole and the number of queries
    before the part, which only the whole can tell.
    """
    request = m.request
    total = torch.zeros(*request.lead, 3, dtype=torch.float64, device=request.device)  # distance, previous, same
    alike = isinstance(request.mask.offset, int)
    known: tuple[slice, slice, Tensor] | None = None
    for block in blocks(request, m.statistic):
        if known is None or not alike or known[:2] != (block.rows, block.cols):
            known = block.rows, block.cols, _away(block, ahead)  # the same for every head
        sums = (_alike if alike else _apart)(block.weights(m.statistic), known[2])
        block.own(total).add_(sums)
    entropy, first = m.entropy().sum(-1, dtype=torch.float64), m[..., 0].sum(-1, dtype=torch.float64)  # (*lead,)
    distance, previous, same = total.unbind(-1)
    return torch.stack([entropy, distance, first, previous, same], -1).cpu()


def _alike(weights: Tensor, away: Tensor) -> Tensor:
    """Distance, previous, same: sums over a block, weights (..., rows, cols), away (rows, cols) → (..., 3)."""
    rows, cols = away.shape
    distance = (weights.flatten(-2) @ away.abs().to(weights.dtype).flatten()).double()
    first = int(away[0, 0])  # and so on along each diagonal
    near = [place - first for place in (-1, 0)]
    sums = [weights.diagonal(at, -2, -1).sum(-1) if -rows < at < cols else torch.zeros_like(distance) for at in near]
    return torch.stack([distance, *(x.double() for x in sums)], -1)


def _apart(weights: Tensor, away: Tensor) -> Tensor:
    """The same where queries stand at places of their own, away (..., rows, cols)."""
    sums = [weights * away.abs(), *(torch.where(away == place, weights, 0) for place in (-1, 0))]
    return torch.stack([part.sum(-1).sum(-1, dtype=torch.float64) for part in sums], -1)


def _away(block: Block, ahead: int) -> Tensor:
    """j − pᵢ of a block's pairs, (..., rows, cols): whole numbers in floats, which multiply faster."""
    mask, device = block.request.mask, block.request.device
    offset: int | Tensor = mask.offset if mask.positional else ahead
    if isinstance(offset, Tensor) and offset.shape[-2] != 1:
        offset = offset[..., block.rows, :]
    position = torch.arange(block.rows.start, block.rows.stop, device=device).unsqueeze(-1) + offset  # (..., rows, 1)
    return torch.arange(block.cols.start, block.cols.stop, device=device).to(torch.float32) - position.float()
