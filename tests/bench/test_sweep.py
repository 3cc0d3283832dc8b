"""The sweep over the classes of transformers: its counts, and workers that do not answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench import huggingface
from bench.harness import Options

ROWS = [
    {"name": "A", "set": "equal", "built": "refused", "detail": "built: ValueError: huggingface: A must …"},
    {"name": "B", "set": "wrong", "built": "equal", "detail": "set: off by 1.0e+00"},
    {"name": "C", "set": "skipped", "built": "skipped", "detail": "no config"},
]


def test_wrong_output_misses_the_bar_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examine_all(names: Sequence[str], seconds: float) -> Iterator[dict[str, str]]:
        return (row for row in ROWS if row["name"] in names)

    monkeypatch.setattr(huggingface, "classes", lambda: ["A", "B", "C"])
    monkeypatch.setattr(huggingface, "examine_all", examine_all)
    options = Options(out=tmp_path)
    counts = {figure.name: (figure.measure(), figure.bar) for figure in huggingface.figures(options)}
    assert counts["wrong, set"] == (1, "<= 0") and counts["wrong, built"] == (0, "<= 0")
    assert counts["refused, built"] == (1, None)
    assert huggingface.conclude([], options) == "B: set: off by 1.0e+00\n2 of 3 classes were built and run."
    assert len((tmp_path / "huggingface-classes.csv").read_text(encoding="utf-8").splitlines()) == 4


def test_a_worker_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "COMMAND", [sys.executable, "-c", "import time; time.sleep(600)"])
    rows = list(huggingface.examine_all(["A", "B"], seconds=0.01))
    assert [row["set"] for row in rows] == ["timeout"] * 2
    monkeypatch.setattr(huggingface, "COMMAND", [sys.executable, "-c", ""])
    assert [row["built"] for row in huggingface.examine_all(["A"], seconds=600.0)] == ["timeout"]
