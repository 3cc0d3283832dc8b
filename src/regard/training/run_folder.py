"""The folder of a run.

config.json          every setting, spelled out        metrics.jsonl   a line per interval and per evaluation
model.safetensors    the best weights, averaged        curves.png      the same, drawn
state-00001200/ …    the last two training states      samples.txt     what the model makes of a few inputs
and what the task adds, such as its tokenizer
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
from ..core.files import unwritable, write
from ..core.json_files import parse_json
from ..core.tensor_files import tensor_bytes
from ..tasks.run_files import LIMITS, _plain, flat, read_config
from .checkpoint import clear

try:
    import fcntl
except ImportError:  # not on Windows: there two processes in one folder are not told apart
    fcntl = None  # type: ignore[assignment]


class Run:
    """The files of one run; only the first process has one."""

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
        """Let another process use the folder."""
        self._lock.close()

    def _locked(self) -> IO[str]:
        """A lock that the system takes back when the process ends, however it ends."""
        file = (self.folder / ".lock").open("w")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise ValueError(
                f"training: {self.folder} must be used by one run at a time; got a second. Wait for the first, end it, "
                "or give another folder."
            ) from error
        return file

    @property
    def exists(self) -> bool:
        """Whether training was begun here."""
        return (self.folder / "config.json").exists()

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write the settings; on a run that exists, refuse other ones, but for limits that were raised."""
        check_settings(self.folder, config)
        write(self.folder / "config.json", json_bytes(_plain(config)))

    def cut(self, length: int) -> None:
        """Drop the metrics of steps that will be taken again, and a line that was torn off."""
        if self.metrics.exists() and self.metrics.stat().st_size > length:
            os.truncate(self.metrics, length)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        try:
            with self.metrics.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise unwritable(self.metrics, len(line), error) from error

    def settle(self) -> int:
        """Wait until the disk has the metrics; returns their length, which a state remembers."""
        if not self.metrics.exists():
            return 0
        with self.metrics.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def keep(self, weights: Mapping[str, Tensor], fingerprints: Mapping[str, str], **told: object) -> None:
        """Write model.safetensors, with digests of what gives the weights their meaning, and more metadata."""
        metadata = {name: str(value) for name, value in told.items()}
        metadata["fingerprints"] = json.dumps(dict(fingerprints))
        write(self.folder / "model.safetensors", tensor_bytes(weights, metadata))

    def samples(self, step: int, samples: Sequence[tuple[str, str, str]]) -> None:
        """Write samples.txt: input, ours, reference."""
        if not samples:
            return
        blocks = [f"  {source}\n= {ours}\n  {reference}\n" for source, ours, reference in samples]
        write(self.folder / "samples.txt", "\n".join([f"step {step}: input, = ours, reference\n", *blocks]).encode())

    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics."""
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
            message = f"training: {path}, line {number}, must be a record of metrics; got another. It is left out."
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def check_settings(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse settings other than those of the run in a folder, if there is one; limits may be raised."""
    if not (folder / "config.json").exists():
        return
    before, after = flat(read_config(folder)), flat(_plain(config))
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    wrong = [key for key in changed if not _raised(key, before.get(key), after.get(key))]
    if wrong:
        told = ", ".join(f"{key} ({before.get(key)} there, {after.get(key)} here)" for key in wrong)
        raise ValueError(
            f"training: settings must be those of the run in {folder}; got other ones: {told}. Only the limits "
            f"({', '.join(LIMITS)}) may be raised. Give the same settings to go on, or another folder."
        )


def _raised(key: str, old: float | None, new: float | None) -> bool:
    """None is no limit, the highest of all."""
    if key not in {f"training.{name}" for name in LIMITS}:
        return False
    return new is None or (old is not None and new >= old)
