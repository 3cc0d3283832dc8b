"""Shared parts of the demos: a progress bar for each model, resuming after an interruption, commands to try next."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..training import Display
from ..training.logbook import Outcome
from ..training.run_folder import Run
from ..training.signals import Interrupted

Recipe = TypeVar("Recipe")


def progress_bars(console: Console) -> Progress:
    """Return the area of the terminal that shows the bars."""
    return Progress(
        TextColumn("{task.description:<19}"),
        BarColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


def print_commands(console: Console, heading: str, *commands: Sequence[str]) -> None:
    """Print commands to try next."""
    console.print(f"\n{heading}")
    for command in commands:
        console.print(f"  {shlex.join(command)}", soft_wrap=True, markup=False)


class ModelBar(Display):
    """The bar of one model.

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

    def __enter__(self) -> ModelBar:
        self._bars.start_task(self._task)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, step: int, done: float, seconds: float, *, evaluation: float = 0.0) -> None:
        self._bars.update(self._task, completed=done, status=f"step {step:,}{self._result}")

    def report(self, record: Mapping[str, Any]) -> None:
        if record["event"] == "evaluate":
            self._result = f" · {self._format.format(record[self._metric])}"

    def say(self, words: str) -> None:
        """Ignore messages of the training loop, because the demo prints its own summary."""

    def train(
        self,
        train: Callable[[Recipe, Path, Display], Outcome],
        stored: Callable[[Path], object],
        recipe: Recipe,
        folder: Path,
    ) -> None:
        """Train a model. Resume a run with the same settings, and replace any other.

        Args:
            train: trains a recipe in a folder.
            stored: reads the recipe of a run.
            recipe: settings of the run.
            folder: folder of the run.
        """
        if not _is_run_of(folder, recipe, stored):
            shutil.rmtree(folder, ignore_errors=True)
        elif earlier := evaluations(folder):
            self.report(earlier[-1])
        try:
            outcome = train(recipe, folder, self)
        except Interrupted as stopped:
            self._bars.stop()
            self._bars.console.print(escape(str(stopped)), soft_wrap=True)
            raise
        self.advance(outcome.step, 1.0, outcome.seconds)  # an earlier demo may have finished it


def evaluations(folder: Path) -> list[Mapping[str, Any]]:
    """Return the records of all evaluations of a run, also of those before it was resumed."""
    return [record for record in Run(folder).records() if record["event"] == "evaluate"]


def _is_run_of(folder: Path, recipe: object, stored: Callable[[Path], object]) -> bool:
    try:
        return stored(folder) == recipe
    except (OSError, ValueError):  # no run, or a damaged one
        return False
