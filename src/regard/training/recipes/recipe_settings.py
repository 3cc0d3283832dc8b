"""Recipe settings: validation, and conversion to and from config.json."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ...core.settings import errors_of, from_values, refuse, to_values
from ...tasks.loading import read_recipe_config
from ..run_folder import check_settings

RecipeType = TypeVar("RecipeType")


def range_errors(name: str, value: float, low: int, high: int) -> list[str]:
    """Return an error if a data setting is outside its range.

    >>> range_errors("tokens", 0, 1, 4096), range_errors("tokens", 1500, 1, 4096)
    (['data: tokens (0) must be at least 1.'], [])
    """
    if value < low:
        return [f"data: {name} ({value}) must be at least {low}."]
    return [] if value <= high else [f"data: {name} ({value}) must be at most {high:,}."]


def missing_files(name: str, paths: Iterable[Path]) -> list[str]:
    """Return an error for each path that is not a file.

    >>> missing_files("train", [Path("nowhere.txt")])
    ['data: train (nowhere.txt) must be an existing file.']
    """
    return [
        f"data: {name} ({path}) must be a file; got a folder."
        if path.is_dir()
        else f"data: {name} ({path}) must be an existing file."
        for path in paths
        if not path.is_file()
    ]


def fraction_errors(name: str, value: float, usual: float) -> list[str]:
    """Return an error if a held-out fraction is not between 0 and 1.

    >>> fraction_errors("hold_out", 1.0, 0.1)
    ['data: hold_out (1.0) must be a fraction above 0 and below 1. Try 0.1.']
    """
    return [] if 0 < value < 1 else [f"data: {name} ({value}) must be a fraction above 0 and below 1. Try {usual}."]


def smoothing_errors(where: str, value: float) -> list[str]:
    """Return an error if label smoothing lies outside [0, 1).

    >>> smoothing_errors("translate", 1.0)
    ['translate: smoothing (1.0) must lie in [0, 1). Try 0.1.']
    """
    return [] if 0 <= value < 1 else [f"{where}: smoothing ({value}) must lie in [0, 1). Try 0.1."]


def length_errors(longest: int, positions: int) -> list[str]:
    """Return an error if texts may be longer than a BERT can read.

    >>> length_errors(128, 64)
    ['model: positions (64) must be at least longest; got 128. Try --longest 64.']
    """
    if longest <= positions:
        return []
    return [f"model: positions ({positions}) must be at least longest; got {longest}. Try --longest {positions}."]


def folder_errors(folder: Path) -> list[str]:
    """Return an error if a run cannot be written to the folder: it is a file, or not writable.

    >>> folder_errors(Path("new/run"))
    []
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        return [f"training: run ({folder}) must be a folder; got the file {existing}. Give the path of a new folder."]
    if not os.access(existing, os.W_OK):
        return [f"training: run ({folder}) must be writable; {existing} is not. Give a folder that you may write to."]
    return []


def checked_settings(
    recipe: Any, folder: Path, name: str, kinds: Mapping[str, type] | None = None
) -> dict[str, object]:
    """Return the settings of a recipe that config.json stores besides the training settings.

    Raises:
        ValueError: if settings are invalid (all are listed), or differ from those of the run in the folder.
    """
    refuse([*errors_of(recipe), *folder_errors(folder)])
    kind = next((kind for kind, known in (kinds or {}).items() if type(recipe) is known), None)
    values = {field: value for field, value in to_values(recipe).items() if field != "training"}
    settings = {"recipe": name, **({} if kind is None else {"kind": kind}), **values}
    check_settings(folder, {"training": asdict(recipe.training), **settings})
    return settings


def read_recipe(
    folder: str | os.PathLike[str], name: str, kinds: Mapping[str, type[RecipeType]], what: str
) -> RecipeType:
    """Read the recipe of a run.

    Args:
        folder: folder of the run.
        name: name of the recipe in config.json.
        kinds: recipe classes by kind; "" for a recipe without kinds.
        what: description of the expected run, for the error message.

    Raises:
        ValueError: if the folder holds a run of another recipe.
    """
    settings = read_recipe_config(folder, name, kinds, what)
    del settings["recipe"]
    return from_values(kinds[settings.pop("kind", "")], settings)
