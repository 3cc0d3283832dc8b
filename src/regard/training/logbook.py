"""What is kept and seen of a run: its folder, the screen, hooks. Of several processes only the first writes."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..core.files import write
from ..pictures.training_charts import draw
from ..tasks.run_files import CONFIG, config_digest
from ..tasks.task import Task
from . import checkpoint
from .distributed import Group
from .progress import Display, Silent
from .random_state import undisturbed
from .run_folder import Run
from .session import Session
from .signals import Abandoned, Interrupted
from .weight_average import applied

Hook = Callable[[Mapping[str, Any]], None]
"""Gets each record that goes into metrics.jsonl: for logging and looking."""
DRAW_SECONDS = 60.0
"""From one drawing of the curves to the next; the last one is always made."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    reason: str
    """steps, epochs, minutes or patience."""
    step: int
    epoch: int
    seconds: float
    best: float | None
    """The best value of the goal."""
    best_step: int
    trained: bool
    """Whether any step was taken now; not where the run had ended before."""


class Logbook:
    """The side of a run that outlives it."""

    def __init__(self, folder: Path, group: Group, hooks: Sequence[Hook], display: Display) -> None:
        self.folder, self.group, self.hooks = folder, group, hooks
        self.display = display if group.first else Silent()
        self._run: Run | None = None
        self.fingerprints: dict[str, str] = {}
        self._saved = (0, 0.0)  # step and seconds of the last state
        self._drawn = time.monotonic()

    def __enter__(self) -> Logbook:
        self.display.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.display.__exit__(*error)
        if self._run is not None:
            self._run.close()

    @property
    def run(self) -> Run:
        assert self._run is not None, "only the first process writes"
        return self._run

    def begin(self, task: Task, settings: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        """Open the folder: a new run, or one with the same settings. With digests of its files, they are there."""
        self.fingerprints = {CONFIG: config_digest(settings), **digests}
        refused: Exception | None = None
        try:
            if self.group.first:
                self._run = Run(self.folder)
                if not self._run.exists and not digests:
                    task.save(self.folder)
                self._run.begin(settings)
        except (OSError, ValueError) as error:
            refused = error
        (failed,) = self.group.agree(float(refused is not None))  # or the others would wait for ever
        if refused is not None:
            raise refused
        if failed:
            raise ValueError("training: the first process could not begin, and says why.")

    def take_up(self, session: Session) -> None:
        """Give the session the last good state, if there is one."""
        found = checkpoint.latest(self.folder, self.fingerprints) if self.group.first else None
        (step,) = self.group.agree(-1.0 if found is None else float(found[0].step))
        if step >= 0:
            progress, tensors = found or checkpoint.load(checkpoint.place(self.folder, int(step)))
            session.restore(progress, tensors)
        at = session.progress
        self._saved = (at.step, at.seconds)
        if self.group.first:
            self.run.cut(at.metrics)
            for path in checkpoint.states(self.folder):
                if path > checkpoint.place(self.folder, at.step):  # damaged, and named as such
                    shutil.rmtree(path)
        if not at.finished:
            self.display.say(f"{'going on after' if at.step else 'training from'} step {at.step:,}: {self.folder}")

    def advance(self, session: Session) -> None:
        """After each step: the screen; at its interval, a line of metrics."""
        at, minutes = session.progress, session.config.minutes
        done = max(at.step / session.total, at.seconds / (60 * minutes) if minutes else 0.0)
        self.display.advance(at.step, min(1.0, done), at.seconds)
        if at.step % session.config.log_every == 0:
            self._line(session)

    def _line(self, session: Session) -> None:
        session.check()
        at = session.progress
        self._record(
            {
                "event": "train",
                "step": at.step,
                "epoch": session.epochs,
                "tokens": at.tokens,
                "seconds": round(at.seconds, 3),
                "learning_rate": session.rate,
                **session.window.line(at.seconds),
            }
        )

    def _record(self, record: Mapping[str, Any]) -> None:
        if self.group.first:
            self.run.append(record)
            self.display.report(record)
            for hook in self.hooks:
                hook(record)

    def evaluate(self, session: Session) -> None:
        """Evaluate the averaged weights in the first process; the others learn what came of it."""
        session.check()
        at, stopping = session.progress, False
        if self.group.first:
            try:
                figures, samples = _evaluated(session)
            except Abandoned:
                stopping = True
            else:
                self._judge(session, figures)
                self.run.samples(at.step, samples)
                if time.monotonic() - self._drawn > DRAW_SECONDS:
                    self._draw(session)
        told = (math.nan if at.best is None else at.best, at.best_step, at.misses, at.evaluated, stopping)
        best, *counts = self.group.agree(*told)
        at.best = None if math.isnan(best) else best
        at.best_step, at.misses, at.evaluated = map(int, counts[:3])
        session.stopping |= bool(counts[3])

    def _judge(self, session: Session, figures: Mapping[str, float]) -> None:
        """Is it the best so far? Then its weights are kept."""
        at, (goal, direction) = session.progress, session.task.goal
        if goal not in figures or direction not in ("max", "min"):
            raise ValueError(
                f'training: goal ({goal}, {direction}) must be a name that evaluate gives, and "max" or "min"; got '
                f"{', '.join(figures)}. Change the task's goal."
            )
        value = float(figures[goal])
        ahead = at.best is None or (value > at.best if direction == "max" else value < at.best)
        if ahead and not math.isnan(value):
            at.best, at.best_step, at.misses = value, at.step, 0
            self.run.keep(session.average.weights(), self.fingerprints, step=at.step, goal=goal, value=value)
        else:
            at.misses += 1
        at.evaluated = at.step
        self._record({"event": "evaluate", "step": at.step, "epoch": session.epochs, **figures})

    def saving_due(self, session: Session) -> bool:
        at, config = session.progress, session.config
        step, seconds = self._saved
        by_steps = config.save_every > 0 and at.step % config.save_every == 0
        by_time = config.save_seconds > 0 and at.seconds - seconds >= config.save_seconds
        return at.step > step and (by_steps or by_time)

    def save(self, session: Session) -> Path:
        """Write the state; nothing that is no number gets into one."""
        session.check()
        at = session.progress
        at.window = session.window.values()
        tensors = session.tensors()
        if self.group.first:
            at.metrics = self.run.settle()
            checkpoint.save(self.folder, at, tensors, self.fingerprints)
        self._saved = (at.step, at.seconds)
        return checkpoint.place(self.folder, at.step)

    def stop(self, session: Session) -> NoReturn:
        """Save, say how to go on, and leave."""
        path = self.save(session)
        if self.group.first:
            self._draw(session)
        words = f"stopped after step {session.progress.step:,}; saved: {path}. Run the same command again to go on."
        self.display.say(words)
        raise Interrupted(words)

    def end(self, session: Session) -> None:
        """The last line of metrics and the last state."""
        if session.window.sums.steps:
            self._line(session)
        session.progress.finished = reached(session)
        self.save(session)

    def conclude(self, session: Session, trained: bool) -> Outcome:
        """Draw, and say how it ended and where the result is."""
        at, goal = session.progress, session.task.goal[0]
        best = "" if at.best is None else f"; best {goal} {at.best:.4g} at step {at.best_step:,}"
        if self.group.first:
            if not (self.folder / "model.safetensors").exists():  # no evaluation gave a number
                self.run.keep(session.average.weights(), self.fingerprints, step=at.step)
            if trained or not (self.folder / "curves.png").exists():
                self._draw(session)
            began = "finished" if trained else "finished before"
            after = f"{at.step:,} steps and {at.seconds / 60:.1f} min"
            self.display.say(f"{began} by {at.finished} after {after}{best}: {self.folder / 'model.safetensors'}")
        return Outcome(self.folder, at.finished, at.step, at.epoch, at.seconds, at.best, at.best_step, trained)

    def _draw(self, session: Session) -> None:
        write(self.folder / "curves.png", draw(self.run.records(), session.task.goal[0]))
        self._drawn = time.monotonic()


def _evaluated(session: Session) -> tuple[dict[str, float], list[tuple[str, str, str]]]:
    """Figures and samples of the averaged weights. A signal breaks off the evaluation, never what puts back the weights
    of training: hence the order of the contexts."""
    model, task = session.model, session.task
    with applied(session.average, model), undisturbed(), torch.no_grad():
        model.eval()
        try:
            with session.signals.droppable():
                return task.evaluate(), task.samples()
        finally:
            model.train()


def reached(session: Session) -> str:
    """The limit that ends the run, or nothing."""
    at, config = session.progress, session.config
    limits = {
        "steps": config.steps is not None and at.step >= config.steps,
        "epochs": config.epochs is not None and at.epoch >= config.epochs,
        "minutes": config.minutes is not None and at.seconds >= 60 * config.minutes,
        "patience": 0 < config.patience <= at.misses,
    }
    return next((name for name, over in limits.items() if over), "")


def evaluation_due(session: Session) -> bool:
    """At its interval and at the end; once for each step, also after an interruption."""
    at, every = session.progress, session.config.evaluate_every
    if at.step == at.evaluated:
        return False
    return (at.step % every == 0 if every else at.batch == 0) or bool(reached(session))
