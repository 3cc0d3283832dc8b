"""The measuring harness of all benchmarks: check equal outputs, time in interleaved rounds, report ratios.

Timings vary from run to run, so the result is a ratio rather than seconds. Each round times every contender once and
gives one ratio per pair. Bars apply to the median of these ratios, which is reported with its quartiles.

A bar is a limit that must be met: a benchmark that misses one fails. A goal is a limit that this hardware or the method
cannot reach yet. It is shown with its reason and never fails. A comparison may have both.

    warm up        a b c d      choose the number of calls per sample
    round 0        a b d c   -> one ratio per pair
    round 1        b c a d   -> another; positions and neighbours are balanced over the rounds
    round 2        c d b a
    round 3        d a c b

The preceding contender matters. A contender measured 10 % slower than an identical one if it ran after one with a
different memory access pattern (SDPA forward + backward after eager, 64 tokens). Therefore the order is balanced, and
each sample of short calls is preceded by one call that is not timed.
"""

import gc
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from bench.parity import Parity

Clock = Callable[[], float]
BAR = re.compile(r"(>=|<=)\s*(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Options:
    """Command-line options, passed to `cases` and `figures`."""

    rounds: int = 15
    seconds: float = 0.02
    threads: int | None = None
    """Number of torch threads; None keeps the current number."""
    quick: bool = False
    """Smoke test with small shapes and few rounds."""
    out: Path = Path("out/bench")
    write: bool = False
    """Save results in the repository. Only benchmarks whose `conclude` writes files use it."""


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set the number of torch threads inside the context; None keeps the current number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Fresh:
    """A contender that needs new inputs for each call: `run(prepare())`. Only `run` is timed."""

    prepare: Callable[[], Any]
    run: Callable[[Any], object]

    def __call__(self) -> object:
        return self.run(self.prepare())


@dataclass(frozen=True)
class Versus:
    """One comparison of a case: ours against a peer, with the bar for the ratio.

    With `per="flops"` or `"bytes"`, the time per unit of work is compared. The peer may then be a large matrix product
    or a plain copy, and the ratio is the achieved fraction of the machine's peak.
    """

    ours: str
    peer: str | tuple[str, ...]
    """Name of the peer. Of several, the one with the shortest median time is used."""
    bar: str | None = None
    """Such as ">= 1.4" or "<= 4.0"."""
    ratio: Literal["peer/ours", "ours/peer"] = "peer/ours"
    """"peer/ours" is the speedup of ours; "ours/peer" is the cost of ours in units of the peer's."""
    per: Literal["call", "flops", "bytes"] = "call"
    goal: str | None = None
    """A limit beyond the bar that is not required. It needs a reason."""
    reason: str | None = None
    """Why the goal is not a bar."""

    def __post_init__(self) -> None:
        _check_limits(self.bar, self.goal, self.reason)

    @property
    def peers(self) -> tuple[str, ...]:
        return (self.peer,) if isinstance(self.peer, str) else self.peer


@dataclass(frozen=True)
class Case:
    """Contenders that compute the same result from the same inputs, and the comparisons to report.

    >>> case = Case("sum", "(3,)", {"ours": lambda: 6, "loop": lambda: 1 + 2 + 3}, (Versus("ours", "loop"),))
    >>> measure(case, rounds=3, seconds=1e-4)[0].quantity
    'peer/ours'
    """

    name: str
    shape: str
    contenders: Mapping[str, Callable[[], object]]
    versus: Sequence[Versus]
    parity: Parity | None = None
    """Checked before timing starts."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """Contender → floating-point operations of one call."""
    bytes: Mapping[str, float] = field(default_factory=dict)
    """Contender → bytes that one call has to move."""
    dtype: str = "float32"
    most_rounds: int | None = None
    """Upper limit of rounds, for calls that take long."""
    close: float = 0.0
    """If a ratio is at most this far from its bar, the number of rounds is doubled."""

    def __post_init__(self) -> None:
        named = [n for v in self.versus for n in (v.ours, *v.peers)] + [*self.flops, *self.bytes]
        named += self.parity.names() if self.parity else ()
        for name in named:
            if name not in self.contenders:
                raise ValueError(
                    f"{self.name}: contender ({name!r}) must be one of {list(self.contenders)}; got {name!r}. "
                    "Add it to contenders or correct the name."
                )
        for v in self.versus:
            for name in (v.ours, *v.peers):
                if v.per != "call" and name not in getattr(self, v.per):
                    raise ValueError(
                        f"{self.name}: {v.per} ({sorted(getattr(self, v.per))}) must name every contender compared per "
                        f"{v.per}; got none for {name!r}. Add it, or compare per call."
                    )


@dataclass(frozen=True)
class Figure:
    """A number that is not a ratio of times: `measure()` returns it, in `unit`."""

    name: str
    shape: str
    measure: Callable[[], float]
    unit: str
    bar: str | None = None
    dtype: str = "float32"
    goal: str | None = None
    """See `Versus`, also for `reason`."""
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_limits(self.bar, self.goal, self.reason)


@dataclass(frozen=True)
class Result:
    """A measured comparison or figure; `quantity` is "peer/ours", "ours/peer" or a figure's unit."""

    case: str
    shape: str
    dtype: str
    ours: str
    peer: str
    quantity: str
    median: float
    low: float
    """First quartile over the rounds."""
    high: float
    """Third quartile."""
    bar: str | None
    met: bool | None
    """None if there is no bar."""
    rounds: int
    goal: str | None = None
    reached: bool | None = None
    """Whether the goal is reached; None if there is no goal."""
    reason: str | None = None
    ours_seconds: float | None = None
    peer_seconds: float | None = None
    ours_gflops: float | None = None
    peer_gflops: float | None = None
    ours_gbytes: float | None = None
    """Bandwidth in GB/s, as for `peer_gbytes`."""
    peer_gbytes: float | None = None


def meets(value: float, bar: str | None) -> bool | None:
    """Return whether `value` meets a bar such as ">= 1.4" or "<= 4.0", or None without a bar. NaN meets no bar.

    >>> meets(1.4, ">= 1.4"), meets(4.1, "<= 4.0"), meets(1.0, None)
    (True, False, None)
    """
    if bar is None:
        return None
    match = BAR.fullmatch(bar.strip())
    if not match:
        raise ValueError(f"bench: bar ({bar!r}) must read '>= NUMBER' or '<= NUMBER'; got {bar!r}. Try '>= 1.4'.")
    limit = float(match[2])
    return value >= limit if match[1] == ">=" else value <= limit


def _check_limits(bar: str | None, goal: str | None, reason: str | None) -> None:
    meets(1.0, bar)
    meets(1.0, goal)
    if (goal is None) != (reason is None):
        raise ValueError(
            f"bench: goal ({goal!r}) must have a reason, and a reason a goal; got reason {reason!r}. "
            "Say why the goal is not a bar, or use bar=."
        )


def order(names: Sequence[str], turn: int) -> list[str]:
    """Return the order of round `turn`. Over 2n rounds, every position and every predecessor occurs equally often.

    Williams, "Experimental designs balanced for the estimation of residual effects of treatments" (1949): 0, 1, n−1, 2,
    n−2, … shifted by one each round. Every other n rounds are reversed, which balances odd numbers of contenders.

    >>> [order("ab", turn) for turn in range(4)]
    [['a', 'b'], ['b', 'a'], ['b', 'a'], ['a', 'b']]
    """
    count = len(names)
    zigzag = [-(position // 2) if position % 2 == 0 else (position + 1) // 2 for position in range(count)]
    ordered = [names[(position + turn) % count] for position in zigzag]
    return ordered[::-1] if turn // count % 2 else ordered


def measure(case: Case, rounds: int = 15, seconds: float = 0.02, clock: Clock = time.perf_counter) -> list[Result]:
    """Check parity, warm up, time `rounds` interleaved rounds, and return one result per `Versus` of the case.

    A sample repeats its contender until it takes about `seconds`.
    """
    if rounds < 1 or not seconds > 0:
        raise ValueError(
            f"measure: rounds ({rounds}) and seconds ({seconds}) must be positive; got {rounds} and {seconds}. "
            "Try rounds=15, seconds=0.02."
        )
    if case.parity:
        case.parity.check(f"{case.name} {case.shape}", case.contenders)
    samples: dict[str, list[float]] = {name: [] for name in case.contenders}
    rounds = min(rounds, case.most_rounds or rounds)
    with _no_collection():
        counts = {name: _warm_up(name, run, seconds, clock) for name, run in case.contenders.items()}
        _run_rounds(case, range(rounds), counts, samples, clock)
        if any(_undecided(_result(case, versus, samples), case.close) for versus in case.versus):
            _run_rounds(case, range(rounds, 2 * rounds), counts, samples, clock)
    return [_result(case, versus, samples) for versus in case.versus]


def _run_rounds(
    case: Case, turns: Iterable[int], counts: Mapping[str, int], samples: Mapping[str, list[float]], clock: Clock
) -> None:
    for turn in turns:
        for name in order(list(case.contenders), turn):
            if counts[name] > 1:
                case.contenders[name]()  # not timed: the first call after another contender is slower
            samples[name].append(_sample(case.contenders[name], counts[name], clock) / counts[name])


def _undecided(result: Result, close: float) -> bool:
    return result.bar is not None and abs(result.median - float(result.bar.split()[-1].lstrip("<>="))) <= close


def measure_figure(figure: Figure) -> Result:
    """Measure the number once, without a spread."""
    value = float(figure.measure())
    return Result(
        case=figure.name,
        shape=figure.shape,
        dtype=figure.dtype,
        ours="",
        peer="",
        quantity=figure.unit,
        median=value,
        low=value,
        high=value,
        bar=figure.bar,
        met=meets(value, figure.bar),
        rounds=1,
        goal=figure.goal,
        reached=meets(value, figure.goal),
        reason=figure.reason,
    )


def _result(case: Case, versus: Versus, samples: Mapping[str, list[float]]) -> Result:
    works: dict[str, Mapping[str, float]] = {"call": {}, "flops": case.flops, "bytes": case.bytes}
    costs = {n: [s / works[versus.per].get(n, 1.0) for s in samples[n]] for n in (versus.ours, *versus.peers)}
    best = min(versus.peers, key=lambda name: statistics.median(costs[name]))
    ours, peer = costs[versus.ours], costs[best]
    over, under = (peer, ours) if versus.ratio == "peer/ours" else (ours, peer)
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    seconds = {name: statistics.median(samples[name]) for name in (versus.ours, best)}

    def rate(work: Mapping[str, float], name: str) -> float | None:
        return work[name] / seconds[name] / 1e9 if name in work else None

    return Result(
        case=case.name,
        shape=case.shape,
        dtype=case.dtype,
        ours=versus.ours,
        peer=best,
        quantity=versus.ratio if versus.per == "call" else f"{versus.ratio} per {versus.per}",
        median=median,
        low=low,
        high=high,
        bar=versus.bar,
        met=meets(median, versus.bar),
        rounds=len(ratios),
        goal=versus.goal,
        reached=meets(median, versus.goal),
        reason=versus.reason,
        ours_seconds=seconds[versus.ours],
        peer_seconds=seconds[best],
        ours_gflops=rate(case.flops, versus.ours),
        peer_gflops=rate(case.flops, best),
        ours_gbytes=rate(case.bytes, versus.ours),
        peer_gbytes=rate(case.bytes, best),
    )


def _sample(run: Callable[[], object], count: int, clock: Clock) -> float:
    """Return the seconds that `count` calls take."""
    if isinstance(run, Fresh):
        total = 0.0
        for _ in range(count):
            inputs = run.prepare()
            start = clock()
            run.run(inputs)
            total += clock() - start
        return total
    start = clock()
    for _ in range(count):
        run()
    return clock() - start


def _warm_up(name: str, run: Callable[[], object], seconds: float, clock: Clock) -> int:
    """Call `run` until it is warm, and return the number of calls for a sample of `seconds`."""
    fastest, total, calls = math.inf, 0.0, 0
    # Use the fastest call: one stalled call would make every later sample too short. Calls of a second or more run
    # only once.
    while calls < 10_000 and not (total >= seconds and (calls >= 3 or total >= 1.0)):
        elapsed = _sample(run, 1, clock)
        fastest, total, calls = min(fastest, elapsed), total + elapsed, calls + 1
    if not total > 0:
        raise ValueError(f"measure: clock must advance while {name} runs; got {calls} calls in 0 s. Use perf_counter.")
    return max(1, math.ceil(seconds / (fastest or total / calls)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now, and disable collection while timing."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
