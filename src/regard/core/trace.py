"""Named steps of a computation, for `regard explain`, which draws one box per step.

Without a listener, a step costs one lookup of a global variable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Listener = Callable[[str, Any], AbstractContextManager[Any]]
"""Called with the name of a step and its equation, its number, or the object whose docstring has the equation."""

_silent: AbstractContextManager[Any] = nullcontext()
_listener: Listener | None = None


def trace_step(name: str, of: Any = None) -> AbstractContextManager[Any]:
    """Mark the operations in the block as one named step.

    >>> with trace_step("weighting"):
    ...     pass
    """
    return _silent if _listener is None else _listener(name, of)


def set_listener(listener: Listener | None) -> Listener | None:
    """Set the function that is called for every step. Return the previous one, so that it can be restored."""
    global _listener
    before, _listener = _listener, listener
    return before
