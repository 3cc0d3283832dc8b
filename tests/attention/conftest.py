"""What tests of the native kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regard.attention import engine


@pytest.fixture(params=engine.module.isas() if engine.module else ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of the kernels that runs here, in use for the time of a test."""
    if engine.module is None:
        pytest.skip(f"native: {engine.reason}")
    before = engine.module.isa()
    engine.module.use_isa(request.param)
    yield request.param
    engine.module.use_isa(before)
