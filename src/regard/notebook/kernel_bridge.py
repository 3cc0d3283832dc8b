"""Requests of the page as messages to the kernel: no server runs, and no port is opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypedDict

from ..core.standalone_page import standalone_page
from ..server.direct_calls import Answer, call
from ..server.routes import create
from ..server.target import Target

Send: TypeAlias = Callable[[dict[str, object], list[bytes]], None]
"""Function that sends a message, with its buffers, to the browser."""


class PageRequest(TypedDict, total=False):
    """A request of the page."""

    id: int
    page: bool
    path: str
    body: str | None
    abort: bool


class PageMessage(TypedDict, total=False):
    """A message of the page."""

    view: str
    requests: list[PageRequest]
    closed: bool


class KernelBridge:
    """Answers the messages of the page by the application of `regard view`.

    A message is a dictionary with `view`, the name of a display of the widget, and

        requests: [...]       requests, each with an `id` that its answer repeats, and one of
            page: true            the page itself, as HTML
            path, body            a request of the HTTP API; `body` is JSON or None
            abort: true           the request with this id is not needed any more
        closed: true          no request of this view is needed any more

    An answering message has `answers`, each with an `id` and the `status` of HTTP, and the contents as buffers in the
    same order. What is ready at the same time is sent in one message, because every message passes through the
    notebook's server. Requests run in threads, so they do not block the kernel.

    >>> import torch, regard
    >>> from regard.server.target import Capture
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> sent = []
    >>> bridge = KernelBridge(Capture(seen, "seen"), lambda content, buffers: sent.append((content, buffers)))
    >>> bridge.receive({"view": "a", "requests": [{"id": 1, "path": "api/maps/0/1/query/3?top=5", "body": None}]})
    >>> bridge.wait()
    >>> sent[0][0], sent[0][1][0][:7]
    ({'view': 'a', 'answers': [{'id': 1, 'status': 200}]}, b'{"keys"')
    >>> bridge.close()
    """

    def __init__(self, target: Target, send: Send) -> None:
        self._app, self._send = create(target), send
        self._open: dict[tuple[object, object], Future[None]] = {}
        self._ready: dict[object, list[tuple[object, Answer]]] = {}
        """Answers of each view that have not been sent. Only the event loop uses it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="regard-notebook", daemon=True)
        self._thread.start()

    def receive(self, message: PageMessage) -> None:
        """Handle a message of the page. The answers are sent later, from another thread."""
        view = message.get("view")
        if message.get("closed"):
            for key in [key for key in self._open if key[0] == view]:
                self._stop(key)
        for request in message.get("requests", ()):
            self._start(view, request)

    def _start(self, view: object, request: PageRequest) -> None:
        id = request.get("id")
        if request.get("abort"):
            self._stop((view, id))
            return
        if request.get("page"):
            work = self._page(view, id)
        else:
            work = self._answer(view, id, request.get("path", ""), request.get("body"))
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._open[view, id] = future
        future.add_done_callback(lambda _: self._open.pop((view, id), None))

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until all requests are answered, and the answers are sent."""
        for future in list(self._open.values()):
            future.result(seconds)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(seconds)  # after the scheduled answers

    def close(self) -> None:
        """Stop all work and the threads."""
        for key in list(self._open):
            self._stop(key)
        self._app.state.app.queue.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _stop(self, key: tuple[object, object]) -> None:
        future = self._open.get(key)
        if future is not None:
            future.cancel()

    async def _page(self, view: object, id: object) -> None:
        self._collect(view, id, Answer(200, standalone_page().encode()))

    async def _answer(self, view: object, id: object, path: str, body: str | None) -> None:
        self._collect(view, id, await call(self._app, path, body))

    def _collect(self, view: object, id: object, answer: Answer) -> None:
        """Add an answer to the next message, which is sent when nothing else is ready."""
        if view not in self._ready:
            self._ready[view] = []
            self._loop.call_soon(self._send_ready, view)
        self._ready[view].append((id, answer))

    def _send_ready(self, view: object) -> None:
        ready = self._ready.pop(view)
        answers = [{"id": id, "status": answer.status} for id, answer in ready]
        self._send({"view": view, "answers": answers}, [answer.contents for _, answer in ready])
