"""The folder of a run.

config.json          all settings                      metrics.jsonl   one line per interval and per evaluation
model.safetensors    the best weights, averaged        curves.png      a chart of the metrics
state-00001200/ …    the last two training states      samples.txt     model outputs for a few inputs

A task adds files of its own, such as its tokenizer.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from ..core.digests import json_bytes
from ..core.files import lock, unwritable, write
from ..core.json_files import parse_json
from ..core.tensor_files import tensor_bytes
from ..tasks.run_files import CONFIG, LIMITS, _plain, flat, read_config
from .checkpoint import WEIGHTS, clear, is_trained


class Run:
    """The files of a run. Only the first process has an instance."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, 0, error) from error
        self._lock = self._locked()
        clear(folder)
        self.metrics = folder / "metrics.jsonl"

    def close(self) -> None:
        """Release the lock on the folder."""
        self._lock.close()

    def _locked(self) -> IO[str]:
        """Lock the folder. The system releases the lock when the process ends for any reason."""
        file = (self.folder / ".lock").open("w")
        try:
            lock(file, wait=False)
        except OSError as error:
            file.close()
            raise ValueError(
                f"training: {self.folder} must be used by one process at a time; got a second one. Wait for the first, "
                "stop it, or give another folder."
            ) from error
        return file

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / CONFIG).exists()

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write the settings. For an existing run, raise ValueError if they differ; see `check_settings`."""
        check_settings(self.folder, config)
        write(self.folder / CONFIG, json_bytes(_plain(config)))

    def truncate_metrics(self, length: int) -> None:
        """Remove the metrics of steps that will be repeated, and an incomplete last line."""
        if self.metrics.exists() and self.metrics.stat().st_size > length:
            os.truncate(self.metrics, length)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record to the metrics."""
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        try:
            with self.metrics.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise unwritable(self.metrics, len(line), error) from error

    def sync_metrics(self) -> int:
        """Flush the metrics to disk and return the length of the file in bytes."""
        if not self.metrics.exists():
            return 0
        with self.metrics.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def save_weights(self, weights: Mapping[str, Tensor], fingerprints: Mapping[str, str], **details: object) -> None:
        """Write model.safetensors with metadata: digests of the settings and data, and `details`."""
        metadata = {name: str(value) for name, value in details.items()}
        metadata["fingerprints"] = json.dumps(dict(fingerprints))
        write(self.folder / WEIGHTS, tensor_bytes(weights, metadata))

    def samples(self, step: int, samples: Sequence[tuple[str, str, str]]) -> None:
        """Write samples.txt: input, model output and reference."""
        if not samples:
            return
        blocks = [f"  {source}\n= {ours}\n  {reference}\n" for source, ours, reference in samples]
        write(self.folder / "samples.txt", "\n".join([f"step {step}: input, = ours, reference\n", *blocks]).encode())

    def records(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl."""
        if not self.metrics.exists():
            return []
        return list(_records(self.metrics))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and "event" in record and "step" in record:
            yield record
        else:
            message = f"training: {path}, line {number}, must be a record of metrics. The line is ignored."
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def check_settings(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError if the folder holds a run with other settings. Limits may be raised.

    Until the first state is saved, all settings of training may change: those of a run whose warm-up was refused, for
    example.
    """
    if not (folder / CONFIG).exists():
        return
    before, after = flat(read_config(folder)), flat(_plain(config))
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if not is_trained(folder):
        changed = [key for key in changed if not key.startswith("training.")]
    wrong = [key for key in changed if not _raised(key, before.get(key), after.get(key))]
    if wrong:
        differences = ", ".join(f"{key} ({before.get(key)} there, {after.get(key)} here)" for key in wrong)
        raise ValueError(
            f"training: settings must be those of the run in {folder}; these differ: {differences}. Only the limits "
            f"({', '.join(LIMITS)}) may be raised. Give the same settings to resume, or another folder."
        )


def _raised(key: str, old: float | None, new: float | None) -> bool:
    """Return whether a setting is a limit that was raised. None means no limit."""
    if key not in {f"training.{name}" for name in LIMITS}:
        return False
    return new is None or (old is not None and new >= old)
