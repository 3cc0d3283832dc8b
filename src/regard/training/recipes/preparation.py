"""Data preparation in the folder of a run, shared by all recipes: done once, and verified on every start.

`data/prepared.json` records the settings, a digest of each input file, and a digest of each prepared file. Before a run
has started (there is no config.json), changed settings or inputs cause the data to be prepared again. Afterwards they
are an error: a run never continues with other data.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.digests import Damaged, file_digest, input_digests, json_bytes, json_digest, read_json, text_digest
from ...core.files import exclusive_lock, remove_stale, replacing, write
from ...core.settings import to_json
from ...tasks.run_files import CONFIG
from ..checkpoint import states
from ..distributed import is_first_process

Say = Callable[[str], None]
RECORD = "data/prepared.json"
INPUTS = "data/inputs"
"""Name of the combined digest of all inputs."""


def prepare_once(
    folder: Path,
    *,
    settings: Mapping[str, Any],
    inputs: Iterable[Path],
    outputs: Sequence[str],
    make: Callable[[], None],
) -> dict[str, str]:
    """Call `make` unless the folder already holds its outputs for the same settings and inputs.

    If there are several processes, one prepares the files and the others wait.

    Args:
        folder: folder of the run.
        settings: everything besides the inputs that the result depends on.
        inputs: files and folders to read.
        outputs: names of the files and folders that `make` writes, relative to `folder`.
        make: function that writes the outputs, each atomically.

    Returns:
        The digest of each output file by name, and the combined digest of all inputs under `INPUTS`.

    Raises:
        ValueError: if the run was started with other inputs, or a prepared file was changed; the message names it.
    """
    paths = list(inputs)
    current = {"settings": json.loads(json.dumps(settings, default=str)), "inputs": input_digests(paths)}
    with exclusive_lock(folder / "data"):
        for path in (folder, folder / "data"):
            remove_stale(path)
        if (folder / CONFIG).exists():
            record = _verified(folder, current, outputs)
        else:
            record = _prepared(folder, current, outputs) or _make(folder, current, outputs, paths, make)
    return {**record["outputs"], INPUTS: json_digest(record["inputs"])}


def has_state(folder: Path) -> bool:
    """Return whether a run has a state to resume from, so that initial weights are not needed."""
    return bool(states(folder))


def write_model_config(path: Path, config: Any) -> dict[str, str]:
    """Write the configuration of a model, in the first process only. Return its digest by file name."""
    text = to_json(config)
    if is_first_process():
        write(path, text.encode())
    return {path.name: text_digest(text)}


Record = Mapping[str, Any]
"""Settings, and the digests of inputs and outputs by name."""


def _verified(folder: Path, current: Record, outputs: Sequence[str]) -> Record:
    """Return the record of a started run, or raise ValueError if the current data differ from it.

    Inputs that are no longer given, such as the model that fine-tuning started from, are not compared.
    """
    digests = _digests(folder, outputs)
    if not (folder / RECORD).exists():  # a run of an earlier version: record its current data
        return _write(folder, {**current, "outputs": digests})
    try:
        record = read_json(folder / RECORD)
    except Damaged as error:
        raise ValueError(f"{error} Restore it. If you delete it, the data are assumed to be unchanged.") from error
    _check_inputs(folder, record, current)
    if "outputs" not in record:
        raise ValueError(f"data: {folder / RECORD} must list the prepared files; got an incomplete record. Restore it.")
    wrong = [name for name, digest in record["outputs"].items() if digests.get(name) != digest]
    if wrong:
        raise ValueError(
            f"data: {folder / wrong[0]} must be unchanged since it was prepared; got {_state(folder / wrong[0])}. "
            "Restore it from a copy, or train in another folder."
        )
    return record


def _check_inputs(folder: Path, record: Record, current: Record) -> None:
    if record.get("settings") != current["settings"]:
        old, new = record.get("settings", {}), current["settings"]
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        raise ValueError(
            f"data: settings of {folder} ({', '.join(names)}) must be those its data were prepared with; got others. "
            "Restore config.json, or train in another folder."
        )
    before = record.get("inputs", {})
    for path, digest in current["inputs"].items():
        if before.get(path) != digest:
            raise ValueError(
                f"data: {path} must be unchanged since the run in {folder} was started; got other contents. Restore it "
                "to resume the run, or train on the new contents in another folder."
            )


def _prepared(folder: Path, current: Record, outputs: Sequence[str]) -> Record | None:
    """Return the record of the folder if its settings, inputs and outputs are unchanged, else None."""
    try:
        record = read_json(folder / RECORD)
    except Damaged:
        return None
    same = all(record.get(name) == current[name] for name in ("settings", "inputs"))
    digests = _digests(folder, outputs)
    return record if same and digests and digests == record.get("outputs") else None


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
            f"data: {folder} must be a new folder or the folder of a run; got one with {', '.join(present)} of unknown "
            "origin. Move these files, or give another folder."
        )
    _write(folder, current)  # from here on, the outputs in the folder may be removed
    for name in present:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    before = _stamps(inputs)
    make()
    for path, stamp in _stamps(inputs).items():
        if before.get(path) != stamp:
            raise ValueError(f"data: {path} must not change while it is read, but it did. Run the same command again.")
    return _write(folder, {**current, "outputs": _digests(folder, outputs)})


def _write(folder: Path, record: Record) -> Record:
    with replacing(folder / RECORD) as temporary:
        temporary.write_bytes(json_bytes(record))
    return record


def _digests(folder: Path, outputs: Sequence[str]) -> dict[str, str]:
    return {str(path.relative_to(folder)): file_digest(path) for path in _files(folder / name for name in outputs)}


def _stamps(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return the size and modification time of each file, which reveal a change while it is read."""
    return {path: ((status := path.stat()).st_size, status.st_mtime_ns) for path in _files(paths)}


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files among paths, and the files within the folders among them."""
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.is_file())
        elif path.exists():
            yield path


def _state(path: Path) -> str:
    return "other contents (its digest changed)" if path.exists() else "no such file"
