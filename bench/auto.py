"""`auto` against the best of native, SDPA and eager over a grid of shapes; `--write` measures the table it is from.

    python -m bench auto --write     each backend at each shape of the grid → src/regard/attention/choices.csv
                                     (with --only: these lines alone)
    python -m bench auto             what `auto` makes of it, at these shapes and at some that are not in the table

SDPA and eager are called without regard. Where a call takes some tenths of a millisecond, the Python of `attend` is
more than 3 % of it, whatever is chosen: such shapes are in the table, and are shown, but have no bar.
"""

import ast
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import regard
from bench.attention import Attend, contenders, step
from bench.harness import Case, Options, Result, Versus
from bench.parity import Parity
from bench.report import environment
from regard.attention import choose, engine, measured

Shape = tuple[int, int, int, int, int]
SQUARE: tuple[Shape, ...] = (  # (B, H, Tq, Tk, D), all of them also under a causal mask
    (512, 8, 8, 8, 32),
    (128, 8, 16, 16, 64),
    (256, 4, 20, 20, 32),
    (64, 8, 32, 32, 64),
    (32, 8, 64, 64, 64),
    (8, 12, 128, 128, 64),
    (16, 12, 197, 197, 64),
    (8, 8, 256, 256, 32),
    (4, 16, 256, 256, 128),
    (1, 1, 512, 512, 64),
    (2, 8, 512, 512, 64),
    (8, 12, 512, 512, 64),
    (2, 8, 1024, 1024, 32),
    (1, 4, 1024, 1024, 128),
    (1, 1, 2048, 2048, 64),
    (1, 12, 2048, 2048, 64),
)
CROSS: tuple[Shape, ...] = (
    (64, 8, 1, 64, 64),
    (64, 8, 1, 512, 64),
    (16, 16, 1, 1024, 128),
    (64, 8, 1, 1024, 64),
    (1, 8, 1, 16384, 64),
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
BETWEEN: tuple[Shape, ...] = (
    (24, 8, 48, 48, 64),
    (3, 12, 300, 300, 64),
    (1, 6, 700, 700, 96),
    (200, 8, 12, 12, 64),
    (40, 8, 1, 300, 64),
    (32, 8, 12, 77, 64),
)
"""Not in the table: what it says of its neighbours has to do."""
HALF = tuple(shape for shape in SQUARE + CROSS if shape[-1] == 64)
ROUNDS = 9
"""At most: so many shapes are to take minutes, not an hour."""
CLOSE = 0.04
PARITY = {torch.float32: (1e-3, 1e-4), torch.bfloat16: (5e-2, 5e-2)}
TABLE = Path(measured.__file__).with_name(measured.FILE)


def cases(options: Options) -> Iterator[Case]:
    grid = TINY if options.quick else SQUARE + CROSS + TINY + (() if options.write else BETWEEN)
    for shape in grid:
        yield from _of_shape(shape, torch.float32, options)
    for shape in () if options.quick else HALF:
        yield from _of_shape(shape, torch.bfloat16, options)


def _of_shape(shape: Shape, dtype: torch.dtype, options: Options) -> Iterator[Case]:
    for is_causal in (False, True) if shape[2] == shape[3] else (False,):
        for backward in (False, True):
            yield case(shape, is_causal, backward, dtype, options.write)


def case(shape: Shape, is_causal: bool, backward: bool, dtype: torch.dtype, write: bool) -> Case:
    batch, heads, queries, keys, width = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((batch, heads, tokens, width) for tokens in (queries, keys, keys, queries))
    q, k, v, upstream = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    given = tuple(x.requires_grad_(backward) for x in (q, k, v))
    functions = _backends(shape, is_causal, dtype) if write else _peers(is_causal, dtype)
    bar = None if write or shape in TINY else ">= 0.97"
    first, *others = functions
    versus = [Versus(first, other) for other in others] if write else [Versus(first, tuple(others), bar)]
    rtol, atol = PARITY[dtype]
    name = ("forward + backward" if backward else "forward") + (" causal" if is_causal else "")
    return Case(
        name,
        str(shape),
        {name: step(function, given, upstream if backward else None) for name, function in functions.items()},
        versus,
        Parity("torch" if write else "SDPA", rtol, atol),
        dtype=str(dtype).removeprefix("torch."),
        most_rounds=ROUNDS,
        close=CLOSE,
    )


def _peers(is_causal: bool, dtype: torch.dtype) -> dict[str, Attend]:
    """`auto` first, then those that it is compared with."""
    known = contenders(is_causal)
    served = engine.module is not None and _serves("native", dtype)
    return {name: known[name] for name in ("auto", *(("native",) if served else ()), "SDPA", "eager")}


def _backends(shape: Shape, is_causal: bool, dtype: torch.dtype) -> dict[str, Attend]:
    """SDPA first: what the others are measured against. The explicit weights only where `auto` may store them."""
    batch, heads, queries, keys, _ = shape
    small = batch * heads * queries * keys <= choose.LARGEST_EXPLICIT
    names = ["torch", *(["native"] if _serves("native", dtype) else []), *(["reference"] if small else [])]

    def of(name: str) -> Attend:
        return lambda q, k, v: regard.attend(q, k, v, is_causal=is_causal, backend=name)

    return {name: of(name) for name in names}


def _serves(name: str, dtype: torch.dtype) -> bool:
    x = torch.empty(1, 1, 1, 1, dtype=dtype, device="meta")
    return choose.BACKENDS[name].refusal(choose.Request.of(x, x, x)) is None


def conclude(results: Sequence[Result], options: Options) -> str:
    """The table, or how `auto` did."""
    if not options.write:
        barred = [r for r in results if r.bar]
        worst = min(barred or results, key=lambda r: r.median)
        return (
            f"{len(barred)} calls with a bar; the worst is {worst.median:.2f} of {worst.peer}, {worst.case} "
            f"{worst.shape} {worst.dtype}; the median is {statistics.median(r.median for r in results):.2f}"
        )
    around = environment()
    where = f"{around['threads']} threads, {around['cpu']}, torch {around['torch']}"
    new = _lines(results)
    kept = [line for line in measured.parse(TABLE.read_text(encoding="utf-8")) if _call(line) not in map(_call, new)]
    TABLE.write_text(measured.write([*new, *kept], where), encoding="utf-8")
    return f"{len(new)} lines measured, {len(kept)} kept: {TABLE}"


def _call(line: measured.Line) -> tuple[object, ...]:
    return line.dtype, line.causal, line.gradient, line.sizes


def _lines(results: Sequence[Result]) -> list[measured.Line]:
    """Ratios of times to SDPA's, call by call → speeds as parts of the best."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for r in results:
        found.setdefault((r.case, r.shape, r.dtype), {r.ours: 1.0})[r.peer] = 1 / r.median
    lines = []
    for (name, shape, dtype), speeds in found.items():
        batch, heads, *rest = ast.literal_eval(shape)
        parts = tuple((backend, speed / max(speeds.values())) for backend, speed in speeds.items())
        lines.append(measured.Line(dtype, "causal" in name, "backward" in name, (batch * heads, *rest), parts))
    return lines
