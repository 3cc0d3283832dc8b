"""A real browser for the tests of the page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.view import web

NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "REGARD_REQUIRE_BROWSER"
LENGTH = 2048
"""Tokens of the text that the tests look at."""
Open = Callable[..., Any]


def missing() -> str | None:
    """What the tests lack here, in words; None when nothing."""
    try:
        web.built()
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


def quiet(page: Any) -> None:
    """Wait until everything that was asked for is there."""
    page.wait_for_timeout(350)
    page.wait_for_selector(".status:not(.busy)")


def scale(page: Any) -> float:
    return float(page.get_attribute(".stage", "data-scale") or 0)


def until(page: Any, condition: Callable[[], bool], what: str) -> None:
    for _ in range(80):
        if condition():
            return
        page.wait_for_timeout(100)
    pytest.fail(f"waited in vain: {what}")


def middle(page: Any, selector: str = ".stage") -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def read_out(page: Any) -> list[str]:
    return page.locator("#here dd").all_inner_texts()


def state(page: Any) -> str:
    page.wait_for_timeout(400)  # quick changes reach the address a few times a second
    return page.url.split("#")[1]
