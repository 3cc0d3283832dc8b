"""Progress bars of `regard demo`, one for each model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..training import Display


def progress_bars(console: Console) -> Progress:
    """Return the area of the terminal that shows the bars."""
    return Progress(
        TextColumn("{task.description:<19}"),
        BarColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


class ModelBar(Display):
    """The bar of one model, which also records its evaluations.

    Args:
        progress: where the bar is shown. It starts with the training.
        name: label of the bar.
        metric: name of a metric in the records of evaluations.
        status: format of its value beside the bar.
    """

    def __init__(self, progress: Progress, name: str, metric: str, status: str) -> None:
        super().__init__(progress.console)
        self._bars, self._task = progress, progress.add_task(name, total=1.0, start=False, status="")
        self._metric, self._format, self._result = metric, status, ""
        self.curve: list[tuple[float, float]] = []
        """(step, value of the metric)"""

    def __enter__(self) -> ModelBar:
        self._bars.start_task(self._task)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, step: int, done: float, seconds: float, *, evaluation: float = 0.0) -> None:
        self._bars.update(self._task, completed=done, status=f"step {step:,}{self._result}")

    def report(self, record: Mapping[str, Any]) -> None:
        if record["event"] == "evaluate":
            value = record[self._metric]
            self._result = f" · {self._format.format(value)}"
            self.curve.append((float(record["step"]), value))

    def say(self, words: str) -> None:
        """Ignore messages of the training loop, because the demo prints its own summary."""
