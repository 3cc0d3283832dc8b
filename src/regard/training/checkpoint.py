"""Training states: all that a run needs to go on as if it had never stopped.

A state is a folder, `state-00001200/`: `progress.json` says where the run is, `tensors.safetensors` holds weights,
moments, averages, running sums and the states of the random generators. The last two are kept; one that is damaged is
named in a warning, and the one before it is used.
"""

from __future__ import annotations

import json
import platform
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.digests import Damaged, json_bytes, read_json
from ..core.files import remove_stale, write_folder
from ..core.tensor_files import read_tensors_and_metadata, tensor_bytes
from ..tasks.run_files import compare_fingerprints, read_fingerprints

KEPT = 2
TENSORS, PROGRESS = "tensors.safetensors", "progress.json"


@dataclass
class Progress:
    """Where a run is; plain numbers, equal in every process."""

    step: int = 0
    """Optimiser steps taken."""
    epoch: int = 0
    """Of the next batch, from 0 on."""
    batch: int = 0
    """Number of the next batch within its epoch."""
    tokens: int = 0
    """Seen so far, over all processes."""
    seconds: float = 0.0
    """Time used so far, by the clock of the first process, over all its lives."""
    evaluated: int = 0
    """The step last evaluated."""
    best: float | None = None
    """The best value of the goal."""
    best_step: int = 0
    misses: int = 0
    """Evaluations since the best one."""
    finished: str = ""
    """The limit that ended the run: steps, epochs, minutes or patience; empty while it goes on."""
    metrics: int = 0
    """Length of metrics.jsonl in bytes: what lies beyond was written after this state."""
    window: dict[str, Any] = field(default_factory=dict)
    """Sums since the last line of metrics."""
    world: int = 1
    """Number of processes."""


def environment() -> dict[str, Any]:
    """What the last bits of a result depend on besides the settings."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads(), "machine": platform.machine()}


def save(
    folder: Path, progress: Progress, tensors: Mapping[str, Tensor], fingerprints: Mapping[str, str] | None = None
) -> Path:
    """Write the state of a run, and drop those older than the last two. On failure all of them stay.

    fingerprints: digests of the settings and of the data, by name: a state is refused where they are others.
    """
    path = place(folder, progress.step)
    metadata = {"step": str(progress.step), "fingerprints": json.dumps(dict(fingerprints or {}))}
    files = {
        TENSORS: tensor_bytes(tensors, metadata),
        PROGRESS: json_bytes({"progress": asdict(progress), "environment": environment()}),
    }
    write_folder(path, files)
    for old in states(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def place(folder: Path, step: int) -> Path:
    """Where the state of a step lies."""
    return folder / f"state-{step:08d}"


def states(folder: Path) -> list[Path]:
    """The states of a run, oldest first; none that is half-written."""
    return sorted(path for path in folder.glob("state-*") if path.is_dir())


def load(path: Path, fingerprints: Mapping[str, str] | None = None) -> tuple[Progress, dict[str, Tensor]]:
    """A state; raises `Damaged` where it is not what was written, ValueError where `fingerprints` are others."""
    record = read_json(path / PROGRESS)
    names = {item.name for item in fields(Progress)}
    if set(record.get("progress", ())) != names:
        raise Damaged(f"training: {path / PROGRESS} must have the fields of this version; got others.")
    tensors, metadata = read_tensors_and_metadata(path / TENSORS)
    step = record["progress"]["step"]
    if metadata.get("step", str(step)) != str(step):
        raise Damaged(f"training: {path / TENSORS} must be of step {step}; got those of step {metadata['step']}.")
    if fingerprints is not None:
        compare_fingerprints(read_fingerprints(metadata, path / TENSORS), fingerprints, path)
    if record["environment"] != environment():
        warnings.warn(
            f"training: {path} was written with {_told(record['environment'])}; here it is {_told(environment())}. "
            "The run goes on, but its last bits may differ from those of an unbroken one.",
            RuntimeWarning,
            stacklevel=2,
        )
    return Progress(**record["progress"]), tensors


def latest(folder: Path, fingerprints: Mapping[str, str] | None = None) -> tuple[Progress, dict[str, Tensor]] | None:
    """The newest state that is whole, or None where there is none at all. `fingerprints` as for `load`."""
    found = states(folder)
    for path in reversed(found):
        try:
            return load(path, fingerprints)
        except Damaged as error:
            warnings.warn(f"{error} The state before it is used, if there is one.", RuntimeWarning, stacklevel=2)
    if found:
        raise ValueError(
            f"training: {folder} must have a state that is whole; got {len(found)}, all damaged. Its model.safetensors "
            "may still be good; to train from the start, give another folder."
        )
    return None


def clear(folder: Path) -> None:
    """Remove what a killed process left half-written; names that end in .part are those of earlier versions."""
    remove_stale(folder)
    for path in folder.glob(".*.part"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors under a name.

    >>> list(part({"model/a.b": torch.ones(1), "other/c": torch.ones(1)}, "model"))
    ['a.b']
    """
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def parts(**named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The reverse: one flat record of several."""
    return {f"{name}/{key}": value for name, tensors in named.items() for key, value in tensors.items()}


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
