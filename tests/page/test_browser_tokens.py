"""Tokens that are hard to show: long, invisible, right to left; and more heads than fit on a screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regard.server.target import Target
from tests.page import targets
from tests.page.browser import Open, expect, quiet
from tests.page.test_browser_appearance import PHONE

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process

ODD = ["[CLS]", "Ġthe", "", "\u200b", "\u00a0", "\0", "\r\n", ");Ċ", "שלום", "👨‍👩‍👧", "long" * 20, "注意力", "ing"]
SHOWN = ["[CLS]", "the", "∅", "⟨U+200B⟩", "⟨U+00A0⟩", "⟨U+0000⟩", "⟨U+000D⟩⏎", ");⏎", "שלום", "👨‍👩‍👧", "long" * 20]
LONG, HEADS = ODD.index("long" * 20), 40


@pytest.fixture
def visit(real: Callable[[Target], Open]) -> Open:
    map = targets.attention(ODD, ODD, HEADS, 0)
    return real(targets.target_of("odd tokens", ["layers.0"], ["self"], [map]))


def overflows(page: Any) -> list[str]:
    """Return the headings that are wider than their card."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => [...document.querySelectorAll("h2")].filter(one =>
          one.getBoundingClientRect().right > one.closest(".card").getBoundingClientRect().right)
          .map(one => one.textContent)"""
    )


@pytest.mark.parametrize("view", ["map", "text"])
def test_every_token_is_visible_and_a_long_one_stays_in_its_card(visit: Open, view: str) -> None:
    page = visit(f"#{view}?map=0&head=0&token={LONG}")
    expect(page.locator("h2", has_text="long")).to_be_visible()
    assert page.locator("[data-token]").all_inner_texts()[: len(SHOWN)] == SHOWN
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert overflows(page) == []


def test_the_map_stays_on_the_screen_when_a_query_is_chosen(visit: Open) -> None:
    """On a phone, the text with the strongest key is below the screen."""
    page = visit("#map?map=0&head=0&token=1", **PHONE)
    expect(page.locator(".weights li").first).to_be_attached()
    assert page.evaluate("scrollY") == 0


def test_the_links_of_many_heads_are_on_the_screen_of_a_desktop(real: Callable[[Target], Open]) -> None:
    map = targets.attention(ODD, ODD, 160, 0)
    visit = real(targets.target_of("many heads", ["layers.0"], ["self"], [map]))
    page = visit("#text?map=0&head=0&token=1&links=all")
    expect(page.locator("svg.links path").first).to_be_in_viewport()


def test_the_links_of_many_heads_are_on_the_screen_of_a_phone(visit: Open) -> None:
    page = visit("#text?map=0&head=0&token=1&links=all", **{**PHONE, "viewport": {"width": 390, "height": 560}})
    expect(page.locator(".heads button")).to_have_count(HEADS)
    expect(page.locator("svg.links path").first).to_be_in_viewport()
    above = page.locator(".linked").bounding_box()["y"]
    token = page.locator("[data-token='1']").bounding_box()
    assert token["y"] + token["height"] <= above
    page.locator(".heads button").last.focus()
    quiet(page)
    expect(page.locator(".heads button").last).to_be_in_viewport()
