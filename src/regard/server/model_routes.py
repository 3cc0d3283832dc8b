"""Charts for the page `explain.html`: one for each mechanism, and `run` for the model of the target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .guard import RequestError
from .target import Target

if TYPE_CHECKING:
    from ..explain.recorded_models import Explained

MAX_TEXT_LENGTH = 500
"""Maximum number of characters in a text: a chart shows a few words."""
RUN = "run"


def explainable_model(target: Target) -> tuple[Any, Path | None] | None:
    """Return the explainable model of a target and its image, or None if it has no such model."""
    model = next(filter(None, (getattr(target, name, None) for name in ("translator", "classifier", "language"))), None)
    return None if model is None else (model, getattr(target, "image", None))


def available_charts(target: Target) -> dict[str, Any]:
    """Return the available charts: mechanisms with their default texts, and the title of the target's model."""
    from ..explain import MECHANISMS
    from ..explain.trained_models import mechanism_of

    run, title = explainable_model(target), None
    if run is not None:
        with suppress(ValueError):  # a model without attention
            mechanism_of(run[0])
            title = target.snapshot.title
    return {"mechanisms": [{"name": one.name, "text": one.text} for one in MECHANISMS.values()], "run": title}


def chart_function(target: Target, name: str, text: str | None) -> Callable[[], dict[str, Any]]:
    """Return a function that creates the requested chart."""
    from ..explain import MECHANISMS, draw

    if text is not None and len(text) > MAX_TEXT_LENGTH:
        raise RequestError(
            413, f"text ({len(text):,} characters) must be at most {MAX_TEXT_LENGTH}. A chart shows a few words."
        )
    run = explainable_model(target)
    if name == RUN and run is not None:
        model, image = run
        return lambda: draw(_explained(model, text, image, target.snapshot.title)).to_dict()
    if name not in MECHANISMS:
        raise RequestError(404, f"mechanism ({name[:40]!r}) must be one of {', '.join(MECHANISMS)}.")
    return lambda: draw(MECHANISMS[name].explain(text)).to_dict()


def _explained(model: Any, text: str | None, image: Path | None, title: str) -> Explained:
    """Record the model of a target. Of a longer prompt, a language model is recorded on the last tokens."""
    from ..explain.recorded_models import LONGEST, language_model
    from ..explain.trained_models import explain_run
    from ..tasks.language_model import LanguageModel

    if isinstance(model, LanguageModel) and text is not None:
        ids = model.vocabulary.encode(text)
        if len(ids) > LONGEST:
            title = f"{title} (the last {LONGEST} of {len(ids)} tokens)"
            return language_model(model.model, ids[-LONGEST:], model.vocabulary.pieces, title)
    return explain_run(model, text, image, title)
