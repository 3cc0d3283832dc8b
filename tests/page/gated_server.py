"""The server of `regard view` for several targets, behind a middleware that logs, delays and rejects requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send
from torch import Tensor

from regard.commands.view import _listening, server_of
from regard.server.guard import RequestError, error_response
from regard.server.routes import App, create
from regard.server.target import Target
from regard.server.work_queue import Task

POLL = 0.01
"""Seconds between two checks of the gate."""


class Gate:
    """Pass requests on to `app`, once the gate is open.

    The first part of a path is the number of a visit. Requests of the newest visit are added to `asked` when they
    arrive, and to `answered` when they have been answered. Requests for files and for progress are neither logged nor
    delayed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.open = threading.Event()
        self.visit = 0
        self.start_visit()

    def start_visit(self) -> None:
        """Forget the requests of earlier visits; delay and reject nothing."""
        self.visit += 1
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.release()

    def release(self) -> None:
        """Delay and reject nothing. A request that is still held would keep the server from stopping."""
        self.refuse: str | None = None
        """Error message for requests for a query; None to serve them."""
        self._held: tuple[str, int] | None = None
        self.open.set()

    def hold_after(self, ending: str, count: int | None) -> None:
        """Hold requests whose path ends so, after this many of them; None lets them pass."""
        self._held = None if count is None else (ending, count)

    def _holds(self, path: str, number: int) -> bool:
        return not self.open.is_set() or bool(self._held and path.endswith(self._held[0]) and number > self._held[1])

    def done(self) -> bool:
        return len(self.answered) >= len(self.asked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        _, visit, path = scope["path"].split("/", 2)
        inner = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode()}
        if "/api/" not in path or path.endswith("/api/progress"):
            await self.app(inner, receive, send)
            return
        query = scope["query_string"].decode()
        address = f"/{path}?{query}" if query else f"/{path}"
        newest = int(visit) == self.visit
        if newest:
            self.asked.append(address)
        number = sum(asked.partition("?")[0].endswith(path) for asked in self.asked)
        while self._holds(path, number):
            await asyncio.sleep(POLL)
        if self.refuse is not None and "/query/" in path:
            await error_response(RequestError(404, self.refuse))(scope, receive, send)
        else:
            await self.app(inner, receive, send)
        if newest and int(visit) == self.visit:
            self.answered.append(address)


class GatedServer:
    """Targets by name, each served below a folder of that name."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self.targets = targets
        self._pretended: list[Task] = []
        self._shown = {name: target.snapshot for name, target in targets.items()}
        apps = {name: create(target) for name, target in targets.items()}
        self.apps: dict[str, App] = {name: app.state.app for name, app in apps.items()}
        self.gate = Gate(Starlette(routes=[Mount(f"/{name}", app) for name, app in apps.items()]))
        self.url = ""

    def restore(self) -> None:
        """Restore the initial snapshots and remove fake tasks."""
        for name, target in self.targets.items():
            target.snapshot = self._shown[name]
            queue = self.apps[name].queue
            queue._tasks = [task for task in queue._tasks if task not in self._pretended]

    def pretend_to_work(self, name: str, *labels: str) -> list[Task]:
        """Add tasks that the server reports as its progress."""
        tasks = [Task(label) for label in labels]
        for task in tasks:
            task.started = True
        self._pretended += tasks
        self.apps[name].queue._tasks += tasks
        return tasks

    def row(self, name: str, map: int, head: str, query: int) -> Tensor:
        return self.targets[name].snapshot.layers[map].head(head).row(query, Task())

    def column(self, name: str, map: int, head: str, key: int) -> Tensor:
        return self.targets[name].snapshot.layers[map].head(head).column(key, Task())

    @contextmanager
    def serving(self) -> Iterator[GatedServer]:
        with _listening("127.0.0.1", 0) as listening:
            server = server_of(next(iter(self.targets.values())), "127.0.0.1", listening)
            server.config.app = self.gate
            with running(server, listening) as self.url:
                yield self
        for app in self.apps.values():
            app.queue.close()


@contextmanager
def served(target: Target) -> Iterator[str]:
    """Serve a target as `regard view` does. Return its URL."""
    with (
        _listening("127.0.0.1", 0) as listening,
        running(server_of(target, "127.0.0.1", listening), listening) as address,
    ):
        yield address


@contextmanager
def running(server: uvicorn.Server, listening: object) -> Iterator[str]:
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(POLL)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"  # type: ignore[attr-defined]
    finally:
        server.should_exit = True
        thread.join()
