"""Accessibility of every view: axe-core reports no violation in either language, size and colour scheme."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import Open, expect, quiet

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"

SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
APPEARANCES = [
    [("light", "desktop", "en"), ("dark", "phone", "zh")],
    [("light", "phone", "en"), ("dark", "desktop", "zh")],
]
"""Each list has every colour scheme, size and language. Views take turns with them."""

Act = Callable[[Any], None]


def nothing(page: Any) -> None:
    """Leave the page as it is."""


def show_keys(page: Any) -> None:
    page.keyboard.press("?")
    page.locator("dialog").wait_for()


def ask_for_another_text(page: Any) -> None:
    page.locator(".above button").click()
    page.locator("dialog textarea").wait_for()


def choose_box(page: Any) -> None:
    page.locator(".chart [class^='box box']").first.press("Enter")
    page.locator(".panel table").first.focus()


def open_boxes(page: Any) -> None:
    page.locator(".icons button").first.click()


def open_settings(page: Any) -> None:
    page.locator(".more").evaluate("details => { details.open = true; }")


def light_a_word(page: Any) -> None:
    page.locator(".word").first.focus()


def fail(page: Any) -> None:
    page.locator(".say .main").click()
    page.locator(".status.wrong").wait_for()


VIEWS: dict[str, tuple[str, Act]] = {
    "grid": ("short/", nothing),
    "keys": ("short/", show_keys),
    "map": ("short/#map?map=1&head=2&token=60", nothing),
    "map without a query": ("short/#map?map=1&head=mean", nothing),
    "text": ("short/#text?map=0&head=1&token=40", nothing),
    "text without a token": ("short/#text?map=0&head=1", nothing),
    "another text": ("short/#text?map=0&head=1", ask_for_another_text),
    "two texts": ("short/#text?map=2&head=1&token=7&direction=to", nothing),
    "links of a span": ("short/#text?map=0&head=1&token=40&end=55", nothing),
    "links of all heads": ("short/#text?map=0&head=1&token=40&links=all", nothing),
    "image": ("images/#image?map=1&head=2", nothing),
    "image with a patch": ("images/#image?map=1&head=2&overlay=patch&patch=30", nothing),
    "text of an image": ("images/#text?map=1&head=2", nothing),
    "translate": ("translator/#translate?say=the+red+cat+sits+on+the+mat", light_a_word),
    "translate without a sentence": ("translator/", fail),
    "generate": ("language/#generate?say=the+cat&tokens=40&at=15", nothing),
    "generate without a prompt": ("language/", open_settings),
    "explain": ("short/explain.html#bahdanau", nothing),
    "explain a box": ("short/explain.html#multi-head", choose_box),
    "explain all boxes": ("short/explain.html#scaled-dot", open_boxes),
}

RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], preload: false });
  return violations.flatMap(rule => rule.nodes.map(node =>
    [`${rule.id}: ${node.target.join(" ")}`, rule.help, node.html, node.failureSummary].join("\\n    ")));
}"""


def violations(page: Any) -> list[str]:
    """Return the violations that axe-core reports: rule, element, and how to fix it."""
    return page.evaluate(RUN)  # type: ignore[no-any-return]


def switch(page: Any, colours: str, size: str, language: str) -> None:
    """Change the appearance of an open page."""
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    languages, themes = page.locator(".switches select").all()
    languages.select_option(language)
    themes.select_option(colours)
    expect(page.locator(f"html[data-theme={colours}][lang={language}]")).to_have_count(1)
    quiet(page)


@pytest.mark.parametrize("name", VIEWS)
def test_views_have_no_violation(visit: Open, name: str) -> None:
    address, act = VIEWS[name]
    page = visit(address)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for appearance in APPEARANCES[list(VIEWS).index(name) % len(APPEARANCES)]:
        switch(page, *appearance)
        act(page)
        quiet(page)
        reported = violations(page)
        assert not reported, f"{name}, {', '.join(appearance)}:\n" + "\n".join(reported)
        if page.locator("dialog").count():  # elsewhere, Escape would clear the selection
            page.keyboard.press("Escape")
