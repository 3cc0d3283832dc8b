"""Data sets, and Python environments with other programs, for comparison benchmarks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bench._skips import Missing

MULTI30K = ("train", "val", "test_2016_flickr")


def data(name: str) -> Path:
    """Return a subfolder of the data folder REGARD_DATA."""
    root = os.environ.get("REGARD_DATA")
    if root is None or not Path(root, name).is_dir():
        raise Missing(
            f"data: REGARD_DATA ({root}) must be a folder that contains {name}/; got none. "
            "Set it to the folder of data sets, which are not part of the project."
        )
    return Path(root, name)


def multi30k(part: str) -> tuple[Path, Path]:
    """Return the German and the English file of a part, with one caption per line.

    >>> multi30k("test")
    Traceback (most recent call last):
    ValueError: multi30k: part (test) must be one of train, val, test_2016_flickr.
    """
    if part not in MULTI30K:
        raise ValueError(f"multi30k: part ({part}) must be one of {', '.join(MULTI30K)}.")
    folder = data("multi30k")
    return folder / f"{part}.de.gz", folder / f"{part}.en.gz"


def python(variable: str, packages: str) -> str:
    """Return the Python interpreter of another program's environment, which an environment variable names."""
    interpreter = shutil.which(os.environ.get(variable, ""))
    if interpreter is None:
        raise Missing(
            f"bench: {variable} ({os.environ.get(variable)}) must name the Python of an environment with {packages}. "
            f"Create one (python -m venv, pip install), and set {variable} to its bin/python."
        )
    return interpreter
