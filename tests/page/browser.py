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
"""Environment variable with the factor by which the browser's CPU is slowed down."""
RATE = max(1.0, float(os.environ.get(SLOW, "1")))
LIMIT = 30_000 * RATE
"""Time limit of every action in milliseconds."""
LENGTH = 2048
"""Number of tokens of the test text."""
SHORT = 70
"""Number of tokens of a text that fits on one screen."""
Open = Callable[..., Any]


def missing() -> str | None:
    """Return the reason why the browser tests cannot run, or None."""
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
    """Skip if the browser tests cannot run, or fail if they are required."""
    if reason := missing():
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but {reason}")
        pytest.skip(f"the page is not tested: {reason}")


def fonts(folder: Path) -> dict[str, str]:
    """Return environment variables that add the Chinese font of the test dependencies."""
    package = importlib.util.find_spec("noto_cjk_sans_otc")
    if package is None or not package.submodule_search_locations:
        return {}
    config, result = folder / "fonts.conf", package.submodule_search_locations[0]
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        f'<include ignore_missing="yes">/etc/fonts/fonts.conf</include><dir>{result}</dir>'
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


def update_goldens() -> bool:
    """Return whether golden images are recorded instead of compared."""
    return os.environ.get("REGARD_GOLDEN") == "1"


def slow_down(page: Any) -> None:
    """Slow down the CPU of a page by the factor REGARD_SLOW."""
    if RATE > 1:
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": RATE})


# A page changes asynchronously, so every assertion waits, by these functions or by Playwright's actions.


def expect(what: Any) -> Any:
    """Return Playwright's assertion for a page or a locator, which is retried until it holds."""
    from playwright.sync_api import expect

    expect.set_options(timeout=LIMIT)
    return expect(what)


def until(page: Any, condition: Callable[[], Any], what: str) -> Any:
    """Wait until the condition is true and return its result."""
    end = time.monotonic() + LIMIT / 1000
    while not (result := condition()):
        if time.monotonic() > end:
            pytest.fail(f"timeout: {what}")
        page.wait_for_timeout(50)
    return result


def quiet(page: Any) -> None:
    """Wait until the page has no pending work."""
    expect(page.locator("html")).to_have_attribute("data-ahead", "")


def at(page: Any, pattern: str) -> None:
    """Wait until the URL fragment matches a regular expression."""
    expect(page).to_have_url(re.compile(f"#.*{pattern}"))


def not_at(page: Any, pattern: str) -> None:
    expect(page).not_to_have_url(re.compile(f"#.*{pattern}"))


def number(page: Any, name: str) -> int:
    """Return a number in the URL."""
    pattern = re.compile(rf"\b{name}=(\d+)")
    return int(until(page, lambda: pattern.search(page.evaluate("location.hash")), f"{name} in the address")[1])


def scale(page: Any) -> float:
    """Return the number of pixels per cell."""
    return float(page.get_attribute(".stage", "data-scale") or 0)


def middle(page: Any, selector: str = ".stage") -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def read_out(page: Any) -> list[str]:
    """Return query, key, weight and rank of the hovered cell, once they are shown."""
    cells = page.locator("#here dd")
    return until(page, lambda: (response := cells.all_inner_texts()) and "…" not in response and response, "a weight")
