"""The loop that trains every model here.

    take up the last good state, or begin
    until a limit is reached:
        a step: gradients of some batches, summed over batches and processes, divided by their tokens; clip; AdamW
                at the learning rate of the schedule; average the weights
        now and then: write a line of metrics; stop if the loss is no number
        now and then: evaluate the averaged weights; keep them if they are the best; count misses
        now and then, and when asked to stop: save the state
    save, draw, say where everything is

A run that is limited in steps or epochs is a function of its settings: interrupted and taken up again, however often,
it ends in the same weights to the bit. One that is limited in minutes is not, as its schedule follows the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.process import keep_freed
from ..tasks.task import Task
from .config import Training, device_of
from .distributed import group
from .logbook import Hook, Logbook, Outcome, evaluation_due, reached
from .progress import Display
from .session import Session
from .signals import Signals


def fit(
    task: Task,
    config: Training,
    folder: str | Path,
    *,
    recipe: Mapping[str, Any] | None = None,
    digests: Mapping[str, str] | None = None,
    hooks: Sequence[Hook] = (),
    display: Display | None = None,
) -> Outcome:
    """Train until a limit is reached; on a folder that holds a run, go on with it. `recipe` holds the settings besides
    `config`, by name (model, data, …): config.json has them beside {"training": config}; others are refused. `digests`
    are those of files in the folder that the weights depend on (vocabularies, corpora), by name: they are stored with
    weights and states, which are refused beside other files. With them, `task.save` is not called.

    Raises `Interrupted` (a KeyboardInterrupt) after Ctrl-C or SIGTERM, once the state is saved; `Diverged` (a
    ValueError) when the loss is no number; `Unwritable` (an OSError) on a full disk; ValueError for wrong settings.
    """
    config.check()
    keep_freed()
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        processes = stack.enter_context(group(device_of(config.device)))
        log = stack.enter_context(Logbook(Path(folder), processes, hooks, display or Display()))
        log.begin(task, {"training": asdict(config), **(recipe or {})}, digests or {})
        session = Session(task, config, processes, signals)
        log.take_up(session)
        if session.progress.finished and reached(session):
            return log.conclude(session, trained=False)
        steps = session.batches()
        while True:
            if evaluation_due(session):
                log.evaluate(session)
            if session.stopping:
                log.stop(session)
            if reached(session):
                break
            if log.saving_due(session):
                log.save(session)
            session.step(next(steps))
            log.advance(session)
        log.end(session)
        return log.conclude(session, trained=True)
