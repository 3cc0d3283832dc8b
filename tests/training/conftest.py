"""Fixtures of the training tests. Curves are drawn only on request, because drawing takes longer than a small run."""

from collections.abc import Iterator

import pytest

from regard.training import logbook
from tests.training.processes import CONTEXT, ROOT


@pytest.fixture
def drawing() -> None:
    """Enable drawing for a test."""


@pytest.fixture(autouse=True)
def no_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawing" not in request.fixturenames:
        monkeypatch.setattr(logbook, "draw", lambda records, goal: b"")


@pytest.fixture(autouse=True, scope="session")
def forks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        CONTEXT.set_forkserver_preload(["tests.training.toy"])
        yield
