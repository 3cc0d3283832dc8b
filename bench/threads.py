"""Native kernels in torch's thread pool against kernels with their own threads, alternating with torch operators.

Workers of an OpenMP pool spin for a while after each parallel region, so that threads of another pool have to wait for
a core, and vice versa. Layers of models alternate between matrix products and attention. The time of this mix is
compared with the sum of its parts, each timed alone.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import regard
from bench._skips import skip
from bench.harness import Case, Options, Versus
from bench.parity import Parity
from regard.attention.native import engine

SHAPES = ((1, 8, 64, 64), (16, 8, 64, 64), (8, 12, 197, 64))
PRODUCTS = 4
"""Number of matrix products per call, each followed by attention."""


def cases(options: Options) -> Iterator[Case]:
    if engine.module is None:
        skip("threads", "everything", f"the native kernels are missing: {engine.reason}")
        return
    for shape in SHAPES[:1] if options.quick else SHAPES:
        yield case(shape)


def case(shape: tuple[int, int, int, int]) -> Case:
    batch, heads, tokens, width = shape
    x = torch.randn(batch * tokens, heads * width)  # (B·T, W)
    weight = torch.randn(heads * width, heads * width) / (heads * width) ** 0.5

    def project(x: Tensor) -> Tensor:
        return x @ weight

    def attend(x: Tensor) -> Tensor:
        q = x.view(batch, tokens, heads, width).transpose(1, 2)  # (B, H, T, D)
        return regard.attend(q, q, q, backend="native").transpose(1, 2).reshape(x.shape)

    def mixed() -> Tensor:
        y = x
        for _ in range(PRODUCTS):
            y = attend(project(y))
        return y

    def separate() -> Tensor:
        for part in (project, attend):
            for _ in range(PRODUCTS):
                part(x)
        return x

    pool = engine.pool()
    contenders = {
        "in torch's pool": _with(pool, mixed),
        "own threads": _with(0, mixed),
        "each part alone": _with(pool, separate),
    }
    versus = [
        Versus("in torch's pool", "own threads"),
        Versus("in torch's pool", "each part alone", ">= 0.9"),
    ]
    return Case(
        "product and attention",
        str(shape),
        contenders,
        versus,
        Parity("in torch's pool", contenders=("own threads",)),
    )


def _with(pool: int, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return `run` with the kernels bound to this pool. Afterwards torch's pool is bound again."""

    def bound() -> Tensor:
        assert engine.module is not None
        engine.module.use_pool(pool)
        try:
            return run()
        finally:
            engine.module.use_pool(engine.pool())

    return bound
