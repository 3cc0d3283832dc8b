"""Call the application of the server without HTTP: for notebooks, whose page sends its requests as messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp, Message


class Answer(NamedTuple):
    """Status and contents of a response."""

    status: int
    contents: bytes


async def call(app: ASGIApp, path: str, body: str | None = None) -> Answer:
    """Return the answer of an ASGI application to GET, or to POST with a JSON body.

    Cancelling this coroutine stops the work, as if a client had disconnected.

    Args:
        app: the application of `regard.server.routes.create`.
        path: path and query string, such as "api/maps/0/1/query/3?top=5".
        body: JSON.
    """
    name, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "scheme": "http",
        "path": f"/{unquote(name)}",
        "raw_path": f"/{name}".encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    requests: list[Message] = [{"type": "http.request", "body": (body or "").encode(), "more_body": False}]
    responses: list[Mapping[str, Any]] = []

    async def receive() -> Message:
        if requests:
            return requests.pop()
        await asyncio.Event().wait()  # the client does not disconnect; the task is cancelled instead
        raise AssertionError

    async def send(message: Message) -> None:
        responses.append(message)

    await app(scope, receive, send)
    return Answer(responses[0]["status"], b"".join(message.get("body", b"") for message in responses[1:]))
