"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 0.5
"""Seconds within which a second signal counts as the first: torchrun, and a held key, send more than one."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal and can go on. A command that ends so has exit status 130."""


class Abandoned(KeyboardInterrupt):
    """What can be done again was left off."""


class Signals:
    """Watches for signals while it is entered, in the main thread; elsewhere there are none to watch for."""

    def __init__(self) -> None:
        self.asked = False
        """Whether an end was asked for."""
        self._when = 0.0
        self._droppable = False
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
        if self.asked and now - self._when >= SAME:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._when = True, now
            if self._droppable:
                raise Abandoned

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """Inside, the first signal raises `Abandoned` at once, as the work is done again after resuming."""
        if self.asked:
            raise Abandoned
        self._droppable = True
        try:
            yield
        finally:
            self._droppable = False
