"""The recipe of a training call: its module, its dataclass of settings, and the defaults of a run to resume."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...core.setting_files import read_settings
from ...tasks.run_files import read_config
from . import pretrain_bert, train_image_classifier, train_language_model, train_text_classifier, train_translator

MODULES: Mapping[str, Any] = {
    "translate": train_translator,
    "language": train_language_model,
    "pretrain": pretrain_bert,
    "classify": train_text_classifier,
    "images": train_image_classifier,
}
"""Modules with `KINDS`, `train` and `stored`, by the name of the recipe in config.json."""


class Choice(NamedTuple):
    """Everything that is known about a training call before its settings are read."""

    module: Any
    kind: type
    """Dataclass of its settings."""
    defaults: Any
    """Settings of the run in the folder, or of the run to continue; None for those of the class."""
    values: dict[str, Any]
    """Settings from the file, by name."""


def choose(
    recipe: str,
    folder: str | os.PathLike[str] | None,
    *,
    kind: str | None = None,
    start: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Choice:
    """Choose the recipe for a call.

    Args:
        recipe: name of the recipe: translate, language, pretrain, classify or images.
        folder: folder of the run; its settings are the defaults if it exists.
        kind: kind of model, such as recurrent; by default, that of the run, or the first of the recipe.
        start: run or model directory to start from.
        config: file of settings. They replace the defaults.

    Raises:
        ValueError: if there is no such kind, or the run or the file is of another recipe.
    """
    module = MODULES[recipe]
    values = {} if config is None else _file_values(config, recipe)
    stored_kind = values.pop("kind", None)
    kind = kind or stored_kind
    start = start or values.get("from") or values.get("start")
    previous = module.stored(folder) if folder is not None and (Path(folder) / "config.json").exists() else None
    kinds = module.KINDS
    if "finetune" in kinds and kind is None and start:
        kind = "finetune"
    if kind is not None and (not isinstance(kind, str) or kind not in kinds):
        raise ValueError(f"{recipe}: kind ({kind}) must be one of {', '.join(kinds)}.")
    if previous is None and start and hasattr(module, "continued"):
        previous = module.continued(start)
    chosen = type(previous) if previous is not None and kind is None else kinds[kind or next(iter(kinds))]
    return Choice(module, chosen, previous if isinstance(previous, chosen) else None, values)


def _file_values(path: str | os.PathLike[str], recipe: str) -> dict[str, Any]:
    values = read_settings(path)
    stored = values.pop("recipe", recipe)
    if stored != recipe:
        raise ValueError(f"{recipe}: config ({path}) must hold settings of {recipe}; got those of {stored}.")
    return values


def recipe_of(folder: str | os.PathLike[str] | None) -> object:
    """Return the name of the recipe of the run in a folder; None if there is no run."""
    if folder is None or not (Path(folder) / "config.json").exists():
        return None
    return read_config(folder).get("recipe")
