"""A backend refuses what it does not serve: such combinations of parameters are tested too, not skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

REFUSED = {("native", "callable"), ("torch", "callable"), ("torch", "additive")}
"""Backends and similarities."""


def assert_refused(backend: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=rf"backend \('{backend}'\) cannot serve this request: "):
        call()
