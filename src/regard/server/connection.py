"""HTTP connections with a time limit for each request, so that slow clients cannot block the server.

uvicorn waits for the rest of a request without limit and counts such a connection like any other. Here, a connection
has `SECONDS` to send a request. If too many requests are incomplete, the oldest connections are closed.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0
"""Time limit in seconds from the first byte of a request, or from the connection, to the last byte of the request."""
Poller = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Windows has no poll. Selectors that open a file of their own would fail when the server has too many open files."""
MAX_INCOMPLETE = 640
"""Maximum number of connections with an incomplete request. A new one closes the oldest."""


class Connection(H11Protocol):
    """An HTTP/1.1 connection with a time limit for each request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waiting_since: float | None = None
        """Start time of the incomplete request; None between requests and while a response is sent."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # asyncio passes a Transport to a Protocol of streams
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _update(self) -> None:
        """Start or stop the timer, depending on whether the request is complete."""
        if self.transport.is_closing():
            self._stop_waiting()
        elif self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        ):
            self._wait()
        else:
            self._stop_waiting()

    def _wait(self) -> None:
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
            self._timer = self.loop.call_later(SECONDS, self._expire)
        self._close_oldest()  # also after each read, because connections with unread bytes are kept until then

    def _close_oldest(self) -> None:
        """Close the oldest incomplete connections if there are too many."""
        if len(self.connections) <= MAX_INCOMPLETE:
            return
        waiting = [
            (since, one)
            for one in self.connections
            if isinstance(one, Connection) and (since := one.waiting_since) is not None
        ]
        incomplete = sorted(waiting, key=lambda pair: pair[0])
        for _, oldest in incomplete[: max(0, len(incomplete) - MAX_INCOMPLETE)]:
            if not oldest.unread:
                oldest.close()

    @property
    def unread(self) -> bool:
        """Whether bytes have arrived that the server has not read yet."""
        with Poller() as poller:
            poller.register(self.transport.get_extra_info("socket").fileno(), selectors.EVENT_READ)
            return bool(poller.select(0))

    def _expire(self) -> None:
        if self.unread:
            self._timer = self.loop.call_later(SECONDS, self._expire)
        else:
            self.close()

    def _stop_waiting(self) -> None:
        self.waiting_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Close the connection without a response."""
        self._stop_waiting()
        self.connections.discard(self)
        self.transport.abort()
