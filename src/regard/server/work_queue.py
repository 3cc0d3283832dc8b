"""Worker threads for requests. Work is cancelled when its client disconnects or no longer needs the result."""

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
from .guard import RequestError

T = TypeVar("T")
THREADS = 2
SECONDS = 120.0
"""Time limit of a request in seconds, including the time in the queue."""
MAX_WAITING = 256
"""Maximum number of waiting requests."""
POLL = 0.1
"""Seconds between two checks whether the client is still connected."""
CACHE_SIZE = 16 * 2**20
"""Maximum size of the cached images in bytes."""
IDLE = 2.0
"""Seconds without work after which freed memory is returned to the system."""


class Stopped(Exception):
    """The result is not needed any more."""


class Task:
    """A running job. Long jobs check between steps whether they were stopped."""

    def __init__(self, label: str = "", scope: Hashable = None, ticket: int | None = None) -> None:
        self.label, self.scope, self.ticket = label, scope, ticket
        self.done: float | None = None
        """Fraction that is done; None for a job without steps."""
        self._share = 1.0
        """Fraction of the whole job in the current step."""
        self.started = self.stale = False
        self._stop = threading.Event()
        self.future: Future[Any] | None = None

    def stop(self) -> None:
        """Request that the job stops."""
        self._stop.set()
        if self.future is not None:
            self.future.cancel()

    def check(self) -> None:
        """Raise Stopped if the job was stopped."""
        if self._stop.is_set():
            raise Stopped(self.label)

    def over(self, steps: Sequence[T]) -> Iterator[T]:
        """Yield the steps and update `done`, until the job is stopped. Calls may be nested.

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


class WorkQueue:
    """Runs jobs of the event loop in worker threads and cancels those that are not needed any more.

    All requests of one screen update have the same ticket. When a newer ticket of the same scope arrives, older
    requests that are still waiting are dropped with status 409. The client may request them again.
    """

    def __init__(self, threads: int = THREADS, seconds: float = SECONDS, waiting: int = MAX_WAITING) -> None:
        self.seconds, self.waiting = seconds, waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="regard-view")
        self._tasks: list[Task] = []
        self._idle: asyncio.TimerHandle | None = None

    async def submit(
        self,
        request: Request,
        label: str,
        job: Callable[[Task], T],
        scope: Hashable = None,
        ticket: int | None = None,
    ) -> T:
        """Run a job and return its result. Raise RequestError if it was dropped or took too long."""
        task = self._enter(Task(label, scope, ticket))
        task.future = self._pool.submit(self._run, task, job)
        try:
            result: T = await self._wait(request, task)
            return result
        finally:
            self._tasks.remove(task)
            task.stop()
            self._release_when_idle()

    def _release_when_idle(self) -> None:
        """Return freed memory to the system when idle. The C library would keep it in the arenas of the threads."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None if self._tasks else asyncio.get_running_loop().call_later(IDLE, release_freed)

    def _enter(self, task: Task) -> Task:
        waiting = [other for other in self._tasks if not other.started]
        if len(waiting) >= self.waiting:
            raise RequestError(
                503, f"{len(waiting)} requests are waiting; at most {self.waiting} may wait. Try again later."
            )
        if task.ticket is not None:
            same = [other for other in waiting if other.scope == task.scope and other.ticket is not None]
            if any(other.ticket > task.ticket for other in same if other.ticket is not None):
                raise _dropped_error(task)
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
                raise RequestError(499, "the client disconnected.")
            if time.monotonic() > deadline:
                raise RequestError(
                    504,
                    f"{task.label} took more than {self.seconds:g} s and was stopped at {task.done or 0:.0%}. "
                    "Try again to continue from cached results, or select a smaller region.",
                )
        if task.stale:
            raise _dropped_error(task)
        if future.cancelled() or isinstance(future.exception(), Stopped):
            raise RequestError(503, "the server is shutting down.")
        return future.result()

    def progress(self) -> dict[str, Any]:
        """Return the running jobs with the fraction done, if known, and the number of waiting requests."""
        working = [
            {"what": task.label, "done": None if task.done is None else round(task.done, 3)}
            for task in self._tasks
            if task.started
        ]
        return {"working": working, "waiting": sum(not task.started for task in self._tasks)}

    def close(self) -> None:
        """Stop all jobs and the threads."""
        for task in self._tasks:
            task.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a stopped job, because asyncio reports exceptions that were never retrieved."""
    if not future.cancelled():
        future.exception()


def _dropped_error(task: Task) -> RequestError:
    return RequestError(
        409, f"ticket ({task.ticket}) was replaced by a newer ticket and dropped. Request it again if needed."
    )


class Cache:
    """A cache of the most recently used values, limited by their total size in bytes.

    >>> cache = Cache(10)
    >>> for name in "abc":
    ...     cache.put(name, b"1234")
    >>> cache.get("a"), cache.get("c"), cache.size
    (None, b'1234', 8)
    """

    def __init__(self, max_size: int = CACHE_SIZE) -> None:
        self.max_size, self.size = max_size, 0
        self._values: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: bytes) -> None:
        with self._lock:
            self.size += len(value) - len(self._values.pop(key, b""))
            self._values[key] = value
            while self.size > self.max_size:
                self.size -= len(self._values.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self.size = 0
