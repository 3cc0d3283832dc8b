"""`python -m studies NAME …`: run one study, or all studies of claims."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import studies

USAGE = """usage: python -m studies NAME [OPTIONS]     NAME --help shows the options of a study
       python -m studies all [OPTIONS]      run all studies of claims, one after another"""


def study_names() -> dict[str, str]:
    """Return the names of the studies and the first lines of their docstrings, without importing them."""
    descriptions = {}
    for module in pkgutil.iter_modules(studies.__path__):
        origin = getattr(importlib.util.find_spec(f"studies.{module.name}"), "origin", None)
        if not module.name.startswith("_") and origin:
            text = ast.get_docstring(ast.parse(Path(origin).read_text(encoding="utf-8"))) or ""
            descriptions[module.name] = text.partition("\n")[0]
    return descriptions


def claims() -> list[str]:
    """Return the studies of claims, in the order of their numbers."""
    numbers = {name: getattr(importlib.import_module(f"studies.{name}"), "NUMBER", None) for name in study_names()}
    return sorted((name for name, number in numbers.items() if number), key=lambda name: (numbers[name], name))


def run_all(arguments: Sequence[str]) -> int:
    """Run all studies of claims with the same options. A study that fails does not stop the others."""
    names, failed = claims(), []
    for index, name in enumerate(names, 1):
        print(f"{index} of {len(names)}: {name}", file=sys.stderr, flush=True)
        start = time.monotonic()
        status = main([name, *arguments])
        if status == 130:
            return status
        failed += [name] if status else []
        print(f"{name}: {'failed' if status else 'done'}, {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr)
    if failed:
        print(f"studies: {', '.join(failed)} failed; see the messages above.", file=sys.stderr)
    return int(bool(failed))


def main(arguments: Sequence[str] | None = None) -> int:
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "--list"):
        print(USAGE, *(f"{study:<12} {first}" for study, first in study_names().items()), sep="\n")
        return 0
    if name == "all":
        return run_all(rest)
    if name not in study_names():
        print(f"studies: NAME ({name}) must be one of {', '.join((*study_names(), 'all'))}.", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(f"studies.{name}").main(rest))
    except KeyboardInterrupt:
        print("\nstudies: interrupted. Run the same command again to continue.", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"studies {name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
