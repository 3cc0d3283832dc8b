"""Charts of mechanisms, for the page `explain.html`: each by its name, and the model that is looked at as `run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .guard import Refused
from .target import Target

TEXT = 500
"""Characters of a text: a chart shows a few words."""
RUN = "run"


def run_of(target: Target) -> tuple[Any, Path | None] | None:
    """The model of a target that can be explained, and its image; None where there is none."""
    found = getattr(target, "translator", None) or getattr(target, "classifier", None)
    return None if found is None else (found, getattr(target, "image", None))


def offer(target: Target) -> dict[str, Any]:
    """What can be explained: names, what each reads where nothing is said, and the title of the model."""
    from ..explain import MECHANISMS

    run = run_of(target)
    title = None if run is None else target.shown.title
    return {"mechanisms": [{"name": one.name, "text": one.text} for one in MECHANISMS.values()], "run": title}


def asked(target: Target, name: str, text: str | None) -> Callable[[], dict[str, Any]]:
    """What makes the chart that was asked for."""
    from ..explain import MECHANISMS, draw
    from ..explain.trained_models import explain_run

    if text is not None and len(text) > TEXT:
        raise Refused(413, f"text ({len(text):,} characters) must be at most {TEXT}. A chart shows a few words.")
    run = run_of(target)
    if name == RUN and run is not None:
        model, image = run
        return lambda: draw(explain_run(model, text, image, target.shown.title)).told()
    if name not in MECHANISMS:
        raise Refused(404, f"mechanism ({name[:40]!r}) must be one of {', '.join(MECHANISMS)}.")
    return lambda: draw(MECHANISMS[name].explain(text)).told()
