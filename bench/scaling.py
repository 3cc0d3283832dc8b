"""Growth of time and memory with length, 512 to 65,536 tokens of one head: attend, its gradients, and map verbs.

The exponent p of t = c·N^p is fitted to the logarithms. The bars are p ≤ 2.05 for time and p ≤ 1.05 for memory above
inputs and outputs. A series ends before a call that would take more than a minute, which the table then states. The
chart is written to OUT, or to docs/pictures with `--write`.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from bench import memory
from bench.attention import draw, inputs, step
from bench.harness import Figure, Options, Result
from bench.report import environment
from regard.attention.similarity import SimilarityArgument

LENGTHS = tuple(2**n for n in range(9, 17))
QUICK = LENGTHS[:3]
WIDTH = {"dot": 64, "additive": 16}
"""Additive scores cost one reciprocal per channel; a narrower head keeps 65,536² pairs within a minute."""
VERBS = ("forward", "forward + backward", "pool", "top", "entropy")
LONGEST = 60.0
"""Upper limit of the expected seconds of a call."""
ENOUGH = 0.2
"""Seconds for which short calls are repeated."""
FLOOR = 8 * memory.MIB
"""Memory below this cannot be distinguished from zero."""
PICTURE = Path(__file__).parent.parent / "docs/pictures/scaling.png"


@dataclass
class Series:
    """One verb of one similarity, measured for increasing lengths."""

    kind: str
    verb: str
    threads: int | None
    seconds: dict[int, float] = field(default_factory=dict)
    above: dict[int, float] = field(default_factory=dict)
    """Bytes above inputs and outputs."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.verb}"

    def time(self, length: int) -> float:
        self.seconds[length] = seconds(timed_call(self.kind, self.verb, length))
        return self.seconds[length]

    def memory(self, length: int) -> float:
        self.above[length] = memory.peak("bench.scaling:setup", self.kind, self.verb, length, threads=self.threads)
        return self.above[length] / memory.MIB

    def expected(self, length: int) -> float:
        """Estimate the seconds for a length from those for half the length."""
        return 4 * self.seconds.get(length // 2, 0.0)


def figures(options: Options) -> Iterator[Figure]:
    for series in (Series(kind, verb, options.threads) for kind in WIDTH for verb in VERBS):
        ended = ""
        for length in QUICK if options.quick else LENGTHS:
            if series.expected(length) > LONGEST:
                ended = f", longer calls exceed {LONGEST:.0f} s"
                break
            shape = f"({length}, {WIDTH[series.kind]})"
            yield Figure(f"{series.name}, time", shape, partial(series.time, length), "s")
            yield Figure(f"{series.name}, memory", shape, partial(series.memory, length), "MiB")
        for what, values, floor, bar in (
            ("time", series.seconds, 0.0, "<= 2.05"),
            ("memory", series.above, FLOOR, "<= 1.05"),
        ):
            lengths = f"{min(values, default=0)}…{max(values, default=0)}{ended}"
            limit = None if options.quick else bar
            yield Figure(f"{series.name}, {what}", lengths, partial(exponent, values, floor), "exponent of N", limit)


def exponent(values: dict[int, float], floor: float = 0.0) -> float:
    """Return the slope of log value over log N for values above `floor`, or 0 if fewer than two are.

    >>> exponent({2: 12.0, 4: 48.0, 8: 192.0})
    2.0
    >>> exponent({2: 1.0, 4: 7.0, 8: 14.0}, floor=5.0)
    1.0
    """
    measurable = {length: value for length, value in values.items() if value > floor}
    if len(measurable) < 2:
        return 0.0 if len(values) > 1 else math.nan
    return round(statistics.linear_regression(*zip(*logs(measurable), strict=True)).slope, 6)


def logs(values: dict[int, float]) -> Iterator[tuple[float, float]]:
    return ((math.log(length), math.log(value)) for length, value in values.items())


def seconds(run: Callable[[], object]) -> float:
    """Return the median time of repeated calls without the first. Long calls run only once."""
    taken: list[float] = []
    while not taken or (sum(taken) < ENOUGH and len(taken) < 100):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:] or taken)


def timed_call(kind: str, verb: str, length: int) -> Callable[[], object]:
    """Return the call to time. For a verb of a map, the map is created beforehand."""
    if verb in VERBS[:2]:
        return build_call(kind, verb, length)
    m = build_call(kind, "map", length)()
    assert isinstance(m, regard.AttentionMap) and m.statistic is not None  # computes the log-sum-exp now
    return lambda: evaluate(m, verb)


def setup(kind: str, verb: str, length: int) -> Callable[[], object]:
    """Return the call whose memory is measured, after a warm-up call on few tokens. It includes creating the map."""

    def call(length: int) -> Callable[[], object]:
        if verb in VERBS[:2]:
            return build_call(kind, verb, length)
        mapped = build_call(kind, "map", length)
        return lambda: evaluate(mapped(), verb)

    call(LENGTHS[0] // 2)()
    return call(length)


def build_call(kind: str, what: str, length: int) -> Callable[[], object]:
    backward = what == "forward + backward"
    q, k, v, upstream = draw((1, length, WIDTH[kind]), 4)
    w = torch.ones(WIDTH[kind])
    arguments = inputs((q, k, v, w) if kind == "additive" else (q, k, v), torch.float32, backward)

    def attend(q: Tensor, k: Tensor, v: Tensor, *w: Tensor) -> Any:  # a context or a map
        similarity: SimilarityArgument = regard.Additive(w[0]) if w else "scaled_dot"
        if what == "map":
            return regard.attend(q, k, v, similarity=similarity, return_map=True)[1]
        return regard.attend(q, k, v, similarity=similarity)

    return step(attend, arguments, upstream if backward else None)


def evaluate(m: object, verb: str) -> object:
    assert isinstance(m, regard.AttentionMap)
    if verb == "pool":
        return m.pool(256, 256)
    return tuple(m.top(5)) if verb == "top" else m.entropy()


def conclude(results: Sequence[Result], options: Options) -> str:
    """Draw the measured values."""
    path = PICTURE if options.write else options.out / "scaling.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    _draw(results, path)
    return f"picture: {path}"


def _draw(results: Sequence[Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 5), layout="constrained")
    exponents = {r.case: r.median for r in results if r.quantity == "exponent of N"}
    for axis, unit, title in ((axes[0], "s", "time in seconds"), (axes[1], "MiB", "memory above inputs, MiB")):
        for name in dict.fromkeys(r.case for r in results if r.quantity == unit):
            kind, _, verb = name.rpartition(",")[0].partition(" ")
            series = [r for r in results if (r.case, r.quantity) == (name, unit)]
            points = [(int(r.shape[1:].partition(",")[0]), r.median) for r in series]
            style = {"linestyle": "-" if kind == "dot" else "--", "color": f"C{VERBS.index(verb)}", "marker": "."}
            axis.plot(*zip(*points, strict=True), label=f"{kind} {verb}: {exponents.get(name, math.nan):.2f}", **style)
        axis.set(yscale="log", xlabel="number of tokens N, one head (legend: exponent of N)", title=title)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda length, _: f"{length:,.0f}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    axes[1].axhspan(0, FLOOR / memory.MIB, color="0.93", zorder=0)  # indistinguishable from zero
    around = environment()
    figure.suptitle(f"{around['threads']} threads, {around['cpu']}, torch {around['torch']}", fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
