"""Clients that send incomplete requests or disconnect do not block others."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from regard.commands.view import _listening, server_of
from regard.server import connection, work_queue
from regard.server.target import Capture
from tests.server.conftest import run, seen

HALF = b"GET /api/target HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_BODY = b"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
LIMIT = 600.0
"""Seconds after which a test that hangs fails."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A real server in a thread."""
    with _listening("127.0.0.1", 0) as listening:
        server = server_of(Capture(seen(), "a capture"), "127.0.0.1", listening)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def half_sent(stack: ExitStack, port: int, data: bytes, count: int) -> list[socket.socket]:
    clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
    for client in clients:
        client.sendall(data)
    return clients


def closed(client: socket.socket) -> bool:
    """Return whether the server closes the connection. It may respond first."""
    client.settimeout(LIMIT)
    try:
        while client.recv(2**16):
            pass
        return True
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("data", [b"", HALF, HALF_BODY], ids=["nothing", "half a head", "half a body"])
def test_incomplete_requests_do_not_block_other_clients(
    port: int, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SECONDS", 3600.0)  # only a lack of room closes a connection
    with ExitStack() as stack:
        clients = half_sent(stack, port, data, 950)  # more than the server takes at once
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/api/target", timeout=LIMIT).status_code == 200
        assert closed(clients[0])  # the oldest made room


def test_incomplete_requests_that_arrive_while_the_server_is_busy_make_room(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SECONDS", 3600.0)
    loops: list[asyncio.AbstractEventLoop] = []
    wait = connection.Connection._wait
    monkeypatch.setattr(connection.Connection, "_wait", lambda self: (loops.append(self.loop), wait(self)))
    assert httpx.get(f"http://127.0.0.1:{port}/api/target", timeout=LIMIT).status_code == 200
    go_on = threading.Event()
    with ExitStack() as stack:
        stack.callback(go_on.set)
        loops[0].call_soon_threadsafe(go_on.wait, LIMIT)
        clients = half_sent(stack, port, HALF, 950)  # all are accepted before the server reads from any of them
        go_on.set()
        assert httpx.get(f"http://127.0.0.1:{port}/api/target", timeout=LIMIT).status_code == 200
        assert closed(clients[0])


def test_many_connections_at_once_are_all_served(port: int) -> None:
    with ExitStack() as stack:
        clients = half_sent(stack, port, b"", 300)
        for client in clients:
            client.sendall(b"GET /api/progress HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for client in clients:
            client.settimeout(LIMIT)
            assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("data", [b"", HALF, HALF_BODY], ids=["nothing", "half a head", "half a body"])
def test_a_request_must_arrive_in_time(port: int, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SECONDS", 0.2)
    with ExitStack() as stack:
        (client,) = half_sent(stack, port, data, 1)
        assert closed(client)


def test_a_connection_is_kept_between_complete_requests(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[connection.Connection] = []
    started = connection.Connection._wait
    monkeypatch.setattr(connection.Connection, "_wait", lambda self: (clocks.append(self), started(self)))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client:
        first = client.get("/api/target")
        assert clocks and all(one.waiting_since is one._timer is None for one in clocks)  # no limit runs any more
        again = client.get("/api/target")
        streams = [answer.extensions["network_stream"].get_extra_info("socket") for answer in (first, again)]
        assert again.status_code == 200 and streams[0] is streams[1]


def test_stopped_work_does_not_report_an_unretrieved_exception(caplog: pytest.LogCaptureFixture) -> None:
    class Gone:
        async def is_disconnected(self) -> bool:
            return True

    async def scene() -> None:
        queue, running = work_queue.WorkQueue(), threading.Event()

        def job(task: work_queue.Task) -> None:
            running.set()
            for _ in task.over(range(10**9)):
                pass

        with pytest.raises(work_queue.RequestError, match="the client disconnected"):
            await queue.submit(Gone(), "work", job)  # type: ignore[arg-type]
        assert running.wait(LIMIT)
        queue._pool.shutdown(wait=True)
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, "asyncio"):
        run(scene())
    assert not caplog.records
