"""The parts of a saved page that belong to one head: tiles of every level that fits, and weights."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention.cells import Cells, split
from ..lens.head_profile import MEASURES
from . import head_statistics, tiles
from .head_views import MAX_WEIGHTS, Head, Mean
from .work_queue import Task

TOPS = (20, 10, 5, 2)
"""Numbers of links per token that are tried if not all weights fit. The page lists 20."""
RATIO = 0.7
"""Estimated size of packed shades, relative to one byte per pixel. Larger results are discarded."""


class SavedHead(NamedTuple):
    """Packed answers by path, and the entry of the head in the recording."""

    answers: dict[str, str]
    entry: dict[str, Any]

    @property
    def size(self) -> int:
        return _size(self.answers) + _size(self.entry)


def pack(contents: bytes) -> str:
    """Return contents as base64 of zlib.

    >>> pack(b"")
    'eJwDAAAAAAE='
    """
    return base64.b64encode(zlib.compress(contents, 6)).decode()


def pack_json(contents: object) -> str:
    """Return JSON in packed form."""
    return pack(json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def overview(head: Head | Mean, at: str, size: int) -> dict[str, str]:
    """Return the overviews of a head in both scales. The path has the size that the page requests."""
    height, width = tiles.thumbnail(head.queries, head.keys, size)
    pixels = head.picture([Cells(0, head.queries, height)], [Cells(0, head.keys, width)], "max", Task())
    return {
        f"api/maps/{at}/overview.pgm?size=96&reduce=max&scale={scale}": _shades(pixels, scale, head.keys)
        for scale in tiles.SCALES
    }


def estimate(queries: int, keys: int) -> int:
    """Return the approximate size of a head at full resolution, with all weights."""
    return int(queries * keys * (2 + 2 * 1.4 * RATIO)) + 2000


def save_head(head: Head | Mean, at: str, budget: int) -> SavedHead:
    """Return the answers for a head in about `budget` bytes: half for the weights, the rest for the tiles."""
    weights = _weights(head, budget // 2)
    answers = {f"api/maps/{at}/received": pack_json(_received(head))}
    level, pictures = _tiles(head, at, budget - _size(weights) - _size(answers))
    return SavedHead({**answers, **pictures}, {"level": level, "weights": weights})


def profile(head: Head) -> dict[str, float | None]:
    """Return the statistics of a head, as in the answer to `/profile`."""
    return dict(zip(MEASURES, head_statistics.numbers(head_statistics.profile(head, Task())), strict=True))


def rounded(values: Tensor) -> list[float | None]:
    """Return values with four significant digits."""
    return [None if value is None else float(f"{value:.4g}") for value in head_statistics.numbers(values)]


def _received(head: Head | Mean) -> dict[str, Any]:
    cells, weights = head_statistics.received(head, Task())
    return {"received": rounded(weights), **({"cells_per_entry": cells} if cells > 1 else {})}


def _weights(head: Head | Mean, budget: int) -> dict[str, Any]:
    """Return all weights if they fit, or the strongest of each query and key."""
    if head.queries * head.keys * 2 <= 2 * budget:
        every = torch.cat([part for _, part in _bands(head)])  # (Tq, Tk)
        packed = pack(_half(every))
        if len(packed) <= budget:
            return {"queries": head.queries, "keys": head.keys, "all": packed}
    query, key = _strongest(head, TOPS[0])
    for top in TOPS:
        sides = {
            name: {"positions": pack(_whole(positions[:, :top])), "weights": pack(_half(values[:, :top]))}
            for name, (values, positions) in {"query": query, "key": key}.items()
        }
        stored = {"top": min(top, query[0].shape[1], key[0].shape[1]), **sides}
        if top == TOPS[-1] or _size(stored) <= budget:
            break
    return stored


def _strongest(head: Head | Mean, top: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (weights, positions) of the strongest keys of each query and of the strongest queries of each key."""
    most = min(top, head.queries, head.keys)
    rows: list[tuple[Tensor, Tensor]] = []
    best = torch.zeros(head.keys, 0), torch.zeros(head.keys, 0, dtype=torch.int64)
    for start, part in _bands(head):
        part = part.nan_to_num(0.0)  # (rows, Tk)
        strongest = part.topk(most)
        rows.append((strongest.values, strongest.indices))
        positions = torch.arange(start, start + len(part)).expand(head.keys, -1)
        values, positions = torch.cat([best[0], part.T], 1), torch.cat([best[1], positions], 1)
        kept = values.topk(min(most, values.shape[1]))
        best = kept.values, positions.gather(1, kept.indices)
    values, positions = (torch.cat(side) for side in zip(*rows, strict=True))
    return (values, positions), best


def _bands(head: Head | Mean) -> Iterator[tuple[int, Tensor]]:
    """Yield the first row and the weights of bands that cover all rows."""
    height = max(1, MAX_WEIGHTS // head.keys)
    for start in range(0, head.queries, height):
        stop = min(start + height, head.queries)
        yield start, head.weights(start, stop, slice(0, head.keys), Task()).float().cpu()


def _tiles(head: Head | Mean, at: str, budget: int) -> tuple[int, dict[str, str]]:
    """Return the deepest level, and the tiles of all levels up to it that fit in the budget."""
    deepest = tiles.deepest(head.queries, head.keys)
    first = min(deepest, tiles.TILE.bit_length() - 1)
    level = deepest
    while level > first and (4 ** (level - deepest)) * head.queries * head.keys * 4 / 3 * 2 * RATIO > budget:
        level -= 1
    cells = 2 ** (deepest - level)
    pixels = head.picture(split(0, head.queries, cells), split(0, head.keys, cells), "max", Task())
    levels: dict[int, dict[str, str]] = {}
    for number in range(level, first - 1, -1):
        levels[number] = _level(pixels, at, number, head.keys)
        pixels = _half_size(pixels)
    while level > first and sum(map(_size, levels.values())) > budget:
        del levels[level]
        level -= 1
    return level, {path: tile for tiles_of_level in levels.values() for path, tile in tiles_of_level.items()}


def _level(pixels: Tensor, at: str, level: int, keys: int) -> dict[str, str]:
    """Return the tiles of one level in both scales."""
    size = tiles.TILE
    return {
        f"api/maps/{at}/tile/{level}/{column}/{row}.pgm?reduce=max&scale={scale}": _shades(
            pixels[row * size : (row + 1) * size, column * size : (column + 1) * size], scale, keys
        )
        for scale in tiles.SCALES
        for row in range(-(-pixels.shape[0] // size))
        for column in range(-(-pixels.shape[1] // size))
    }


def _half_size(pixels: Tensor) -> Tensor:
    """Return the next smaller level: the largest of 2 × 2 pixels, fewer at the edges."""
    return torch.nn.functional.max_pool2d(pixels[None], 2, ceil_mode=True)[0]


def _shades(pixels: Tensor, scale: str, keys: int) -> str:
    return pack(tiles.pgm(tiles.shading(scale, keys).of(pixels)))


def _half(values: Tensor) -> bytes:
    return bytes(values.half().numpy().astype("<f2").tobytes())


def _whole(values: Tensor) -> bytes:
    return bytes(values.numpy().astype("<u4").tobytes())


def _size(values: Any) -> int:
    """Return the size as JSON in bytes."""
    return len(json.dumps(values))
