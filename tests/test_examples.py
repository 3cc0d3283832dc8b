"""The example notebooks run, print what they contain, and are small."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_SIZE = 500_000
"""Maximum size of a notebook in bytes, with its outputs."""
PICTURES = {"text/html", "image/svg+xml", "image/png"}


def cells(path: Path) -> list[dict[str, Any]]:
    contents = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in contents["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    outputs = [output for output in cell["outputs"] if output.get("name") == "stdout"]
    return "".join("".join(output["text"]) for output in outputs)


def last_value(source: str, names: dict[str, Any]) -> object:
    """Run a cell and return the value of its last line, as a notebook does."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]


def test_there_are_four_notebooks() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_contains(path: Path) -> None:
    names: dict[str, Any] = {}
    for cell in cells(path):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            value = last_value("".join(cell["source"]), names)
        assert output.getvalue() == printed(cell), cell["source"]
        displayed = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]
        assert bool(displayed) == (value is not None), cell["source"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_and_small(path: Path) -> None:
    assert path.stat().st_size < MAX_SIZE
    counts = [cell["execution_count"] for cell in cells(path)]
    assert counts == [*range(1, len(counts) + 1)]
    outputs = [output for cell in cells(path) for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    results = [output["data"] for output in outputs if output["output_type"] == "execute_result"]
    assert path.stem.startswith("3") or results
    for data in results:
        assert PICTURES & data.keys(), "a picture, for readers without a kernel"
        assert not [kind for kind in data if "widget" in kind], "a widget needs its kernel"
    assert not (text := path.read_text(encoding="utf-8")).count("/tmp/") and "/home/" not in text
