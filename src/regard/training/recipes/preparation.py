"""Preparation of data in the folder of a run, the same for every recipe: done once, and checked on every start.

`data/prepared.json` records the settings, a digest of each input file, and a digest of each file that was made of them.
Before a run has begun (there is no config.json), data of other settings or other inputs are prepared anew. Afterwards
they are refused: a run never goes on with other data than it was begun with.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.digests import Damaged, file_digest, input_digests, json_bytes, json_digest, read_json
from ...core.files import exclusive_lock, remove_stale, replacing

Say = Callable[[str], None]
RECORD = "data/prepared.json"
INPUTS = "data/inputs"
"""The name of the digest of all inputs together."""


def prepare_once(
    folder: Path,
    *,
    settings: Mapping[str, Any],
    inputs: Iterable[Path],
    outputs: Sequence[str],
    make: Callable[[], None],
) -> dict[str, str]:
    """Call `make` unless the folder holds what it made before, by the same settings of the same inputs.

    Of several processes one makes the files; the others wait.

    Args:
        folder: of the run.
        settings: all that the result depends on besides the inputs.
        inputs: files and folders that are read.
        outputs: names of the files and folders that `make` writes, relative to `folder`.
        make: writes them, each atomically.

    Returns:
        A digest of each output file by its name, and of all inputs together, under `INPUTS`.

    Raises:
        ValueError: if a run was begun here with other inputs, or a file that was prepared has changed; by its name.
    """
    paths = list(inputs)
    current = {"settings": json.loads(json.dumps(settings, default=str)), "inputs": input_digests(paths)}
    with exclusive_lock(folder / "data"):
        for place in (folder, folder / "data"):
            remove_stale(place)
        if (folder / "config.json").exists():
            record = _of_begun(folder, current, outputs)
        else:
            record = _prepared(folder, current, outputs) or _make(folder, current, outputs, paths, make)
    return {**record["outputs"], INPUTS: json_digest(record["inputs"])}


Record = Mapping[str, Any]
"""Settings, inputs and outputs; of inputs and outputs the digests by their names."""


def _of_begun(folder: Path, current: Record, outputs: Sequence[str]) -> Record:
    """The record of a run that was begun; refuses whatever differs from it.

    Inputs that are not given any more, such as the model that finetuning began with, are not compared.
    """
    found = _digests(folder, outputs)
    if not (folder / RECORD).exists():  # a run of an earlier version: it is recorded as it is
        return _write(folder, {**current, "outputs": found})
    try:
        record = read_json(folder / RECORD)
    except Damaged as error:
        raise ValueError(f"{error} Restore it. If you delete it, the data count as unchanged.") from error
    _refuse_inputs(folder, record, current)
    if "outputs" not in record:
        raise ValueError(f"data: {folder / RECORD} must list what was prepared; got an incomplete record. Restore it.")
    wrong = [name for name, digest in record["outputs"].items() if found.get(name) != digest]
    if wrong:
        raise ValueError(
            f"data: {folder / wrong[0]} must be as it was prepared; got {_state(folder / wrong[0])}. Restore it from a "
            "copy, or train in another folder."
        )
    return record


def _refuse_inputs(folder: Path, record: Record, current: Record) -> None:
    if record.get("settings") != current["settings"]:
        old, new = record.get("settings", {}), current["settings"]
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        raise ValueError(
            f"data: settings of {folder} ({', '.join(names)}) must be those its data were prepared by; got others. "
            "Restore config.json, or train in another folder."
        )
    before = record.get("inputs", {})
    for path, digest in current["inputs"].items():
        if before.get(path) != digest:
            raise ValueError(
                f"data: {path} must be as it was when the run in {folder} was begun; got other contents. Restore it to "
                "go on with the run, or train on the new contents in another folder."
            )


def _prepared(folder: Path, current: Record, outputs: Sequence[str]) -> Record | None:
    """The record of what was prepared by the same settings of the same inputs, if all of it is as it was."""
    try:
        record = read_json(folder / RECORD)
    except Damaged:
        return None
    same = all(record.get(name) == current[name] for name in ("settings", "inputs"))
    found = _digests(folder, outputs)
    return record if same and found and found == record.get("outputs") else None


def _make(
    folder: Path,
    current: Record,
    outputs: Sequence[str],
    inputs: Sequence[Path],
    make: Callable[[], None],
) -> Record:
    present = [name for name in outputs if (folder / name).exists()]
    if present and not (folder / RECORD).exists():
        raise ValueError(
            f"data: {folder} must be a new folder, or that of a run; got one with {', '.join(present)} of unknown "
            "origin. Move them away, or give another folder."
        )
    _write(folder, current)  # from here on, what is in the folder may be removed
    for name in present:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    before = _stamps(inputs)
    make()
    for path, stamp in _stamps(inputs).items():
        if before.get(path) != stamp:
            raise ValueError(
                f"data: {path} must not change while it is read; got a change. Run the same command again."
            )
    return _write(folder, {**current, "outputs": _digests(folder, outputs)})


def _write(folder: Path, record: Record) -> Record:
    with replacing(folder / RECORD) as temporary:
        temporary.write_bytes(json_bytes(record))
    return record


def _digests(folder: Path, outputs: Sequence[str]) -> dict[str, str]:
    return {str(path.relative_to(folder)): file_digest(path) for path in _files(folder / name for name in outputs)}


def _stamps(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change: enough to notice a change within seconds."""
    return {path: ((found := path.stat()).st_size, found.st_mtime_ns) for path in _files(paths)}


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files among paths, and those within the folders among them."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.is_file())
        elif path.exists():
            yield path


def _state(path: Path) -> str:
    return "other contents (its digest changed)" if path.exists() else "no such file"
