"""Fixtures shared by the tests of benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import memory


@pytest.fixture
def sample_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a file that this process writes after each memory sample it takes of a child."""
    mark, resident = tmp_path / "sampled", memory.resident

    def marked(pid: int | None = None, anonymous: bool = False) -> int:
        taken = resident(pid, anonymous)
        mark.touch()
        return taken

    monkeypatch.setattr(memory, "resident", marked)
    return str(mark)
