"""Record what the code computes and writes: `python -m tests.goldens.record OUT`.

    OUT/modules.safetensors   outputs and gradients of every public operator, layer and model
    OUT/results.json          a short run of each recipe, what its model answers, and the answers of the server
    OUT/interfaces.json       names that are stored or spoken outside: parameters, keys, options, routes, schemas
    OUT/files/                the runs with their data, a capture, the exports

The seeds are fixed and one thread is used, so a second recording on the same machine is equal bit by bit (times and
drawings aside). `--exact BEFORE` compares the new recording with an earlier one in this way and ends with status 1 if
anything differs: it shows that a change of structure changes no result.

`--store` also replaces the recording in tests/goldens/stored, which the tests compare with; only for an intended change
of results. The files of runs, captures and exports there were written by version 0.1.0, before modules were moved. They
show that files of users still load, so `--store` leaves them alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.goldens import frozen_interfaces, server_answers, small_runs
from tests.goldens.comparison import recording_differences
from tests.goldens.module_cases import CASES, outcome

STORED = Path(__file__).parent / "stored"
FILES = "files.tar.xz"


def record(out: Path) -> None:
    """Write a recording into a folder, which is emptied first."""
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    files = (out / "files").resolve()
    files.mkdir(parents=True)
    outcomes = {name: outcome(case) for name, case in CASES.items()}
    tensors = {f"{case}:{name}": x for case, result in outcomes.items() for name, x in result.tensors.items()}
    save_file(tensors, out / "modules.safetensors")
    with small_runs.working_in(files):
        results = record_results(files)
    _write_json(out / "results.json", results)
    states = {name: result.state for name, result in outcomes.items()}
    _write_json(out / "interfaces.json", frozen_interfaces.collect(files, results, states))


def record_results(files: Path) -> dict[str, Any]:
    """Write all files in the current directory, then query every model and resume every run."""
    runs = small_runs.write_files()
    asked = {name: small_runs.regard_command(*arguments) for name, arguments in small_runs.ASKED.items()}
    server = {name: server_answers.answers(name) for name in server_answers.TARGETS}
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(files, copy, dirs_exist_ok=True)
        with small_runs.working_in(Path(copy)):
            for name, run in runs.items():
                run["resumed"] = small_runs.resume(name)
    return {"runs": runs, "asked": asked, "server": server}


def _write_json(path: Path, contents: Any) -> None:
    path.write_text("\n".join(_lines(contents)) + "\n", encoding="utf-8")


def _lines(value: Any) -> list[str]:
    """JSON in lines: what fits into one, and every list of plain values, is one line."""
    line = json.dumps(value, ensure_ascii=False)
    plain = isinstance(value, list) and not any(isinstance(part, dict | list) for part in value)
    if len(line) <= 110 or plain or not isinstance(value, dict | list):
        return [line]
    named = [(f"{json.dumps(name)}: ", part) for name, part in value.items()] if isinstance(value, dict) else []
    lines: list[str] = []
    for name, part in named or [("", part) for part in value]:
        first, *rest = _lines(part)
        lines += [f" {name}{first}", *(f" {line}" for line in rest)]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [opening, *lines, closing]


def store(out: Path) -> None:
    """Make a recording the one that tests compare with."""
    STORED.mkdir(exist_ok=True)
    for name in ("modules.safetensors", "results.json", "interfaces.json"):
        shutil.copy(out / name, STORED / name)
    if not (STORED / FILES).exists():
        _pack(out / "files", STORED / FILES)


def _pack(folder: Path, archive: Path) -> None:
    """Pack a folder without times and owners; drawings of runs are left out."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = str(path.relative_to(folder))
            if name.startswith("images/") or not any(fnmatch(path.name, one) for one in small_runs.NOT_STORED):
                about = tarfile.TarInfo(name)
                about.size = path.stat().st_size
                with path.open("rb") as file:
                    packed.addfile(about, file)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens.record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the recording; it is emptied first")
    parser.add_argument("--exact", metavar="BEFORE", type=Path, help="an earlier recording to compare with, bit by bit")
    parser.add_argument("--store", action="store_true", help="make it the recording that the tests compare with")
    options = parser.parse_args()
    record(options.out)
    result = list(recording_differences(options.exact, options.out)) if options.exact else []
    for line in result[:50]:
        print(line[:300])
    if options.exact:
        print(f"{len(result)} differences from {options.exact}")
    if options.store:
        store(options.out)
    return int(bool(result))


if __name__ == "__main__":
    sys.exit(main())
