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
    ...     display.evaluating(0.0)
    ...     display.say("finished")
    step 50 · epoch 0.5 · loss 2.5
    step 50 · evaluating …
    finished

    Before the first record, `preview` shows the loss:

    >>> Display(Console(width=80)).preview({"event": "train", "step": 3, "epoch": 0.1, "loss": 6.5})
    step 3 · epoch 0.1 · loss 6.5
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._start: tuple[float, float] | None = None
        self._left = math.inf
        self._status = ""
        self._step = 0
        self._previewed = False
        self.unit = "tokens"
        """Units of the speed: tokens, texts or images."""

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

    def advance(self, step: int, done: float, seconds: float, *, evaluation: float = 0.0) -> None:
        """Update after a step.

        Args:
            step: number of steps so far.
            done: completed fraction of the run.
            seconds: its time so far.
            evaluation: expected duration of the evaluation after the last step, in seconds.
        """
        if self._start is None:
            self._start = (done, seconds)
        self._step, (before, since) = step, self._start
        self._left = (seconds - since) * (1 - done) / (done - before) + evaluation if done > before else math.inf
        if self._progress is not None and self._bar is not None:
            status = " · ".join(filter(None, (self._status, clock(self._left))))
            self._progress.update(self._bar, completed=done, description=f"step {step:,}", status=status)

    def report(self, record: Metrics) -> None:
        """Show a record of metrics. Evaluations are printed; a terminal shows other records in the progress bar."""
        metrics = describe(record, self.unit)
        self._previewed = True
        if record["event"] == "train" and self._progress is not None:
            self._status = metrics
        elif record["event"] == "train":
            left = clock(self._left)
            self.say(f"step {record['step']:,} · epoch {record['epoch']:.4g} · {metrics}{' · ' + left if left else ''}")
        else:
            self.say(f"step {record['step']:,} · evaluated: {metrics}")

    def preview(self, record: Metrics) -> None:
        """Show the loss and speed before the first record: in the progress bar, or on one line."""
        if self._progress is not None:
            self._status = describe(record, self.unit)
        elif not self._previewed:
            self.report(record)

    def evaluating(self, done: float, step: int | None = None) -> None:
        """Show that an evaluation runs. `done` is its finished fraction; 0 announces it. `step` is the last step."""
        self._step = self._step if step is None else step
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, description=f"step {self._step:,}", status=f"evaluating, {done:.0%}")
        elif not done:
            self.say(f"step {self._step:,} · evaluating …")

    def say(self, words: str) -> None:
        """Print a message."""
        self.console.print(escape(words), soft_wrap=True)


class Silent(Display):
    """A display that shows nothing.

    >>> Silent().say("not shown")
    """

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))


def describe(record: Metrics, unit: str = "tokens") -> str:
    """Format the metrics of a record for people. `unit` is what the speed counts.

    >>> describe({"event": "train", "step": 9, "loss": 2.34567, "tokens_per_second": 1543.2, "padding": 0.081})
    'loss 2.346 · 1,543 tokens/s · padding 8 %'
    >>> describe({"tokens_per_second": 120.0}, "images")
    '120 images/s'
    """
    hidden = ("event", "step", "epoch", "tokens", "seconds", "learning_rate", "gradient_norm")
    return " · ".join(_one(name, value, unit) for name, value in record.items() if name not in hidden)


def _one(name: str, value: Any, unit: str) -> str:
    if name == "tokens_per_second":
        return f"{value:,.0f} {unit}/s"
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
