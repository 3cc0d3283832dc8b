"""The settings and the best weights in the folder of a run, checked when read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.digests import Damaged, file_digest, json_digest
from ..core.json_files import read_json_object
from ..core.messages import few
from ..core.tensor_files import read_tensors_and_metadata
from ..models.weights import load_weights


def read_fingerprints(metadata: Mapping[str, str], path: Path) -> dict[str, str]:
    """The digests in the metadata of a tensor file; earlier versions wrote none."""
    try:
        return dict(json.loads(metadata.get("fingerprints", "{}")))
    except (ValueError, TypeError) as error:
        raise Damaged(f"training: {path} must have digests in its metadata; got {error}.") from error


def compare_fingerprints(expected: Mapping[str, str], current: Mapping[str, str], path: Path) -> None:
    """Raise ValueError that names every file that is not as it was when the weights in `path` were written."""
    changed = [name for name in expected if current.get(name) != expected[name]]
    if changed:
        listed = few([f"{name} ({'changed' if name in current else 'missing'})" for name in changed])
        raise ValueError(
            f"training: files of the run must be those that {path} was trained with; got others: {listed}. "
            "Restore them from a copy, or train in another folder."
        )


LIMITS = ("steps", "epochs", "minutes")
"""What may be raised on a run that exists; everything else belongs to its identity."""


CONFIG = "config.json"


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a run."""
    path = Path(folder) / "config.json"
    config = read_json_object(path, "the settings of a run", "Give another folder.", where="training")
    digest = config.pop("sha256", None)  # earlier versions wrote none
    if digest is not None and json_digest(config) != digest:
        raise Damaged(
            f"training: {path} must have the digest written into it; got another: its contents changed. Restore it; "
            "settings are given on the command line."
        )
    return config


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(config, default=str)))


def config_digest(config: Mapping[str, Any]) -> str:
    """The digest of all settings but the limits, which may be raised, and those that are not given."""
    limits = {f"training.{name}" for name in LIMITS}
    settings = flat(_plain(config))
    return json_digest({k: v for k, v in settings.items() if k not in limits and v is not None})


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names.

    >>> flat({"training": {"steps": 3}, "task": "dates"})
    {'training.steps': 3, 'task': 'dates'}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def read_weights(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The best weights of a run.

    Raises ValueError if there are none, if they are damaged, and if the settings or the vocabularies beside them are
    not those they were trained with.
    """
    folder = Path(folder)
    path = folder / "model.safetensors"
    if not path.exists():
        raise ValueError(f"training: {path} must exist; got a folder without. Train there first, or give another.")
    tensors, metadata = read_tensors_and_metadata(path)
    expected = read_fingerprints(metadata, path)
    names = [name for name in expected if name != CONFIG and not name.startswith("data/")]  # data may be left behind
    current = {name: file_digest(folder / name) for name in names if (folder / name).is_file()}
    if CONFIG in expected:
        current[CONFIG] = config_digest(read_config(folder))
    compare_fingerprints({name: expected[name] for name in expected if name in (CONFIG, *names)}, current, path)
    return tensors


def load_best(model: torch.nn.Module, folder: str | os.PathLike[str]) -> None:
    """Give a model the best weights of a run."""
    load_weights(model, read_weights(folder), str(Path(folder) / "model.safetensors"))
