"""Requests of the page as messages to the kernel: no server runs, and no port is opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeAlias

from ..core.standalone_page import standalone_page
from ..server.direct_calls import Answer, call
from ..server.routes import create
from ..server.target import Target

Send: TypeAlias = Callable[[dict[str, object], list[bytes]], None]
"""Function that sends a message, with its buffers, to the browser."""


class KernelBridge:
    """Answers the messages of the page by the application of `regard view`.

    A message is a dictionary with `view` and `id`, which the answer repeats, and one of

        page: true            the page itself, as HTML
        path, body            a request of the HTTP API; `body` is JSON or None
        abort: true           the request with this id is not needed any more
        closed: true          no request of this view is needed any more

    An answer has the `status` of HTTP and the contents as its only buffer. Requests run in threads, so they do not
    block the kernel.

    >>> import torch, regard
    >>> from regard.server.target import Capture
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> with regard.watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> answers = []
    >>> bridge = KernelBridge(Capture(seen, "seen"), lambda content, buffers: answers.append((content, buffers)))
    >>> bridge.receive({"view": "a", "id": 1, "path": "api/maps/0/1/query/3?top=5", "body": None})
    >>> bridge.wait()
    >>> answers[0][0], answers[0][1][0][:7]
    ({'view': 'a', 'id': 1, 'status': 200}, b'{"keys"')
    >>> bridge.close()
    """

    def __init__(self, target: Target, send: Send) -> None:
        self._app, self._send = create(target), send
        self._open: dict[tuple[object, object], Future[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="regard-notebook", daemon=True)
        self._thread.start()

    def receive(self, message: Mapping[str, object]) -> None:
        """Handle a message of the page. The answer is sent later, from another thread."""
        view, id = message.get("view"), message.get("id")
        if message.get("closed"):
            for key in [key for key in self._open if key[0] == view]:
                self._stop(key)
        elif message.get("abort"):
            self._stop((view, id))
        elif message.get("page"):
            self._send({"view": view, "id": id, "status": 200}, [standalone_page().encode()])
        else:
            path, body = str(message.get("path", "")), message.get("body")
            work = self._answer(view, id, path, None if body is None else str(body))
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._open[view, id] = future
            future.add_done_callback(lambda _: self._open.pop((view, id), None))

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until all requests are answered."""
        for future in list(self._open.values()):
            future.result(seconds)

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

    async def _answer(self, view: object, id: object, path: str, body: str | None) -> None:
        answer: Answer = await call(self._app, path, body)
        self._send({"view": view, "id": id, "status": answer.status}, [answer.contents])
