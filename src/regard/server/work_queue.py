"""Work: a few threads, and requests that wait for them no longer than anybody wants the answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from ..core.process import release_freed
from .guard import Refused

T = TypeVar("T")
THREADS = 2
SECONDS = 120.0
"""A request may take, waiting included."""
WAITING = 256
"""Requests that may wait at once."""
POLL = 0.1
"""Seconds between two looks at whether the client is still there."""
CACHE = 16 * 2**20
"""Bytes of pictures that are kept."""
IDLE = 2.0
"""Seconds without work after which freed memory is returned to the system."""


class Stopped(Exception):
    """Nobody wants the answer any more."""


class Task:
    """A piece of work under way: long work asks it, step by step, whether to go on."""

    def __init__(self, what: str = "", scope: Hashable = None, ticket: int | None = None) -> None:
        self.what, self.scope, self.ticket = what, scope, ticket
        self.done: float | None = None
        """The share that is done; None for work that has no steps."""
        self._share = 1.0
        """What the step under way is of the whole."""
        self.started = self.stale = False
        self._stop = threading.Event()
        self.future: Future[Any] | None = None

    def stop(self) -> None:
        self._stop.set()
        if self.future is not None:
            self.future.cancel()

    def check(self) -> None:
        """Raise Stopped if nobody wants the answer any more."""
        if self._stop.is_set():
            raise Stopped(self.what)

    def over(self, steps: Sequence[T]) -> Iterator[T]:
        """The steps one by one, for as long as somebody wants the answer. A step may have steps of its own.

        >>> task = Task()
        >>> [task.done for _ in task.over("ab") for _ in task.over("cd")]
        [0.0, 0.25, 0.5, 0.75]
        """
        before, share = self.done or 0.0, self._share
        for number, step in enumerate(steps):
            self.check()
            self._share = share / len(steps)
            self.done = before + number * self._share
            yield step
        self.done, self._share = before + share, share


class Desk:
    """Takes work from the event loop to a few threads, and takes it back when it is not wanted any more.

    Requests with a ticket belong to a screenful: one that still waits when a newer screenful of the same scope comes is
    dropped (409), and whoever wants it after all asks again.
    """

    def __init__(self, threads: int = THREADS, seconds: float = SECONDS, waiting: int = WAITING) -> None:
        self.seconds, self.waiting = seconds, waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="regard-view")
        self._tasks: list[Task] = []
        self._idle: asyncio.TimerHandle | None = None

    async def do(
        self,
        request: Request,
        what: str,
        job: Callable[[Task], T],
        scope: Hashable = None,
        ticket: int | None = None,
    ) -> T:
        """The job's result; raises Refused when it was dropped or took too long."""
        task = self._enter(Task(what, scope, ticket))
        task.future = self._pool.submit(self._run, task, job)
        try:
            return await self._wait(request, task)
        finally:
            self._tasks.remove(task)
            task.stop()
            self._release_when_idle()

    def _release_when_idle(self) -> None:
        """Each thread frees memory to an arena of its own, which the C library would keep after a burst of requests."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None if self._tasks else asyncio.get_running_loop().call_later(IDLE, release_freed)

    def _enter(self, task: Task) -> Task:
        waiting = [other for other in self._tasks if not other.started]
        if len(waiting) >= self.waiting:
            raise Refused(503, f"{len(waiting)} requests wait already; at most {self.waiting} may. Ask again later.")
        if task.ticket is not None:
            same = [other for other in waiting if other.scope == task.scope and other.ticket is not None]
            if any(other.ticket > task.ticket for other in same if other.ticket is not None):
                raise _dropped(task)
            for other in same:
                if other.ticket is not None and other.ticket < task.ticket:
                    other.stale = True
                    other.stop()
        self._tasks.append(task)
        return task

    @staticmethod
    def _run(task: Task, job: Callable[[Task], T]) -> T:
        task.check()
        task.started = True
        return job(task)

    async def _wait(self, request: Request, task: Task) -> Any:
        assert task.future is not None
        deadline = time.monotonic() + self.seconds
        future = asyncio.wrap_future(task.future)
        future.add_done_callback(_retrieve)
        while not future.done():
            await asyncio.wait({future}, timeout=POLL)
            if future.done():
                break
            if await request.is_disconnected():
                raise Refused(499, "the client went away.")
            if time.monotonic() > deadline:
                raise Refused(
                    504,
                    f"{task.what} took more than {self.seconds:g} s and was stopped at {task.done or 0:.0%}. "
                    "Ask again to go on from what is known by then, or look at a smaller part.",
                )
        if task.stale:
            raise _dropped(task)
        if future.cancelled() or isinstance(future.exception(), Stopped):
            raise Refused(503, "the server is ending.")
        return future.result()

    def progress(self) -> dict[str, Any]:
        """What is being computed, which share of it is done, where that is known, and how many requests wait."""
        working = [
            {"what": task.what, "done": None if task.done is None else round(task.done, 3)}
            for task in self._tasks
            if task.started
        ]
        return {"working": working, "waiting": sum(not task.started for task in self._tasks)}

    def close(self) -> None:
        for task in self._tasks:
            task.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception of work that was stopped as seen; asyncio would report it when the future is collected."""
    if not future.cancelled():
        future.exception()


def _dropped(task: Task) -> Refused:
    return Refused(409, f"ticket ({task.ticket}) waited behind a newer screenful and was dropped. Ask again if wanted.")


class Cache:
    """What was used last, up to a number of bytes.

    >>> cache = Cache(10)
    >>> for name in "abc":
    ...     cache.put(name, b"1234")
    >>> cache.get("a"), cache.get("c"), cache.size
    (None, b'1234', 8)
    """

    def __init__(self, most: int = CACHE) -> None:
        self.most, self.size = most, 0
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: bytes) -> None:
        with self._lock:
            self.size += len(value) - len(self._kept.pop(key, b""))
            self._kept[key] = value
            while self.size > self.most:
                self.size -= len(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.size = 0
