"""`python -m bench all`: run every benchmark to its end and print one summary.

Each benchmark runs in its own process, so that a crash does not stop the others and settings of one, such as threads or
the memory that the C library keeps, do not change the numbers of the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

ROUNDS = 5
"""Rounds of each comparison: fewer than for a single benchmark, because some calls take seconds."""
INTERRUPTED = 130
NOTHING_MEASURED = 3
VERDICTS = {0: "done", 1: "BAR MISSED", NOTHING_MEASURED: "skipped", INTERRUPTED: "interrupted"}
Start = Callable[[list[str]], int]
"""Runs `python -m bench` with arguments and returns its exit status."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one benchmark."""

    name: str
    status: int
    seconds: float
    bars: tuple[int, int] = (0, 0)
    """Number that are met, and number in all."""
    goals: tuple[int, int] = (0, 0)
    skipped: tuple[str, ...] = ()
    failed: bool = False
    """Whether it crashed, or its contenders disagreed."""

    @property
    def verdict(self) -> str:
        return f"FAILED ({self.status})" if self.failed else VERDICTS[self.status]


def start_process(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "bench", *arguments]).returncode


def run_all(
    names: Sequence[str],
    options: Sequence[str],
    bars: bool = True,
    start: Start = start_process,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Run the benchmarks one after another, print the summary and return the exit status.

    The status is 1 if a benchmark failed or missed a bar (unless `bars` is false), 130 after Ctrl-C, else 0.
    """
    outcomes: list[Outcome] = []
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}", file=sys.stderr)
        outcomes.append(_run(name, options, start, clock))
        if outcomes[-1].status == INTERRUPTED:
            break
    print_summary(outcomes)
    if outcomes and outcomes[-1].status == INTERRUPTED:
        return INTERRUPTED
    return int(any(outcome.failed or (bars and outcome.status == 1) for outcome in outcomes))


def _run(name: str, options: Sequence[str], start: Start, clock: Callable[[], float]) -> Outcome:
    begin = clock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "summary.json")
        try:
            status = start([name, *options, "--summary", str(path)])
        except KeyboardInterrupt:
            status = INTERRUPTED
        # A Python process that ends by an exception has status 1, as with a missed bar, but writes no summary.
        complete = path.exists()
        counts = json.loads(path.read_text(encoding="utf-8")) if complete else {}
    return Outcome(
        name,
        status,
        clock() - begin,
        bars=tuple(counts.get("bars", (0, 0))),
        goals=tuple(counts.get("goals", (0, 0))),
        skipped=tuple(counts.get("skipped", ())),
        failed=status != INTERRUPTED and not (complete and status in VERDICTS),
    )


def print_summary(outcomes: Sequence[Outcome], console: Console | None = None) -> None:
    """Print one line per benchmark, followed by what was skipped."""
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    summary = Table(title="all benchmarks", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    summary.add_column("benchmark")
    for heading in ("bars met", "goals reached", "skipped", "time", "result"):
        summary.add_column(heading, justify="right")
    for outcome in outcomes:
        summary.add_row(
            outcome.name,
            _share(outcome.bars),
            _share(outcome.goals),
            str(len(outcome.skipped) or ""),
            _minutes(outcome.seconds),
            outcome.verdict,
        )
    console.print(summary)
    for message in dict.fromkeys(message for outcome in outcomes for message in outcome.skipped):
        console.print(message, highlight=False, markup=False, soft_wrap=True)


def _share(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}" if counts[1] else ""


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
