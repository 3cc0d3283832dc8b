"""One browser and one server, with made-up targets, for all tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from regard.server.target import Target
from regard.training import logbook
from tests.page import browser, targets
from tests.page.browser import Open, quiet
from tests.page.gated_server import GatedServer, served


@pytest.fixture(scope="session")
def server() -> Iterator[GatedServer]:
    browser.demand()
    created = {
        "capture": targets.capture(browser.LENGTH),
        "short": targets.capture(browser.SHORT),
        "images": targets.images(),
        "translator": targets.Translator(),
        "language": targets.language_model(),
    }
    with GatedServer(created).serving() as serving:
        yield serving


@pytest.fixture(scope="session")
def chromium(server: GatedServer) -> Iterator[Any]:
    with browser.chromium() as opened:
        yield opened


@pytest.fixture
def visit(server: GatedServer, chromium: Any) -> Iterator[Open]:
    """Return a function that opens a URL of the page: the name of a target, then the rest."""
    server.gate.start_visit()
    server.restore()
    with visits(chromium, f"{server.url}{server.gate.visit}/") as open_page:
        yield open_page
        server.gate.release()


@pytest.fixture(scope="module")
def no_drawing() -> Iterator[None]:
    """Disable the curves, which take longer to draw than a small run takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logbook, "draw", lambda records, goal: b"")
        yield


@pytest.fixture
def real(chromium: Any) -> Iterator[Callable[[Target], Open]]:
    """Serve a target, and open its page."""
    with ExitStack() as stack:
        yield lambda target: stack.enter_context(visits(chromium, stack.enter_context(served(target))))


@contextmanager
def visits(chromium: Any, home: str) -> Iterator[Open]:
    """Open URLs below `home`. At the end, check that no request went to another host and no error occurred."""
    contexts, strangers, errors = [], [], []
    known = ("/".join(home.split("/")[:3]) + "/", "blob:")

    def open_page(address: str = "", **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **options})
        context.set_default_timeout(browser.LIMIT)
        contexts.append(context)
        page = context.new_page()
        browser.slow_down(page)
        page.on("request", lambda request: request.url.startswith(known) or strangers.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: "Content Security Policy" in message.text and errors.append(message.text))
        page.goto(f"{home}{address}")
        quiet(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not strangers
    assert not errors
