"""`auto` against the best of native, SDPA and eager over a grid of shapes.

    python -m bench auto

To measure as on another machine, set the variables of a host of `tests/hosts.py`, such as `avx2` or `baseline`. They
cap the instruction sets of our kernels, PyTorch, MKL and oneDNN, so that all contenders have the same ones.

SDPA and eager are called directly. If a call takes only tenths of a millisecond, the Python overhead of `attend` is
more than 3 % of it for any backend. Such shapes are reported without a bar.
"""

import statistics
from collections.abc import Iterator, Sequence

import torch

from bench.attention import Attend, contenders, step
from bench.harness import Case, Options, Result, Versus
from bench.parity import Parity
from regard.attention import backends
from regard.attention.native import engine
from regard.attention.request import Request

Shape = tuple[int, int, int, int, int]
SQUARE: tuple[Shape, ...] = (  # (B, H, Tq, Tk, D), each also with a causal mask
    (512, 8, 8, 8, 32),
    (200, 8, 12, 12, 64),
    (128, 8, 16, 16, 64),
    (256, 4, 20, 20, 32),
    (64, 8, 32, 32, 64),
    (64, 12, 40, 40, 64),
    (24, 8, 48, 48, 64),
    (24, 6, 50, 50, 32),
    (32, 8, 64, 64, 64),
    (32, 4, 64, 64, 128),
    (16, 12, 96, 96, 64),
    (8, 12, 128, 128, 64),
    (32, 8, 128, 128, 32),
    (16, 12, 197, 197, 64),
    (8, 8, 256, 256, 32),
    (4, 16, 256, 256, 128),
    (3, 12, 300, 300, 64),
    (4, 8, 384, 384, 64),
    (1, 1, 512, 512, 64),
    (2, 8, 512, 512, 64),
    (8, 12, 512, 512, 64),
    (1, 6, 700, 700, 96),
    (2, 8, 1024, 1024, 32),
    (1, 4, 1024, 1024, 128),
    (1, 1, 2048, 2048, 64),
    (1, 12, 2048, 2048, 64),
)
CROSS: tuple[Shape, ...] = (
    (64, 8, 1, 64, 64),
    (128, 4, 1, 50, 128),
    (40, 8, 1, 300, 64),
    (64, 8, 1, 512, 64),
    (16, 16, 1, 1024, 128),
    (64, 8, 1, 1024, 64),
    (1, 8, 1, 16384, 64),
    (64, 8, 4, 64, 64),
    (32, 8, 12, 77, 64),
    (64, 8, 20, 30, 64),
    (16, 8, 32, 256, 64),
    (4, 8, 512, 64, 64),
    (8, 12, 64, 1024, 64),
)
TINY: tuple[Shape, ...] = (
    (1, 1, 4, 4, 16),
    (1, 8, 16, 16, 64),
    (4, 8, 32, 32, 64),
    (1, 8, 64, 64, 64),
    (1, 8, 1, 64, 64),
)
HALF = tuple(shape for shape in SQUARE + CROSS if shape[-1] == 64)[::2]
"""Shapes that are also measured in bfloat16."""
ROUNDS = 9
"""Upper limit of rounds, so that the whole grid takes minutes rather than an hour."""
CLOSE = 0.04
PARITY = {torch.float32: (1e-3, 1e-4), torch.bfloat16: (5e-2, 5e-2)}
GOOD, WORST, HARD = 0.97, 0.9, 0.75
"""Targets: 95 % of calls reach `GOOD` times the speed of the best peer, and none is below `WORST`.

For calls that cannot always reach `WORST`, it is a goal, and the bar is `HARD`.
"""
BANDWIDTH = "one query per head is limited by memory bandwidth for every contender"
OVERHEAD = "with gradients, attend adds 90 µs of Python, a noticeable part of a call with 12 × 12 tokens"
SEVEN = "without AVX2, eager stores the weights and needs six matrix products; native stores none and needs seven"
ROUNDED = "eager multiplies in bfloat16 and rounds the scores to it, which no fused kernel does"


def cases(options: Options) -> Iterator[Case]:
    for shape in TINY if options.quick else SQUARE + CROSS + TINY:
        yield from _shape_cases(shape, torch.float32)
    for shape in () if options.quick else HALF:
        yield from _shape_cases(shape, torch.bfloat16)


def _shape_cases(shape: Shape, dtype: torch.dtype) -> Iterator[Case]:
    for is_causal in (False, True) if shape[2] == shape[3] else (False,):
        for backward in (False, True):
            yield case(shape, is_causal, backward, dtype)


def case(shape: Shape, is_causal: bool, backward: bool, dtype: torch.dtype) -> Case:
    batch, heads, queries, keys, width = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((batch, heads, tokens, width) for tokens in (queries, keys, keys, queries))
    q, k, v, upstream = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    arguments = tuple(x.requires_grad_(backward) for x in (q, k, v))
    functions = _contenders(is_causal, dtype)
    peers = tuple(name for name in functions if name != "auto")
    rtol, atol = PARITY[dtype]
    name = ("forward + backward" if backward else "forward") + (" causal" if is_causal else "")
    return Case(
        name,
        str(shape),
        {name: step(function, arguments, upstream if backward else None) for name, function in functions.items()},
        comparisons(shape, peers, backward, dtype),
        Parity("SDPA", rtol, atol),
        dtype=str(dtype).removeprefix("torch."),
        most_rounds=ROUNDS,
        close=CLOSE,
    )


def comparisons(shape: Shape, peers: tuple[str, ...], backward: bool, dtype: torch.dtype) -> list[Versus]:
    """Return the comparison with the best peer, with its bar, and with its goal if the bar would be too high."""
    if shape in TINY:
        return [Versus("auto", peers)]
    bar, lower = f">= {WORST}", f">= {HARD}"
    if dtype == torch.bfloat16:
        fused = tuple(peer for peer in peers if peer != "eager")
        return [Versus("auto", fused, bar), Versus("auto", "eager", goal=bar, reason=ROUNDED)]
    reason = None
    if shape[2] == 1:
        reason = BANDWIDTH
    elif backward and shape[2] * shape[3] <= 12 * 12:
        reason = OVERHEAD
    elif backward and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        reason = SEVEN
    return [Versus("auto", peers, lower, goal=bar, reason=reason) if reason else Versus("auto", peers, bar)]


def _contenders(is_causal: bool, dtype: torch.dtype) -> dict[str, Attend]:
    """Return `auto`, followed by the calls that it is compared with."""
    functions = contenders(is_causal)
    native = engine.module is not None and _supports("native", dtype)
    return {name: functions[name] for name in ("auto", *(("native",) if native else ()), "SDPA", "eager")}


def _supports(name: str, dtype: torch.dtype) -> bool:
    x = torch.empty(1, 1, 1, 1, dtype=dtype, device="meta")
    return backends.BACKENDS[name].refusal(Request.of(x, x, x)) is None


def conclude(results: Sequence[Result], options: Options) -> str:
    """Summarize how close `auto` comes to the best peer."""
    barred = [r for r in results if r.bar or r.goal] or list(results)
    worst = min(barred, key=lambda r: r.median)
    good = sum(r.median >= GOOD for r in barred)
    return (
        f"{len(barred)} comparisons: {good} ({good / len(barred):.0%}) reach {GOOD} of the best peer's speed. "
        f"Median: {statistics.median(r.median for r in barred):.2f}. Worst: {worst.median:.2f} of {worst.peer}, "
        f"{worst.case} {worst.shape} {worst.dtype}."
    )
