"""Unneeded work is cancelled: tickets, disconnected clients, time limits, the cache."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from regard.server.guard import RequestError
from regard.server.target import Capture
from regard.server.work_queue import Cache, Stopped, Task, WorkQueue
from tests.server.conftest import asked, run


class Client:
    """A request whose client may disconnect."""

    gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


def blocked() -> tuple[threading.Event, Callable[[Task], str]]:
    release = threading.Event()

    def job(task: Task) -> str:
        while not release.wait(0.01):
            task.check()
        return "done"

    return release, job


async def wait_until(queue: WorkQueue, working: int, waiting: int) -> None:
    """Wait until the given numbers of jobs are running and waiting."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        result = queue.progress()
        if (len(result["working"]), result["waiting"]) == (working, waiting):
            return
        await asyncio.sleep(0.001)
    pytest.fail(f"{working} at work and {waiting} waiting expected; got {queue.progress()}")


def test_older_tickets_are_dropped() -> None:
    async def scene() -> None:
        queue, client, ran = WorkQueue(threads=1), Client(), []
        release, job = blocked()
        first = asyncio.ensure_future(queue.submit(client, "first", job, "map", 1))  # type: ignore[arg-type]
        await wait_until(queue, 1, 0)

        def ask(name: str, scope: str, ticket: int | None) -> asyncio.Future[Any]:
            return asyncio.ensure_future(queue.submit(client, name, lambda task: ran.append(name), scope, ticket))  # type: ignore[arg-type]

        old, same, other, plain = (
            ask("old", "map", 1),
            ask("same", "map", 2),
            ask("other", "else", 1),
            ask("x", "map", None),
        )
        await wait_until(queue, 1, 3)
        new = ask("new", "map", 2)
        late = ask("late", "map", 1)
        await wait_until(queue, 1, 4)
        for dropped in (old, late):
            with pytest.raises(RequestError) as refused:
                await dropped
            assert refused.value.status == 409 and "ticket (1)" in refused.value.message
        assert queue.progress()["waiting"] == 4 and queue.progress()["working"][0]["what"] == "first"
        release.set()
        assert await first == "done"  # what has begun goes on
        await asyncio.gather(same, other, plain, new)
        assert ran == ["same", "other", "x", "new"]
        again = ask("again", "map", 1)  # nothing newer waits any more
        await again
        queue.close()

    run(scene())


def test_a_disconnected_client_frees_the_thread() -> None:
    async def scene() -> None:
        queue, client = WorkQueue(threads=1), Client()
        _, job = blocked()
        task = asyncio.ensure_future(queue.submit(client, "x", job))  # type: ignore[arg-type]
        await wait_until(queue, 1, 0)
        client.gone = True
        with pytest.raises(RequestError, match="the client disconnected"):
            await task
        assert await queue.submit(Client(), "y", lambda task: 5) == 5  # type: ignore[arg-type]
        queue.close()

    run(scene())


def test_a_timeout_reports_the_progress() -> None:
    async def scene() -> None:
        queue = WorkQueue(threads=1, seconds=0.2)

        def job(task: Task) -> None:
            for _ in task.over(range(10**9)):  # until it is stopped
                time.sleep(0.01)

        with pytest.raises(RequestError) as refused:
            await queue.submit(Client(), "a picture", job)  # type: ignore[arg-type]
        assert refused.value.status == 504
        assert "a picture took more than 0.2 s and was stopped at " in refused.value.message
        queue.close()

    run(scene())


def test_progress_lists_running_work_with_the_fraction_done() -> None:
    async def scene() -> None:
        queue = WorkQueue(threads=2)
        release, plain = blocked()

        def steps(task: Task) -> None:
            for part in task.over(range(4)):
                for half in task.over(range(2)):
                    if (part, half) == (2, 1):
                        release.wait(60)

        tasks = [asyncio.ensure_future(queue.submit(Client(), "steps", steps))]  # type: ignore[arg-type]
        tasks += [asyncio.ensure_future(queue.submit(Client(), "plain", plain))]  # type: ignore[arg-type]
        end = time.monotonic() + 60
        expected = [{"what": "steps", "done": 0.625}, {"what": "plain", "done": None}]
        while queue.progress() != {"working": expected, "waiting": 0} and time.monotonic() < end:
            await asyncio.sleep(0.001)
        assert queue.progress() == {"working": expected, "waiting": 0}
        release.set()
        await asyncio.gather(*tasks)
        queue.close()

    run(scene())


def test_the_number_of_waiting_requests_is_limited() -> None:
    async def scene() -> None:
        queue = WorkQueue(threads=1, waiting=1)
        release, job = blocked()
        tasks = [asyncio.ensure_future(queue.submit(Client(), "x", job)) for _ in range(2)]  # type: ignore[arg-type]
        await wait_until(queue, 1, 1)
        with pytest.raises(RequestError) as refused:
            await queue.submit(Client(), "z", job)  # type: ignore[arg-type]
        assert refused.value.status == 503 and "1 requests are waiting" in refused.value.message
        release.set()
        assert await asyncio.gather(*tasks) == ["done", "done"]
        queue.close()

    run(scene())


def test_closing_stops_running_and_waiting_work() -> None:
    async def scene() -> None:
        queue = WorkQueue(threads=1)
        _, job = blocked()
        tasks = [asyncio.ensure_future(queue.submit(Client(), "x", job)) for _ in range(3)]  # type: ignore[arg-type]
        await wait_until(queue, 1, 2)
        queue.close()
        for task in tasks:
            with pytest.raises(RequestError, match="shutting down"):
                await task

    run(scene())


def test_a_stopped_task_raises() -> None:
    task = Task("x")
    steps = task.over([1, 2])
    assert next(steps) == 1
    task.stop()
    with pytest.raises(Stopped):
        next(steps)


def test_the_cache_keeps_recently_used_values() -> None:
    cache = Cache(100)
    for n in range(10):
        cache.put(n, bytes(30))
        cache.get(0)
    assert cache.size == 90 and cache.get(0) and cache.get(9) and not cache.get(5)
    cache.put("large", bytes(200))
    assert cache.size <= 100 and cache.get("large") is None
    cache.put(1, bytes(10))
    cache.put(1, bytes(20))
    assert cache.size == 20


def test_shades_are_cached_in_both_formats(saw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(1 << 20)
    client = asked(Capture(saw, "x"), cache=cache)
    first = client.get("/api/maps/0/0/overview.pgm").content
    monkeypatch.setattr("regard.server.head_views.Head.picture", None)
    assert client.get("/api/maps/0/0/overview.pgm").content == first
    assert client.get("/api/maps/0/0/overview.png?palette=dark").status_code == 200
    assert client.get("/api/maps/0/0/overview.pgm?scale=log").status_code == 500  # would have to compute
    assert 0 < cache.size < 2000
