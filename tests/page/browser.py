"""A real browser for the tests of the page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.core import assets

NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "REGARD_REQUIRE_BROWSER"
SLOW = "REGARD_SLOW"
"""How many times slower the browser is to compute than it could: a page on a slow machine, looked at on a fast one."""
RATE = max(1.0, float(os.environ.get(SLOW, "1")))
LIMIT = 30_000 * RATE
"""Milliseconds that anything may take: it costs nothing where it comes sooner."""
LENGTH = 2048
"""Tokens of the text that the tests look at."""
Open = Callable[..., Any]


def missing() -> str | None:
    """What the tests lack here, in words; None when nothing."""
    try:
        assets.page_folder()
    except FileNotFoundError as error:
        return str(error)
    if importlib.util.find_spec("playwright") is None:
        return "no Playwright: pip install playwright (its own browsers are not needed)"
    if not any(map(shutil.which, NAMES)):
        return f"no browser ({', '.join(NAMES)}): on Debian, apt-get install chromium"
    return None


def demand() -> None:
    """Skip with the reason; where browser tests are required, fail with it."""
    if reason := missing():
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but {reason}")
        pytest.skip(f"the page is not tested: {reason}")


def fonts(folder: Path) -> dict[str, str]:
    """The environment in which the browser finds the Chinese font of the test dependencies."""
    package = importlib.util.find_spec("noto_cjk_sans_otc")
    if package is None or not package.submodule_search_locations:
        return {}
    config, found = folder / "fonts.conf", package.submodule_search_locations[0]
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f'<include ignore_missing="yes">/etc/fonts/fonts.conf</include><dir>{found}</dir>'
        f"<cachedir>{folder}</cachedir></fontconfig>",
        encoding="utf-8",
    )
    return {"FONTCONFIG_FILE": str(config)}


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)))
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox"] if root else [],  # Chromium refuses its sandbox to root
            env={**os.environ, **fonts(Path(folder))},
        )
        yield browser
        browser.close()


def anew() -> bool:
    """Whether pictures are to be taken rather than compared."""
    return os.environ.get("REGARD_GOLDEN") == "1"


def slow_down(page: Any) -> None:
    """A page as on a machine that is REGARD_SLOW times slower than this one."""
    if RATE > 1:
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": RATE})


# A page changes when it gets to it: whatever is asserted of one is waited for, by these or by Playwright's actions.


def expect(what: Any) -> Any:
    """Playwright's assertion about a page or a place on it, which is tried until it holds."""
    from playwright.sync_api import expect

    expect.set_options(timeout=LIMIT)
    return expect(what)


def until(page: Any, condition: Callable[[], Any], what: str) -> Any:
    """What the condition gives, once that is true; for what Playwright has no assertion."""
    end = time.monotonic() + LIMIT / 1000
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"waited in vain: {what}")
        page.wait_for_timeout(50)
    return found


def quiet(page: Any) -> None:
    """Wait until all is there that was asked for, nothing moves and the address is written: the page tells."""
    expect(page.locator("html")).to_have_attribute("data-ahead", "")


def at(page: Any, pattern: str) -> None:
    """The address tells this, or will: a regular expression for a part of what comes after the #."""
    expect(page).to_have_url(re.compile(f"#.*{pattern}"))


def not_at(page: Any, pattern: str) -> None:
    expect(page).not_to_have_url(re.compile(f"#.*{pattern}"))


def number(page: Any, name: str) -> int:
    """A number that the address tells."""
    pattern = re.compile(rf"\b{name}=(\d+)")
    return int(until(page, lambda: pattern.search(page.evaluate("location.hash")), f"{name} in the address")[1])


def scale(page: Any) -> float:
    """Pixels a cell."""
    return float(page.get_attribute(".stage", "data-scale") or 0)


def middle(page: Any, selector: str = ".stage") -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def read_out(page: Any) -> list[str]:
    """Query, key, weight and rank of the cell pointed at, once they are told."""
    cells = page.locator("#here dd")
    return until(page, lambda: (told := cells.all_inner_texts()) and "…" not in told and told, "a weight")
