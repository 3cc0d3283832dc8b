"""Combinations of parameters that a backend refuses. They are tested too, not skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

REFUSED = {("native", "callable"), ("torch", "callable"), ("torch", "additive")}
"""Unsupported pairs of backend and similarity."""


def assert_refused(backend: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=rf"backend \('{backend}'\) cannot serve this request: "):
        call()
