"""The page of a long map: the overview and tiles of one head with 131,072 tokens.

A tile is timed against only computing its block of scores once, q · kᵀ in blocks that fit in the cache. The
log-sum-exps of its rows are already known from the overview. Memory is that of queries and keys, the log-sum-exps, the
overview and tiles of all levels, computed as in the server; see `bench.memory`.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench import memory
from bench.harness import Case, Figure, Options, Versus
from bench.maps import WIDTH, draw
from regard.attention.attention_map import AttentionMap
from regard.attention.cells import Cells
from regard.attention.request import Request
from regard.attention.statistic import Statistic
from regard.attention.streamed_views import Reduce
from regard.server import tiles
from regard.server.head_views import Head
from regard.server.work_queue import Task

TOKENS, FEWER = 131_072, 4096
BLOCK = 2**19
"""Number of scores that the peer computes at a time."""
DEEPEST = "one cell per pixel: the shades and the fixed costs of a tile take as long as its scores, 0.07 ms"
CELLS = (1, 2, 4, 8, 16, 32, 64)
"""Cells per pixel in each direction."""


def cases(options: Options) -> Iterator[Case]:
    tokens = FEWER if options.quick else TOKENS
    q, k = draw((tokens, WIDTH), count=2)
    # The time of a tile does not depend on the values of the statistic, and computing them takes a minute.
    head = _head(q, k, Statistic(torch.full((tokens,), 4.0), torch.full((tokens,), 3000.0)))
    for cells in CELLS:
        # Queries from the middle and keys from the beginning: no cell is masked.
        rows, cols = tiles.side(tokens // 2 // (256 * cells), tokens, cells), tiles.side(0, tokens, cells)
        yield Case(
            f"tile, {cells} cells per pixel",
            str((1, 1, tokens, WIDTH)),
            {
                "weights": partial(head.picture, rows, cols, "max", Task()),
                "tile": partial(_tile, head, rows, cols, "max"),
                "tile, mean": partial(_tile, head, rows, cols, "mean"),
                "scores": partial(_scores, q[_span(rows)], k[_span(cols)]),
            },
            versus=[_versus(ours, cells == 1, options.quick) for ours in ("weights", "tile", "tile, mean")],
            most_rounds=7,
        )


def _versus(ours: str, deepest: bool, quick: bool) -> Versus:
    if quick:
        return Versus(ours, "scores", ratio="ours/peer")
    if deepest:
        return Versus(ours, "scores", "<= 3.0", "ours/peer", goal="<= 2.0", reason=DEEPEST)
    return Versus(ours, "scores", "<= 2.0", "ours/peer")


def figures(options: Options) -> Iterator[Figure]:
    shape = (1, 1, FEWER if options.quick else TOKENS, WIDTH)

    def measure() -> float:
        return memory.peak("bench.view:setup", shape, threads=options.threads) / memory.MIB

    yield Figure("overview and tiles, memory", str(shape), measure, "MiB", None if options.quick else "<= 512")


def setup(shape: list[int]) -> Callable[[], object]:
    def draw_tiles(tokens: int) -> None:
        q, k = draw((tokens, WIDTH), count=2)
        head = _head(q, k)
        size = min(96, tokens)
        whole = [Cells(0, tokens, size)]
        _tile(head, whole, whole, "max")
        for cells in CELLS:
            rows = tiles.side(0, tokens, cells)
            _tile(head, rows, rows, "mean")

    draw_tiles(512)
    return lambda: draw_tiles(shape[-2])


def _head(q: Tensor, k: Tensor, statistic: Statistic | None = None) -> Head:
    return Head(AttentionMap(Request.of(q, k, k, is_causal=True).kept(), statistic))


def _tile(head: Head, rows: list[Cells], cols: list[Cells], reduce: Reduce) -> bytes:
    return tiles.pgm(head.picture(rows, cols, reduce, Task(), tiles.shading("log", head.keys)))


def _span(side: list[Cells]) -> slice:
    return slice(side[0].start, side[-1].stop)


def _scores(q: Tensor, k: Tensor) -> None:
    """Compute q · kᵀ block by block into the same buffer."""
    out = torch.empty(BLOCK)
    for x in q.split(512):
        for y in k.split(BLOCK // 512):
            torch.mm(x, y.T, out=out[: len(x) * len(y)].view(len(x), len(y)))
