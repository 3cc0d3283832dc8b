"""Curves are drawn where a test asks for them: a drawing takes longer than a small run."""

import pytest

from regard.training import logbook


@pytest.fixture
def drawing() -> None:
    """For tests that want the picture."""


@pytest.fixture(autouse=True)
def no_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawing" not in request.fixturenames:
        monkeypatch.setattr(logbook, "draw", lambda records, goal: b"")
