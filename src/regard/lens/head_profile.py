"""Five statistics of each head: entropy, distance, and the weight on the first, the previous and the same token."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

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
    """Five statistics of each head, by name: `profile["entropy"]` is (layers, heads).

    Heads that a layer does not have are NaN.

    >>> import regard, tempfile
    >>> x = torch.zeros(2, 8, 4)                                        # (heads, Tq, D): all keys are equal
    >>> _, m = regard.attend(x, x, x, return_map=True)
    >>> result = profile([("layer 0", m)])
    >>> list(result), result["entropy"].exp().round(decimals=3).tolist()
    (['entropy', 'distance', 'first', 'previous', 'same'], [[8.0, 8.0]])
    >>> picture = result.draw(title="one layer")
    >>> result.save(tempfile.mkdtemp() + "/profile.png").name
    'profile.png'
    """

    names: Sequence[str]
    """Names of the layers."""
    values: Tensor
    """Shape (layers, heads, 5), in the order of MEASURES."""

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
        """Draw layers × heads for each statistic, or bars if there is only one layer."""
        from ..pictures.profile_chart import draw

        return draw(self.names, MEASURES, self.values.cpu().numpy(), title)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Draw the statistics and save them as .png, .svg or .pdf."""
        from ..pictures.figure import check_path, save

        path = check_path("profile", path)
        return save(self.draw(), path)

    def _repr_html_(self) -> str:
        return self.draw()._repr_html_()


class ProfileOptions(TypedDict, total=False):
    """Keyword arguments of `profile`."""

    batch: int
    path: str | os.PathLike[str] | None


def profile(
    maps: AttentionMap | Sequence[tuple[str, AttentionMap]],
    *,
    batch: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> Profile:
    """Compute five statistics of every head of a map, or of several layers given as (name, map) pairs.

    Each is a mean over the queries:

        entropy    −Σⱼ wᵢⱼ log wᵢⱼ    in nats; its exponential is the effective number of keys
        distance   Σⱼ wᵢⱼ |pᵢ − j|    in tokens; pᵢ is the position of query i
        first      wᵢ₀                the weight on the first key
        previous   wᵢⱼ, j = pᵢ − 1    the weight on the key before the query, or 0 if there is none
        same       wᵢⱼ, j = pᵢ        the weight on the key at the query's position

    pᵢ = i plus the offset of the mask. Under a dense causal mask the last query is at the position of the last key. The
    weights are streamed: memory grows with Tq + Tk.

    Raises:
        ValueError: if `batch` is out of range.

    >>> import regard
    >>> q = torch.zeros(2, 8, 4)                                      # (heads, Tq, D): all keys are equal
    >>> _, m = regard.attend(q, q, q, is_causal=True, return_map=True)
    >>> [f"{float(x):.3f}" for x in profile(m)["first"][0]]           # (1 + 1/2 + … + 1/8) / 8
    ['0.340', '0.340']
    """
    layers = [("", maps)] if isinstance(maps, AttentionMap) else maps
    means = [entry("profile", m, batch, _means) for _, m in layers]  # (heads, 5) each
    values = torch.full((len(layers), max(len(each) for each in means), len(MEASURES)), torch.nan, dtype=torch.float64)
    for layer, each in zip(values, means, strict=True):
        layer[: len(each)] = each
    result = Profile([name for name, _ in layers], values)
    if path is not None:
        result.save(path)
    return result


def _means(m: AttentionMap) -> Tensor:
    """Return the mean statistics, (*lead, 5)."""
    return totals(m, first_position(m.request)) / m.request.queries


def first_position(request: Request) -> int:
    """Return the position of the first query among the keys, for a mask without an offset."""
    return request.keys - request.queries if kind_of(request) == "causal" else 0


@torch.no_grad()
def totals(m: AttentionMap, start: int) -> Tensor:
    """Return the statistics summed over the queries, in the order of MEASURES: (*lead, 5).

    The sums of parts of a map add up to those of the whole map. For a part, `start` is `first_position` of the whole
    map plus the number of queries before the part.
    """
    request = m.request
    total = torch.zeros(*request.lead, 3, dtype=torch.float64, device=request.device)  # distance, previous, same
    shared = isinstance(request.mask.offset, int)
    cached: tuple[slice, slice, Tensor] | None = None
    for block in blocks(request, m.statistic):
        if cached is None or not shared or cached[:2] != (block.rows, block.cols):
            cached = block.rows, block.cols, _offsets(block, start)  # the same for every head
        sums = (_shared_sums if shared else _separate_sums)(block.weights(m.statistic), cached[2])
        block.own(total).add_(sums)
    entropy, first = m.entropy().sum(-1, dtype=torch.float64), m[..., 0].sum(-1, dtype=torch.float64)  # (*lead,)
    distance, previous, same = total.unbind(-1)
    return torch.stack([entropy, distance, first, previous, same], -1).cpu()


def _shared_sums(weights: Tensor, offsets: Tensor) -> Tensor:
    """Return block sums of distance, previous and same: weights (..., rows, cols), offsets (rows, cols) → (..., 3)."""
    rows, cols = offsets.shape
    distance = (weights.flatten(-2) @ offsets.abs().to(weights.dtype).flatten()).double()
    first = int(offsets[0, 0])  # constant along each diagonal
    diagonals = [offset - first for offset in (-1, 0)]
    sums = [
        weights.diagonal(at, -2, -1).sum(-1) if -rows < at < cols else torch.zeros_like(distance) for at in diagonals
    ]
    return torch.stack([distance, *(x.double() for x in sums)], -1)


def _separate_sums(weights: Tensor, offsets: Tensor) -> Tensor:
    """Return the same sums if positions differ between batch entries or heads: offsets (..., rows, cols)."""
    sums = [weights * offsets.abs(), *(torch.where(offsets == offset, weights, 0) for offset in (-1, 0))]
    return torch.stack([part.sum(-1).sum(-1, dtype=torch.float64) for part in sums], -1)


def _offsets(block: Block, start: int) -> Tensor:
    """Return j − pᵢ for each pair of a block, (..., rows, cols), as floats, which multiply faster than integers."""
    mask, device = block.request.mask, block.request.device
    offset: int | Tensor = mask.offset if mask.positional else start
    if isinstance(offset, Tensor) and offset.shape[-2] != 1:
        offset = offset[..., block.rows, :]
    position = torch.arange(block.rows.start, block.rows.stop, device=device).unsqueeze(-1) + offset  # (..., rows, 1)
    return torch.arange(block.cols.start, block.cols.stop, device=device).to(torch.float32) - position.float()
