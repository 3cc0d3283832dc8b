"""Progress of a run: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

Metrics: TypeAlias = Mapping[str, str | int | float | None]
"""A record of metrics.jsonl: "event" ("train" or "evaluate"), "step", "epoch", and numbers by name."""


class Display:
    """Shows the progress of a run: `advance` at each step, `report` for each record of metrics, `say` for messages.

    >>> with Display(Console(width=80)) as display:
    ...     display.advance(step=50, done=0.25, seconds=2.0)
    ...     display.report({"event": "train", "step": 50, "epoch": 0.5, "loss": 2.5})
    ...     display.say("evaluating")
    step 50 · epoch 0.5 · loss 2.5
    evaluating
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._start: tuple[float, float] | None = None
        self._left = math.inf
        self._status = ""

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
            self._progress = Progress(*columns, console=self.console, transient=True, refresh_per_second=4)
            self._bar = self._progress.add_task("training", total=1.0, status="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, step: int, done: float, seconds: float) -> None:
        """Update after a step. `done` is the completed fraction of the run, `seconds` its time so far."""
        if self._start is None:
            self._start = (done, seconds)
        before, since = self._start
        self._left = (seconds - since) * (1 - done) / (done - before) if done > before else math.inf
        if self._progress is not None and self._bar is not None:
            status = " · ".join(filter(None, (self._status, clock(self._left))))
            self._progress.update(self._bar, completed=done, description=f"step {step:,}", status=status)

    def report(self, record: Metrics) -> None:
        """Show a record of metrics. Evaluations are printed; a terminal shows other records in the progress bar."""
        metrics = describe(record)
        if record["event"] == "train" and self._progress is not None:
            self._status = metrics
        elif record["event"] == "train":
            left = clock(self._left)
            self.say(f"step {record['step']:,} · epoch {record['epoch']:.4g} · {metrics}{' · ' + left if left else ''}")
        else:
            self.say(f"step {record['step']:,} · evaluated: {metrics}")

    def say(self, words: str) -> None:
        """Print a message."""
        self.console.print(escape(words), soft_wrap=True)


class Silent(Display):
    """A display that shows nothing.

    >>> Silent().say("not shown")
    """

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))


def describe(record: Metrics) -> str:
    """Format the metrics of a record for people.

    >>> describe({"event": "train", "step": 9, "loss": 2.34567, "tokens_per_second": 1543.2, "padding": 0.081})
    'loss 2.346 · 1,543 tokens/s · padding 8 %'
    """
    hidden = ("event", "step", "epoch", "tokens", "seconds", "learning_rate", "gradient_norm")
    return " · ".join(_one(name, value) for name, value in record.items() if name not in hidden)


def _one(name: str, value: Any) -> str:
    if name == "tokens_per_second":
        return f"{value:,.0f} tokens/s"
    if name == "padding":
        return f"padding {value:.0%}".replace("%", " %")
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def clock(seconds: float) -> str:
    """Format the remaining time; empty if it is unknown.

    >>> clock(42.0), clock(754.0), clock(7500.0), clock(math.inf)
    ('42 s left', '13 min left', '2 h 05 left', '')
    """
    if not math.isfinite(seconds):
        return ""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s left"
    return f"{minutes} min left" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} left"
