"""Ctrl-C and SIGTERM: the first signal requests an orderly stop, the second one stops at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEBOUNCE_SECONDS = 0.5
"""A second signal within this time is ignored, because torchrun and a held key send more than one."""


class Interrupted(KeyboardInterrupt):
    """Raised after a signal stopped training; the run can be resumed. The exit status of the command is 130."""


class Aborted(KeyboardInterrupt):
    """Raised to abort work that is repeated after resuming."""


class Signals:
    """Context manager that handles signals in the main thread. In other threads it does nothing."""

    def __init__(self) -> None:
        self.stop_requested = False
        """Whether a signal requested to stop."""
        self._when = 0.0
        self._abortable = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.stop_requested and now - self._when >= DEBOUNCE_SECONDS:
            raise KeyboardInterrupt
        if not self.stop_requested:
            self.stop_requested, self._when = True, now
            if self._abortable:
                raise Aborted

    @contextmanager
    def abortable(self) -> Iterator[None]:
        """Within this context, the first signal raises `Aborted` at once. The work is repeated after resuming."""
        if self.stop_requested:
            raise Aborted
        self._abortable = True
        try:
            yield
        finally:
            self._abortable = False
