"""The development server: Vite serves the page and forwards API requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.page import targets
from tests.page.browser import expect
from tests.page.conftest import visits
from tests.page.gated_server import served
from tests.page.test_assets import ROOT, demand, node

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process
VITE = ROOT / "web/node_modules/vite/bin/vite.js"


@contextmanager
def developing(server: str) -> Iterator[str]:
    """Start Vite's development server and return its URL."""
    command = [str(node()), str(VITE), "--port", "0", "--host", "127.0.0.1", "--clearScreen", "false"]
    settings = {**os.environ, "REGARD_SERVER": server.rstrip("/"), "NO_COLOR": "1"}
    # A session of its own, ended as a whole: `node` may be a program that starts the real one
    options: dict[str, Any] = {
        "cwd": ROOT / "web",
        "env": settings,
        "stdout": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    with subprocess.Popen(command, **options) as process:
        assert process.stdout is not None
        try:
            yield next(result[0] for line in process.stdout if (result := re.search(r"http://127\.0\.0\.1:\d+/", line)))
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def test_the_development_server_forwards_requests(chromium: Any) -> None:
    demand(node() and VITE.exists(), "no Vite; run make page")
    with (
        served(targets.Translator()) as server,
        developing(server) as address,
        visits(chromium, address) as visit,
    ):
        page = visit()
        page.locator("textarea").fill("the red cat")
        page.keyboard.press("Enter")
        expect(page.locator(".written").first).to_have_text("Katze rote die")
        page.get_by_role("link", name="Explain").click()
        page.locator(".chart .box").first.wait_for()
