"""Training states: everything that a run needs to continue as if it had never stopped.

A state is a folder such as `state-00001200/`. Its `progress.json` holds the position of the run, and
`tensors.safetensors` holds the weights, optimizer moments, weight averages and random generator states. The last two
states are kept. If the newest one is damaged, a warning names it and the previous one is used.
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
WEIGHTS = "model.safetensors"


@dataclass
class Progress:
    """Position of a run, as plain numbers that are equal in every process."""

    step: int = 0
    """Number of optimizer steps taken."""
    epoch: int = 0
    """Epoch of the next batch, counted from 0."""
    batch: int = 0
    """Index of the next batch within its epoch."""
    tokens: int = 0
    """Number of tokens seen so far, over all processes."""
    seconds: float = 0.0
    """Training time so far, measured by the first process and including earlier sessions."""
    evaluated: int = 0
    """Step of the last evaluation."""
    best: float | None = None
    """Best value of the goal."""
    best_step: int = 0
    best_loss: float | None = None
    """Loss of that evaluation, which decides between equal values; None if it reported none."""
    misses: int = 0
    """Number of evaluations since the best one. At equal values of the goal, the lower loss is better."""
    finished: str = ""
    """Limit that ended the run: steps, epochs, minutes or patience. Empty while the run continues."""
    metrics: int = 0
    """Length of metrics.jsonl in bytes. Anything beyond it was written after this state."""
    window: dict[str, Any] = field(default_factory=dict)
    """Sums since the last record in metrics.jsonl."""
    world: int = 1
    """Number of processes."""


def environment() -> dict[str, Any]:
    """Return the properties of the machine that can change the last bits of a result."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads(), "machine": platform.machine()}


def save(
    folder: Path, progress: Progress, tensors: Mapping[str, Tensor], fingerprints: Mapping[str, str] | None = None
) -> Path:
    """Write the state of a run and remove all but the last two. If writing fails, no state is removed.

    Args:
        folder: folder of the run.
        progress: position of the run.
        tensors: tensors of the state, by name.
        fingerprints: digests of the settings and the data, by name. `load` rejects a state with other fingerprints.
    """
    path = state_path(folder, progress.step)
    metadata = {"step": str(progress.step), "fingerprints": json.dumps(dict(fingerprints or {}))}
    files = {
        TENSORS: tensor_bytes(tensors, metadata),
        PROGRESS: json_bytes({"progress": asdict(progress), "environment": environment()}),
    }
    write_folder(path, files)
    for old in states(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def state_path(folder: Path, step: int) -> Path:
    """Return the path of the state of a step."""
    return folder / f"state-{step:08d}"


def step_of(path: Path) -> int | None:
    """Return the step of a state, or None if the path has another name, such as that of a copy.

    >>> step_of(Path("run/state-00001200")), step_of(Path("run/state-00001200.bak"))
    (1200, None)
    """
    digits = path.name.removeprefix("state-")
    is_step = digits.isdecimal() and digits.isascii()
    return int(digits) if is_step and path == state_path(path.parent, int(digits)) else None


def states(folder: Path) -> list[Path]:
    """Return the complete states of a run, oldest first."""
    steps = {step: path for path in folder.glob("state-*") if path.is_dir() and (step := step_of(path)) is not None}
    return [steps[step] for step in sorted(steps)]


def is_trained(folder: Path) -> bool:
    """Return whether the folder holds results of training: a state or weights."""
    return bool(states(folder)) or (folder / WEIGHTS).exists()


def load(path: Path, fingerprints: Mapping[str, str] | None = None) -> tuple[Progress, dict[str, Tensor]]:
    """Load a state.

    Raises:
        Damaged: if a file of the state was changed or truncated.
        ValueError: if the state has other fingerprints.
    """
    record = read_json(path / PROGRESS)
    names = {item.name for item in fields(Progress)}
    if {"best_loss", *record.get("progress", ())} != names:  # earlier versions had no best_loss
        raise Damaged(f"training: {path / PROGRESS} must have the fields of this version; got different fields.")
    tensors, metadata = read_tensors_and_metadata(path / TENSORS)
    step = record["progress"]["step"]
    if step_of(path) != step:
        raise Damaged(f"training: {path} must be the state of its step; got that of step {step}.")
    if metadata.get("step", str(step)) != str(step):
        raise Damaged(f"training: {path / TENSORS} must belong to step {step}; got tensors of step {metadata['step']}.")
    if fingerprints is not None:
        compare_fingerprints(read_fingerprints(metadata, path / TENSORS), fingerprints, path)
    if record["environment"] != environment():
        warnings.warn(
            f"training: {path} was written with {_format(record['environment'])}; this process has "
            f"{_format(environment())}. The run continues, but its last bits may differ from an uninterrupted run.",
            RuntimeWarning,
            stacklevel=2,
        )
    return Progress(**record["progress"]), tensors


def latest(folder: Path, fingerprints: Mapping[str, str] | None = None) -> tuple[Progress, dict[str, Tensor]] | None:
    """Load the newest undamaged state. Return None if the run has no state. `fingerprints` are those of `load`."""
    paths = states(folder)
    for path in reversed(paths):
        try:
            return load(path, fingerprints)
        except Damaged as error:
            warnings.warn(f"{error} The previous state is used, if there is one.", RuntimeWarning, stacklevel=2)
    if paths:
        raise ValueError(
            f"training: {folder} must have an undamaged state; got {len(paths)}, all damaged. Its model.safetensors "
            "may still be usable. To train from the start, give another folder."
        )
    return None


def clear(folder: Path) -> None:
    """Remove incomplete files of a killed process. Earlier versions gave them names that end in .part."""
    remove_stale(folder)
    for path in folder.glob(".*.part"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors below a name, without that prefix.

    >>> list(part({"model/a.b": torch.ones(1), "other/c": torch.ones(1)}, "model"))
    ['a.b']
    """
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def parts(**named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Combine several groups of tensors into one flat dictionary; the inverse of `part`."""
    return {f"{name}/{key}": value for name, tensors in named.items() for key, value in tensors.items()}


def _format(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
