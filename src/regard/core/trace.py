"""Named stages of a computation, for whoever explains it: `regard explain` draws one box for each.

Nobody listens otherwise, and a stage costs a look at one variable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Listener = Callable[[str, Any], AbstractContextManager[Any]]
"""Told the name of a stage, and its equation, its number, or the object whose docstring says the equation."""

_silent: AbstractContextManager[Any] = nullcontext()
_listener: Listener | None = None


def stage(name: str, of: Any = None) -> AbstractContextManager[Any]:
    """The operations inside are the stage of this name.

    >>> with stage("weighting"):
    ...     pass
    """
    return _silent if _listener is None else _listener(name, of)


def listen(listener: Listener | None) -> Listener | None:
    """Tell this listener of every stage from now on; returns the one before, to be put back."""
    global _listener
    before, _listener = _listener, listener
    return before
