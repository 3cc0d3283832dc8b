"""Settings of recipes: bounds, what config.json keeps of them, and how they are read back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ...core.settings import errors_of, from_values, refuse
from ...tasks.loading import read_recipe_config
from ..run_folder import check_settings

RecipeType = TypeVar("RecipeType")


def outside(name: str, value: float, low: int, high: int) -> list[str]:
    """Return an error if a setting of the data lies outside its bounds.

    >>> outside("tokens", 0, 1, 4096), outside("tokens", 1500, 1, 4096)
    (['data: tokens (0) must be at least 1.'], [])
    """
    if value < low:
        return [f"data: {name} ({value}) must be at least {low}."]
    return [] if value <= high else [f"data: {name} ({value}) must be at most {high:,}."]


def no_files(name: str, paths: Iterable[Path]) -> list[str]:
    """Return an error for each path that is not a file.

    >>> no_files("train", [Path("nowhere.txt")])
    ['data: train (nowhere.txt) must be a file; got none there.']
    """
    return [f"data: {name} ({path}) must be a file; got none there." for path in paths if not path.is_file()]


def no_share(name: str, value: float, usual: float) -> list[str]:
    """Return an error if the held-out share is not between 0 and 1.

    >>> no_share("hold_out", 1.0, 0.1)
    ['data: hold_out (1.0) must be a share above 0 and below 1. Try 0.1.']
    """
    return [] if 0 < value < 1 else [f"data: {name} ({value}) must be a share above 0 and below 1. Try {usual}."]


def wrong_smoothing(where: str, value: float) -> list[str]:
    """Return an error if label smoothing lies outside [0, 1).

    >>> wrong_smoothing("translate", 1.0)
    ['translate: smoothing (1.0) must lie in [0, 1). Try 0.1.']
    """
    return [] if 0 <= value < 1 else [f"{where}: smoothing ({value}) must lie in [0, 1). Try 0.1."]


def too_long(longest: int, positions: int) -> list[str]:
    """Return an error if texts may be longer than a BERT can read.

    >>> too_long(128, 64)
    ['model: positions (64) must be at least longest; got 128. Try --longest 64.']
    """
    if longest <= positions:
        return []
    return [f"model: positions ({positions}) must be at least longest; got {longest}. Try --longest {positions}."]


def checked_settings(
    recipe: Any, folder: Path, name: str, kinds: Mapping[str, type] | None = None
) -> dict[str, object]:
    """Return what config.json keeps of a recipe besides the settings of training.

    Raises:
        ValueError: for wrong settings, all at once, and for others than those of the run in the folder.
    """
    refuse(errors_of(recipe))
    kind = next((kind for kind, known in (kinds or {}).items() if type(recipe) is known), None)
    kept = {field: value for field, value in asdict(recipe).items() if field != "training"}
    settings = {"recipe": name, **({} if kind is None else {"kind": kind}), **kept}
    check_settings(folder, {"training": asdict(recipe.training), **settings})
    return settings


def read_recipe(
    folder: str | os.PathLike[str], name: str, kinds: Mapping[str, type[RecipeType]], what: str
) -> RecipeType:
    """Return the recipe of a run.

    Args:
        folder: of the run.
        name: of the recipe, as config.json has it.
        kinds: recipes by kind; "" for one without.
        what: the run must be of, for the message.

    Raises:
        ValueError: for a folder that holds another run.
    """
    settings = read_recipe_config(folder, name, kinds, what)
    del settings["recipe"]
    return from_values(kinds[settings.pop("kind", "")], settings)
