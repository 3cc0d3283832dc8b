"""Access control and validation. Every request passes through `Guard`; the parsers check every value in it.

A foreign page in the same browser can send requests to this server. Three headers identify such requests:

    Host             must be a name of this server (protects from DNS rebinding)        421
    Origin           must be this server                                                403
    Sec-Fetch-Site   must not be cross-site (embedded images have no Origin)            403
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

S = TypeVar("S", bound=str)
MAX_BODY_SIZE = 2**20
"""Maximum size of a request body in bytes."""
HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")
INTEGER = re.compile(r"[0-9]{1,12}")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class RequestError(Exception):
    """An error response: HTTP status and a message for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def json_response(contents: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response with `contents`; bytes are already encoded."""
    encoded = contents if isinstance(contents, bytes) else json_bytes(contents)
    return Response(encoded, status, {"cache-control": "no-store", **(headers or {})}, "application/json")


def json_bytes(contents: Any) -> bytes:
    """Encode contents as JSON. NaN raises ValueError, and unpaired surrogates are replaced."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def error_response(error: RequestError) -> Response:
    """Return the JSON response for an error."""
    return json_response({"error": error.message}, error.status)


class Guard:
    """ASGI middleware that checks the origin of requests and adds security headers to responses."""

    def __init__(self, app: ASGIApp, names: Collection[str] = LOOPBACK, *, any_address: bool = False) -> None:
        """Accept the host `names`, and with `any_address` also any numeric IP address."""
        self.app, self.names, self.any_address = app, {name.lower() for name in names}, any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self.check(scope)
        except RequestError as error:
            await error_response(error)(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def check(self, scope: Scope) -> None:
        """Raise RequestError if the request is for another host or comes from another page."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.ours(hosts[0]):
            value = ", ".join(hosts)[:200] or "none"
            raise RequestError(421, f"host ({value}) must be this server. Open the address that `regard view` printed.")
        origins = headers.getlist("origin")
        if origins and origins != [f"{scope.get('scheme', 'http')}://{hosts[0]}"]:
            value = ", ".join(origins)[:200]
            raise RequestError(
                403, f"origin ({value}) must be this server's page. Requests of other pages are rejected."
            )
        site = ["none", *headers.getlist("sec-fetch-site")][-1]
        visit = headers.getlist("sec-fetch-mode")[-1:] == ["navigate"] and not scope["path"].startswith("/api/")
        if site not in ("same-origin", "none") and not visit:
            raise RequestError(
                403, f"sec-fetch-site ({site[:40]}) must be same-origin. Requests of other pages are rejected."
            )

    def ours(self, host: str) -> bool:
        """Return whether a Host header names this server. The port may differ, as with port forwarding."""
        match = HOST.fullmatch(host)
        if not match:
            return False
        name = match[1].strip("[]").lower()
        return name in self.names or (self.any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def parse_integer(name: str, value: str | None, low: int, high: int, default: int | None = None) -> int:
    """Parse an integer of a path or a query string and check its bounds."""
    if value is None and default is not None:
        return default
    if value is None or not INTEGER.fullmatch(value) or not low <= int(value) <= high:
        received = "nothing" if value is None else repr(value[:40])
        raise RequestError(400, f"{name} ({received}) must be an integer in {low}…{high}.")
    return int(value)


def parse_head(value: str, count: int, status: int = 400) -> int | None:
    """Parse the index of one of `count` heads. Return None for "mean"."""
    if value == "mean":
        return None
    if not INTEGER.fullmatch(value) or int(value) >= count:
        raise RequestError(status, f"head ({value[:40]!r}) must be 'mean' or an index in 0…{count - 1}.")
    return int(value)


def parse_choice(name: str, value: str | None, choices: Collection[S], default: S) -> S:
    """Return the choice equal to the value of a query string."""
    if value is None:
        return default
    for choice in choices:
        if choice == value:
            return choice
    raise RequestError(400, f"{name} ({value[:40]!r}) must be one of {', '.join(choices)}.")


async def read_fields(request: Request, known: Mapping[str, type]) -> dict[str, Any]:
    """Read the JSON object of a request body. Its size is limited, and it may have only the known fields."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, f"content-type ({kind[:80] or 'none'}) must be application/json.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_SIZE:
                raise RequestError(413, f"body must be at most {MAX_BODY_SIZE:,} bytes; got more. Send a shorter text.")
    except ClientDisconnect:
        raise RequestError(499, "the client disconnected.") from None
    try:
        contents = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"body must be JSON; got invalid JSON: {str(error)[:120]}.") from error
    if not isinstance(contents, dict):
        raise RequestError(400, f"body must be a JSON object with {', '.join(known)}; got a {type(contents).__name__}.")
    for name, value in contents.items():
        if name not in known:
            raise RequestError(400, f"body: {name[:40]!r} must be one of {', '.join(known)}.")
        allowed = (int, float) if known[name] is float else (known[name],)  # not bool, which is an int
        if type(value) not in allowed:
            raise RequestError(400, f"body: {name} must be of type {known[name].__name__}; got {type(value).__name__}.")
    return contents


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def text_field(contents: Mapping[str, Any], limit: int) -> str:
    """Return the field `text`. Its length is limited, and it must be valid Unicode."""
    text = contents.get("text")
    if not isinstance(text, str):
        raise RequestError(400, "body: text must be present.")
    if len(text) > limit:
        raise RequestError(
            413, f"body: text ({len(text):,} characters) must be at most {limit:,}. Send a shorter text."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            400, f"body: text must be valid Unicode; got an unpaired surrogate at {error.start}."
        ) from error
    return text


def integer_field(contents: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    """Return an integer field and check its bounds."""
    value = int(contents.get(name, default))
    if not low <= value <= high:
        raise RequestError(400, f"body: {name} ({str(value)[:40]}) must lie in {low}…{high}.")
    return value


def number_field(contents: Mapping[str, Any], name: str, default: float) -> float:
    """Return a field as a floating-point number, infinite if it is an integer beyond the range of one."""
    value = contents.get(name, default)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
