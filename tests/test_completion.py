"""Public names complete with Tab in IPython, also those that are imported on first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import regard
from tests.test_public_names import PUBLIC, import_public

IPython = pytest.importorskip("IPython")


def completions(line: str, **names: object) -> set[str]:
    """Return the names that Tab offers after the last dot of a line."""
    from IPython.core.completer import IPCompleter

    completer = IPCompleter(namespace=names, use_jedi=False)
    _, matches = completer.complete(line_buffer=line, cursor_pos=len(line))
    return {match.rpartition(".")[2] for match in matches}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "regard.huggingface"])
def test_every_public_name_of_a_module_completes(name: str) -> None:
    module = import_public(name)
    missing = set(getattr(module, "__all__", ())) - completions(f"{name}.", regard=regard)
    assert not missing


def test_objects_complete() -> None:
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with regard.watch(model) as seen:
        model(torch.randn(1, 5, 8))
    for value, expected in (
        (seen, {"maps", "grid", "links", "widget", "rollout", "profile", "save"}),
        (seen.maps[0], {"pool", "top", "show", "save", "widget", "dense"}),
        (importlib.import_module("regard.tasks").Translator, {"translate", "maps", "evaluate", "export"}),
    ):
        assert expected <= completions("value.", value=value)


def test_packages_complete_before_they_are_imported() -> None:
    """`import regard` offers its packages: `regard.lens` completes although it is imported on first use."""
    code = "import regard; print(*dir(regard)); regard.lens.Seen; regard.tasks.Translator; regard.pictures"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    assert {"lens", "tasks", "layers", "models", "explain", "training", "data", "watch"} <= set(result.stdout.split())
