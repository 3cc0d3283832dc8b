"""The kernels in torch's own thread pool, and with threads of their own beside it, between torch's own operators.

Workers of an OpenMP pool spin for a while after each parallel region. Threads of another pool then wait for a core, and
the first pool's for theirs. A layer of a model is the case: a product, attention, a product, again and again. What it
costs is compared with the sum of its parts, each timed alone.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import regard
from bench.harness import Case, Options, Versus
from bench.parity import Parity
from regard.attention.native import engine

SHAPES = ((1, 8, 64, 64), (16, 8, 64, 64), (8, 12, 197, 64))
PRODUCTS = 4
"""In a call: so many, with attention after each."""


def cases(options: Options) -> Iterator[Case]:
    if engine.module is None:
        raise ValueError(f"bench: threads must have the native kernels; got none: {engine.reason}.")
    for shape in SHAPES[:1] if options.quick else SHAPES:
        yield case(shape)


def case(shape: tuple[int, int, int, int]) -> Case:
    batch, heads, tokens, width = shape
    x = torch.randn(batch * tokens, heads * width)  # (B·T, W)
    weight = torch.randn(heads * width, heads * width) / (heads * width) ** 0.5

    def project(x: Tensor) -> Tensor:
        return x @ weight

    def look(x: Tensor) -> Tensor:
        q = x.view(batch, tokens, heads, width).transpose(1, 2)  # (B, H, T, D)
        return regard.attend(q, q, q, backend="native").transpose(1, 2).reshape(x.shape)

    def mixed() -> Tensor:
        y = x
        for _ in range(PRODUCTS):
            y = look(project(y))
        return y

    def apart() -> Tensor:
        for part in (project, look):
            for _ in range(PRODUCTS):
                part(x)
        return x

    pool = engine.pool()
    contenders = {
        "in torch's pool": _with(pool, mixed),
        "threads of its own": _with(0, mixed),
        "each part alone": _with(pool, apart),
    }
    versus = [
        Versus("in torch's pool", "threads of its own"),
        Versus("in torch's pool", "each part alone", ">= 0.9"),
    ]
    return Case(
        "product and attention",
        str(shape),
        contenders,
        versus,
        Parity("in torch's pool", contenders=("threads of its own",)),
    )


def _with(pool: int, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A run with this pool, after which torch's is back."""

    def bound() -> Tensor:
        assert engine.module is not None
        engine.module.use_pool(pool)
        try:
            return run()
        finally:
            engine.module.use_pool(engine.pool())

    return bound
