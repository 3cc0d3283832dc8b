"""The training loop of all tasks.

    restore the last undamaged state, or start from the beginning
    until a limit is reached:
        step: sum gradients over batches and processes, divide them by the number of tokens, clip; AdamW step at the
              scheduled learning rate; update the weight average
        every `log_every` steps: write a record of metrics; raise if the loss is not finite
        every `evaluate_every` steps: evaluate the averaged weights; save them if they are the best so far
        every `save_every` steps or `save_seconds`, and on a signal: save the state
    save the state, draw the curves, print where the results are

A run limited by steps or epochs depends only on its settings. However often it is interrupted and resumed, its final
weights are bit-identical. A run limited by minutes is not reproducible, because its schedule follows the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from ..core.process import keep_freed
from ..tasks.task import BatchType, Task
from .config import Training, device_of
from .distributed import group
from .logbook import Hook, Logbook, Outcome, evaluation_due, reached
from .progress import Display
from .session import Session
from .signals import Signals


def fit(
    task: Task[BatchType],
    config: Training,
    folder: str | Path,
    *,
    recipe: Mapping[str, object] | None = None,
    digests: Mapping[str, str] | None = None,
    hooks: Sequence[Hook] = (),
    display: Display | None = None,
) -> Outcome:
    """Train until a limit is reached. If the folder holds a run, resume it.

    Args:
        task: data, model, loss and metric.
        config: training settings.
        folder: folder of the run.
        recipe: further settings by name (model, data, …). They are stored in config.json beside
            {"training": config}. A run cannot be resumed with other settings.
        digests: digests of files in the folder that the weights depend on (vocabularies, corpora), by name. They are
            stored with weights and states, which cannot be loaded beside other files. With digests, `task.save` is not
            called.
        hooks: functions called with each record of metrics.
        display: progress display; by default, the terminal.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, once the state is saved (a KeyboardInterrupt).
        Diverged: if the loss is not finite (a ValueError).
        Unwritable: if the disk is full (an OSError).
        ValueError: if a setting is invalid.

    >>> import tempfile, torch
    >>> import numpy as np
    >>> from regard.data import Augmentation, Images, Normal, Shape
    >>> from regard.models import CNN, CNNConfig
    >>> from regard.tasks import ClassifyImages, ImageClassifier
    >>> from regard.training import Silent
    >>> images = Images(np.repeat(np.uint8([20, 240, 20, 240]), 64).reshape(4, 8, 8), [0, 1, 0, 1], ["dark", "light"])
    >>> model = CNN(CNNConfig(classes=2, widths=(4,), blocks=1))
    >>> classifier = ImageClassifier(model, images.classes, Shape(8, 8, 1), Normal((0.5,), (0.25,)))
    >>> task = ClassifyImages(classifier, images, images, batch=4, augmentation=Augmentation(crop=0, erase=0.0))
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> outcome = fit(task, Training(steps=20, warmup=2, device="cpu"), folder, display=Silent())
    >>> outcome.step, outcome.reason, outcome.best                      # accuracy
    (20, 'steps', 1.0)
    >>> fit(task, Training(steps=20, warmup=2, device="cpu"), folder, display=Silent()).trained     # already finished
    False
    """
    config.check()
    keep_freed()
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        processes = stack.enter_context(group(device_of(config.device)))
        log = stack.enter_context(Logbook(Path(folder), processes, hooks, display or Display()))
        log.begin(task, {"training": asdict(config), **(recipe or {})}, digests or {})
        session = Session(task, config, processes, signals)
        log.resume(session)
        session.check_warmup()
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
