"""The cost of maps: a picture of a causal 32,768-token head against SDPA, every verb against PyTorch, peak memory.

The picture is timed twice: after `attend` by the native kernels, which return the log-sum-exp of each row, and from a
map that has to compute it first. Each verb is timed with the native kernels and with the PyTorch implementation that
they replace. Memory is measured by `bench.memory`: each setup function below creates the inputs and makes the same call
on a few tokens. The outputs of the measured function (context, gradients) are not counted. Bars apply to the full
sizes only, so --quick has none.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from bench import memory
from bench.harness import Case, Figure, Fresh, Options, Versus
from bench.parity import Parity
from regard.attention import streamed_views
from regard.attention.cells import Cells
from regard.attention.native import engine, views
from regard.attention.request import Request
from regard.attention.statistic import Statistic

PICTURE = 1024
WIDTH = 64
FEW = 256
"""Number of tokens of the tiny warm-up call: enough for every thread to get some."""


def cases(options: Options) -> Iterator[Case]:
    yield pool_case(4096) if options.quick else pool_case(32768, "<= 1.5")
    if engine.module is None:
        return
    shapes = [(1, 2, 512, WIDTH)] if options.quick else [(1, 8, 4096, WIDTH), (1, 1, 32768, WIDTH)]
    for shape in shapes:
        yield from verb_cases(
            shape, None if options.quick else ">= 1.0", **({"is_causal": True} if shape[1] == 1 else {})
        )
    wide = (1, 1, 256 if options.quick else 2048, 128)
    similarity = regard.Additive(draw((128,), count=1)[0] / 128**0.5)
    yield from verb_cases(wide, None if options.quick else ">= 1.0", similarity=similarity)


Verb = Callable[[ModuleType, Request, Statistic, Tensor], object]
VERBS: dict[str, Verb] = {
    "log-sum-exp": lambda by, of, rows, x: by.statistic(of).lse,
    "top(5)": lambda by, of, rows, x: by.top(of, rows, 5)[0],
    "entropy": lambda by, of, rows, x: by.entropy(of, rows),
    "received": lambda by, of, rows, x: by.received(of, rows),
    "pool max": lambda by, of, rows, x: by.pool(of, rows, *_cells(of), "max"),
    "pool mean": lambda by, of, rows, x: by.pool(of, rows, *_cells(of), "mean"),
    "m @ x": lambda by, of, rows, x: by.matmul(of, rows, x),
    "x @ m": lambda by, of, rows, x: by.rmatmul(of, rows, x.mT[..., :16, :]),
    "weights of 256 rows": lambda by, of, rows, x: by.weights(
        of.of_rows(slice(0, 256)), rows[..., :256], slice(0, of.keys)
    ),
}


def _cells(of: Request) -> tuple[Cells, Cells]:
    return Cells(0, of.queries, PICTURE // 2), Cells(0, of.keys, PICTURE // 2)


def verb_cases(shape: tuple[int, ...], bar: str | None, **asked: Any) -> Iterator[Case]:
    """Yield one case per verb, with both implementations and the same statistic."""
    q, k, x = draw(shape, count=3)
    of = Request.of(q, k, k, **asked).kept()
    rows = views.statistic(of)
    kind = " additive" if "similarity" in asked else " causal" if "is_causal" in asked else ""
    for name, verb in VERBS.items():
        ways = {"native": views, "PyTorch": streamed_views}
        yield Case(
            f"{name}{kind}",
            str(shape),
            {way: partial(verb, by, of, rows, x) for way, by in ways.items()},
            versus=[Versus("native", "PyTorch", bar)],
            parity=Parity("PyTorch"),
        )


def figures(options: Options) -> Iterator[Figure]:
    def mebibytes(name: str, shape: tuple[int, ...], limit: int, setup: str) -> Figure:
        def measure() -> float:
            return memory.peak(f"bench.maps:{setup}", shape, threads=options.threads) / memory.MIB

        return Figure(name, str(shape), measure, "MiB", None if options.quick else f"<= {limit}")

    shorter = 8 if options.quick else 1
    yield mebibytes("map and pool, memory", (1, 1, 32768 // shorter, WIDTH), 256, "pool_setup")
    yield mebibytes("blocked forward + backward, memory", (1, 8, 16384 // shorter, WIDTH), 128, "blocked_setup")
    yield mebibytes("additive forward + backward, memory", (1, 1, 8192 // shorter, 128), 128, "additive_setup")


def pool_case(tokens: int, bar: str | None = None) -> Case:
    """Return the case of one picture. Each call uses a new map, so that no cached values are reused."""
    q, k, v = draw((1, 1, tokens, WIDTH), count=3)
    _, untouched = regard.attend(q, k, v, is_causal=True, return_map=True)
    cell = tokens // PICTURE
    shown = (0, PICTURE // 2, PICTURE - 1)

    def oracle() -> Tensor:
        """Return three rows of the picture, computed from dense float64 weights."""
        return torch.stack([_picture_row(q[0, 0].double(), k[0, 0].double(), row, cell) for row in shown])

    return Case(
        f"pool({PICTURE}, {PICTURE}) causal",
        str((1, 1, tokens, WIDTH)),
        {
            "pool": Fresh(lambda: copy.deepcopy(untouched), lambda m: m.pool(PICTURE, PICTURE)),
            "log-sum-exp and pool": Fresh(
                lambda: regard.AttentionMap(untouched.request), lambda m: m.pool(PICTURE, PICTURE)
            ),
            "SDPA": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        },
        versus=[Versus(ours, "SDPA", bar, "ours/peer") for ours in ("pool", "log-sum-exp and pool")],
        parity=Parity(
            oracle,
            rtol=1e-4,
            atol=1e-6,
            contenders=("pool", "log-sum-exp and pool"),
            view=lambda picture: picture[0, 0, list(shown)],
        ),
    )


def _picture_row(q: Tensor, k: Tensor, row: int, cell: int) -> Tensor:
    """Return row `row` of the max-pooled picture: (PICTURE,)."""
    rows = torch.arange(row * cell, (row + 1) * cell)
    scores = q[rows] @ k.T / WIDTH**0.5  # (cell, T)
    scores = scores.masked_fill(torch.arange(len(k)) > rows[:, None], -torch.inf)
    return scores.softmax(-1).unflatten(-1, (PICTURE, cell)).amax((0, 2))


def draw(shape: tuple[int, ...], count: int, requires_grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_(requires_grad) for _ in range(count)]


def pool_setup(shape: list[int]) -> Callable[[], object]:
    """The measured function creates the map, so that its memory is not part of the baseline."""

    def call(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> object:
        context, m = regard.attend(q, k, v, is_causal=True, return_map=True)
        m.pool(min(PICTURE, q.shape[-2]), min(PICTURE, q.shape[-2]))
        return context

    return _warmed(call, shape, requires_grad=False)


def blocked_setup(shape: list[int]) -> Callable[[], object]:
    def call(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> object:
        context = regard.attend(q, k, v, backend="blocked")
        return context, *torch.autograd.grad(context, (q, k, v), upstream)

    return _warmed(call, shape, requires_grad=True)


def additive_setup(shape: list[int]) -> Callable[[], object]:
    (w,) = draw((shape[-1],), count=1, requires_grad=True)

    def call(q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> object:
        context = regard.attend(q, k, v, similarity=regard.Additive(w), backend="blocked")
        return context, *torch.autograd.grad(context, (q, k, v, w), upstream)

    return _warmed(call, shape, requires_grad=True)


def _warmed(call: Callable[..., object], shape: list[int], requires_grad: bool) -> Callable[[], object]:
    """Return a call on q, k, v and an upstream gradient, all of `shape`, after a warm-up call on few tokens."""

    def inputs(tokens: int) -> list[Tensor]:
        size = (*shape[:-2], tokens, shape[-1])
        return [*draw(size, count=3, requires_grad=requires_grad), torch.ones(size)]

    call(*inputs(FEW))
    whole = inputs(shape[-2])
    return lambda: call(*whole)
