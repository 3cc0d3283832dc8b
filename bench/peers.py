"""What benchmarks against other programs need: the real data, and environments that hold the programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MULTI30K = ("train", "val", "test_2016_flickr")


def data(name: str) -> Path:
    """A folder of real data, under the one that REGARD_DATA names."""
    root = os.environ.get("REGARD_DATA")
    if root is None or not Path(root, name).is_dir():
        raise SystemExit(
            f"data: REGARD_DATA ({root}) must be a folder that holds {name}/; got none there. "
            "Set it to where the data lies: it is not part of the project."
        )
    return Path(root, name)


def multi30k(part: str) -> tuple[Path, Path]:
    """The German and the English file of a part, one caption a line.

    >>> multi30k("test")
    Traceback (most recent call last):
    ValueError: multi30k: part (test) must be one of train, val, test_2016_flickr.
    """
    if part not in MULTI30K:
        raise ValueError(f"multi30k: part ({part}) must be one of {', '.join(MULTI30K)}.")
    folder = data("multi30k")
    return folder / f"{part}.de.gz", folder / f"{part}.en.gz"


def python(variable: str, packages: str) -> str:
    """The Python of the environment that holds another program, named by an environment variable."""
    found = shutil.which(os.environ.get(variable, ""))
    if found is None:
        raise SystemExit(
            f"bench: {variable} ({os.environ.get(variable)}) must name the Python of an environment with {packages}. "
            f"Make one (python -m venv, pip install), and set {variable} to its bin/python."
        )
    return found
