"""The outputs of a run: its folder, the display and hooks. Only the first process writes."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch

from ..core.files import write
from ..pictures.training_charts import draw as draw
from ..tasks.run_files import CONFIG, config_digest
from ..tasks.task import Task
from . import checkpoint
from .distributed import Group
from .progress import Display, Metrics, Silent
from .random_state import preserve_rng_states
from .run_folder import Run
from .session import BUDGET, Session
from .signals import Aborted, Interrupted
from .weight_average import averaged_weights

Hook: TypeAlias = Callable[[Metrics], None]
"""Called with each record of metrics.jsonl, for example to log it elsewhere."""
DRAW_SECONDS = 60.0
"""Minimum time between drawings of the curves. The final one is always drawn."""
PREVIEW_SECONDS = 2.0
"""Time between displays of the loss before the first record."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    >>> outcome = Outcome(Path("run"), "steps", 200, 3, 12.5, best=31.2, best_step=150, trained=True)
    >>> f"{outcome.best} at step {outcome.best_step}"
    '31.2 at step 150'
    """

    folder: Path
    reason: str
    """Limit that ended the run: steps, epochs, minutes or patience."""
    step: int
    epoch: int
    seconds: float
    best: float | None
    """Best value of the goal."""
    best_step: int
    trained: bool
    """Whether this call took any step. False if the run was already finished."""


class Logbook:
    """Writes everything that persists after a run: metrics, states, the best weights and curves."""

    def __init__(self, folder: Path, group: Group, hooks: Sequence[Hook], display: Display) -> None:
        self.folder, self.group, self.hooks = folder, group, hooks
        self.display = display if group.first else Silent()
        self._run: Run | None = None
        self.fingerprints: dict[str, str] = {}
        self._saved = (0, 0.0)  # step and seconds of the last state
        self._drawn = time.monotonic()
        self._previewed = math.inf  # seconds of the last preview of the loss; no more after the first record

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

    def begin(self, task: Task[Any], settings: Mapping[str, object], digests: Mapping[str, str]) -> None:
        """Open the folder of a new run, or of an existing one with the same settings.

        `digests` are those of files that already exist in the folder. Without them, the task writes its files.
        """
        self.fingerprints = {CONFIG: config_digest(settings), **digests}
        self.display.unit = task.unit
        refused: Exception | None = None
        try:
            if self.group.first:
                self._run = Run(self.folder)
                if not self._run.exists and not digests:
                    task.save(self.folder)
                self._run.begin(settings)
        except (OSError, ValueError) as error:
            refused = error
        (failed,) = self.group.broadcast(float(refused is not None))  # otherwise the other processes would hang
        if refused is not None:
            raise refused
        if failed:
            raise ValueError("training: the first process could not start; see its error message.")

    def resume(self, session: Session) -> None:
        """Restore the last undamaged state into the session, if there is one."""
        state = checkpoint.latest(self.folder, self.fingerprints) if self.group.first else None
        (step,) = self.group.broadcast(-1.0 if state is None else float(state[0].step))
        if step >= 0:
            progress, tensors = state or checkpoint.load(checkpoint.state_path(self.folder, int(step)))
            session.restore(progress, tensors)
        at = session.progress
        self._saved = (at.step, at.seconds)
        self._previewed = at.seconds
        if self.group.first:
            self.run.truncate_metrics(at.metrics)
            for path in checkpoint.states(self.folder):
                if (checkpoint.step_of(path) or 0) > at.step:  # damaged; `latest` warned about it
                    shutil.rmtree(path)
        if not at.finished:
            self.display.say(f"{'resuming after' if at.step else 'training from'} step {at.step:,}: {self.folder}")

    def advance(self, session: Session) -> None:
        """Update the display after a step, and write a record of metrics if one is due."""
        at, minutes = session.progress, session.config.minutes
        session.check_warmup()
        by_time = at.seconds / (60 * minutes) if minutes else 0.0
        by_steps = at.step / session.total
        last = (session.evaluation_seconds or 0.0) if by_steps > by_time else 0.0  # a limit in minutes includes it
        self.display.advance(at.step, min(1.0, max(by_steps, by_time)), at.seconds, evaluation=last)
        if at.step % session.config.log_every == 0:
            self._log_training(session)
            self._previewed = math.inf
        elif self.group.first and at.seconds - self._previewed >= PREVIEW_SECONDS:
            session.check()
            self._previewed = at.seconds
            means = session.window.means(at.seconds)
            self.display.preview({"event": "train", "step": at.step, "epoch": session.epochs, **means})

    def _log_training(self, session: Session) -> None:
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
        """Evaluate the averaged weights in the first process and share the result with the others."""
        session.check()
        at, stopping = session.progress, False
        began, minutes = time.monotonic(), session.config.minutes
        if self.group.first:
            session.task.deadline = None if minutes is None else began + BUDGET * 60 * minutes
            session.task.report = self.display.evaluating
            self.display.evaluating(0.0, at.step)
            try:
                metrics, samples = _evaluated(session)
            except Aborted:
                stopping = True
            else:
                self._update_best(session, metrics)
                self.run.samples(at.step, samples)
                if time.monotonic() - self._drawn > DRAW_SECONDS:
                    self._draw(session)
        values = (math.nan if at.best is None else at.best, at.best_step, at.misses, at.evaluated, stopping)
        best, *counts, session.evaluation_seconds = self.group.broadcast(*values, time.monotonic() - began)
        at.best = None if math.isnan(best) else best
        at.best_step, at.misses, at.evaluated = map(int, counts[:3])
        session.stopping |= bool(counts[3])

    def _update_best(self, session: Session, metrics: Mapping[str, float]) -> None:
        """Record an evaluation, and save the weights if it is the best so far."""
        at, (goal, direction) = session.progress, session.task.goal
        if goal not in metrics or direction not in ("max", "min"):
            raise ValueError(
                f'training: goal ({goal}, {direction}) must be a metric of evaluate and "max" or "min"; got '
                f"{', '.join(metrics)}. Change the task's goal."
            )
        value = float(metrics[goal])
        if self._is_better(session, metrics):
            at.best, at.best_step, at.misses = value, at.step, 0
            at.best_loss = float(metrics["loss"]) if "loss" in metrics else None
            self.run.save_weights(session.average.weights(), self.fingerprints, step=at.step, goal=goal, value=value)
        else:
            at.misses += 1
        at.evaluated = at.step
        self._record({"event": "evaluate", "step": at.step, "epoch": session.epochs, **metrics})

    def _is_better(self, session: Session, metrics: Mapping[str, float]) -> bool:
        """Return whether an evaluation has a better value of the goal, or the same value and a lower loss."""
        at, (goal, direction) = session.progress, session.task.goal
        value = float(metrics[goal])
        if at.best is None or math.isnan(value):
            return not math.isnan(value)
        if value == at.best:
            return at.best_loss is not None and float(metrics.get("loss", math.nan)) < at.best_loss
        return value > at.best if direction == "max" else value < at.best

    def saving_due(self, session: Session) -> bool:
        """Return whether a state is due, by steps or by time."""
        at, config = session.progress, session.config
        step, seconds = self._saved
        by_steps = config.save_every > 0 and at.step % config.save_every == 0
        by_time = config.save_seconds > 0 and at.seconds - seconds >= config.save_seconds
        return at.step > step and (by_steps or by_time)

    def save(self, session: Session) -> Path:
        """Write the state. Raise `Diverged` instead if the loss or a weight is not finite."""
        session.check()
        at = session.progress
        at.window = session.window.values()
        tensors = session.tensors()
        if self.group.first:
            at.metrics = self.run.sync_metrics()
            checkpoint.save(self.folder, at, tensors, self.fingerprints)
        self._saved = (at.step, at.seconds)
        return checkpoint.state_path(self.folder, at.step)

    def stop(self, session: Session) -> NoReturn:
        """Save the state, print how to resume, and raise `Interrupted`."""
        path = self.save(session)
        if self.group.first:
            self._draw(session)
        message = f"stopped after step {session.progress.step:,}; saved: {path}. Run the same command again to resume."
        self.display.say(message)
        raise Interrupted(message)

    def end(self, session: Session) -> None:
        """Write the last record of metrics and the last state."""
        if session.window.sums.steps:
            self._log_training(session)
        session.progress.finished = reached(session)
        self.save(session)

    def conclude(self, session: Session, trained: bool) -> Outcome:
        """Draw the curves, print the result and its path, and return the outcome."""
        at, goal = session.progress, session.task.goal[0]
        best = "" if at.best is None else f"; best {goal} {at.best:.4g} at step {at.best_step:,}"
        if self.group.first:
            if not (self.folder / "model.safetensors").exists():  # no evaluation gave a number
                self.run.save_weights(session.average.weights(), self.fingerprints, step=at.step)
            if trained or not (self.folder / "curves.png").exists():
                self._draw(session)
            finished = "finished" if trained else "already finished"
            after = f"{at.step:,} steps and {at.seconds / 60:.1f} min"
            self.display.say(f"{finished} by {at.finished} after {after}{best}: {self.folder / 'model.safetensors'}")
        return Outcome(self.folder, at.finished, at.step, at.epoch, at.seconds, at.best, at.best_step, trained)

    def _draw(self, session: Session) -> None:
        write(self.folder / "curves.png", draw(self.run.records(), session.task.goal[0]))
        self._drawn = time.monotonic()


def _evaluated(session: Session) -> tuple[dict[str, float], list[tuple[str, str, str]]]:
    """Return metrics and samples of the averaged weights.

    A signal may abort the evaluation, but never the restoration of the training weights: hence the order of contexts.
    """
    model, task = session.model, session.task
    with averaged_weights(session.average, model), preserve_rng_states(), torch.no_grad():
        model.eval()
        try:
            with session.signals.abortable():
                return task.evaluate(), task.samples()
        finally:
            model.train()


def reached(session: Session) -> str:
    """Return the limit that ends the run, or an empty string."""
    at, config = session.progress, session.config
    limits = {
        "steps": config.steps is not None and at.step >= config.steps,
        "epochs": config.epochs is not None and at.epoch >= config.epochs,
        "minutes": config.minutes is not None and at.seconds + session.reserve >= 60 * config.minutes,
        "patience": 0 < config.patience <= at.misses,
    }
    return next((name for name, over in limits.items() if over), "")


def evaluation_due(session: Session) -> bool:
    """Return whether an evaluation is due: at its interval and at the end, but only once for each step."""
    at, every = session.progress, session.config.evaluate_every
    if at.step == at.evaluated:
        return False
    return (at.step % every == 0 if every else at.batch == 0) or bool(reached(session))
