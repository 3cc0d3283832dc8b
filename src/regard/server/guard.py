"""Who may ask, and for how much: every request passes here first, and every number in it is checked here.

A page of a stranger, open in the same browser, can send requests to this server too. Three things tell it apart:

    Host       a name that DNS was made to point here is not ours                     421
    Origin     is sent with the stranger's address, and must be our own               403
    Sec-Fetch-Site   is cross-site for pictures it embeds, which carry no Origin      403
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

S = TypeVar("S", bound=str)
BODY = 2**20
"""Bytes of a request's body."""
HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")
WHOLE = re.compile(r"[0-9]{1,12}")
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


class Refused(Exception):
    """A request that is not answered, with its status and a sentence for the person behind it."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


def answer(contents: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that every browser reads: no NaN, no halves of characters."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    cache = {"cache-control": "no-store", **(headers or {})}
    return Response(text.encode("utf-8", "replace"), status, cache, "application/json")


def refusal(error: Refused) -> Response:
    return answer({"error": error.words}, error.status)


class Guard:
    """The outermost layer: checks who asks, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, names: Collection[str] = LOOPBACK, *, wide: bool = False) -> None:
        """`names`: what the server is called; `wide`: whether any address in numbers is its own, too."""
        self.app, self.names, self.wide = app, {name.lower() for name in names}, wide

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
        except Refused as error:
            await refusal(error)(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def check(self, scope: Scope) -> None:
        """Raise Refused for a request that was not meant for this server, or comes from another page."""
        given = Headers(scope=scope)
        hosts = given.getlist("host")
        if len(hosts) != 1 or not self.ours(hosts[0]):
            said = ", ".join(hosts)[:200] or "none"
            raise Refused(421, f"host ({said}) must be this server's own. Open the address that `regard view` printed.")
        origins = given.getlist("origin")
        if origins and origins != [f"{scope.get('scheme', 'http')}://{hosts[0]}"]:
            said = ", ".join(origins)[:200]
            raise Refused(403, f"origin ({said}) must be this server's own page. Other pages may not ask it anything.")
        site = ["none", *given.getlist("sec-fetch-site")][-1]
        visit = given.getlist("sec-fetch-mode")[-1:] == ["navigate"] and not scope["path"].startswith("/api/")
        if site not in ("same-origin", "none") and not visit:
            raise Refused(
                403, f"sec-fetch-site ({site[:40]}) must be same-origin. Other pages may not ask it anything."
            )

    def ours(self, host: str) -> bool:
        """Whether a Host header names this server. Any port: a forwarded one differs, and DNS cannot change it."""
        match = HOST.fullmatch(host)
        if not match:
            return False
        name = match[1].strip("[]").lower()
        return name in self.names or (self.wide and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def whole(name: str, given: str | None, low: int, high: int, default: int | None = None) -> int:
    """A number of a path or a query string, within bounds."""
    if given is None and default is not None:
        return default
    if given is None or not WHOLE.fullmatch(given) or not low <= int(given) <= high:
        said = "nothing" if given is None else repr(given[:40])
        raise Refused(400, f"{name} ({said}) must be a whole number in {low}…{high}.")
    return int(given)


def one_of(name: str, given: str | None, choices: Collection[S], default: S) -> S:
    if given is None:
        return default
    for choice in choices:
        if choice == given:
            return choice
    raise Refused(400, f"{name} ({given[:40]!r}) must be one of {', '.join(choices)}.")


async def fields(request: Request, known: Mapping[str, type]) -> dict[str, Any]:
    """The object in a request's body: JSON of bounded size with these fields and no others."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"content-type ({kind[:80] or 'none'}) must be application/json.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY:
                raise Refused(413, f"body must be at most {BODY:,} bytes; got more. Send a shorter text.")
    except ClientDisconnect:
        raise Refused(499, "the client went away.") from None
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"body must be JSON; got what is not: {str(error)[:120]}.") from error
    if not isinstance(found, dict):
        raise Refused(400, f"body must be a JSON object with {', '.join(known)}; got a {type(found).__name__}.")
    for name, value in found.items():
        if name not in known:
            raise Refused(400, f"body: {name[:40]!r} must be one of {', '.join(known)}.")
        if type(value) is not known[name]:
            raise Refused(400, f"body: {name} must be of type {known[name].__name__}; got {type(value).__name__}.")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def text_of(found: Mapping[str, Any], most: int) -> str:
    """The text that was sent, whole characters, of bounded length."""
    text = found.get("text")
    if not isinstance(text, str):
        raise Refused(400, "body: text must be given.")
    if len(text) > most:
        raise Refused(413, f"body: text ({len(text):,} characters) must be at most {most:,}. Send a part of it.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(400, f"body: text must be whole characters; got half of one at {error.start}.") from error
    return text


def between(found: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    value = int(found.get(name, default))
    if not low <= value <= high:
        raise Refused(400, f"body: {name} ({str(value)[:40]}) must lie in {low}…{high}.")
    return value
