"""A saved page, opened from its file: the map, the text and the links are shown, and nothing is requested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.server.saved_page import save_page
from tests.page import browser, targets
from tests.page.browser import Open, at, expect, middle, quiet, read_out
from tests.page.conftest import visits

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process
LENGTH = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser.demand()
    path = tmp_path_factory.mktemp("saved")
    save_page(targets.capture(LENGTH), path / "all.html")
    save_page(targets.capture(LENGTH), path / "some.html", ["1.2"], limit=1_500_000)
    save_page(targets.images(), path / "images.html", ["0.1", "2.mean"])
    return path


@pytest.fixture
def files(folder: Path, chromium: Any) -> Iterator[Open]:
    """Open a file. A request to anything else fails the test."""
    with visits(chromium, f"{folder.as_uri()}/") as open_page:
        yield open_page


def test_the_grid_leads_to_a_map_with_weights(files: Open) -> None:
    page = files("all.html")
    expect(page.locator(".lead").last).to_contain_text("8 of 8 heads can be opened")
    expect(page.locator("canvas.there")).to_have_count(8)
    page.locator("a:has(canvas)").nth(4).click()
    at(page, "map=1&head=1")
    quiet(page)
    page.mouse.move(*middle(page))
    query, key, weight, rank = read_out(page)
    assert query and key
    assert weight != "–"
    assert f"of {LENGTH}" in rank
    page.mouse.click(*middle(page))
    expect(page.locator(".weights li").first).to_be_visible()
    expect(page.locator(".status")).to_contain_text("Ready")


def test_zooming_shows_single_weights(files: Open) -> None:
    page = files("all.html#map?map=0&head=0")
    for _ in range(4):
        page.get_by_role("button", name="Zoom in").click()
        quiet(page)
    assert browser.scale(page) > 8
    expect(page.locator(".status")).to_contain_text("Ready")


def test_text_and_links(files: Open) -> None:
    page = files("all.html#text?map=1&head=0&token=50&end=53")
    expect(page.locator("svg.links path").first).to_be_attached()
    expect(page.locator(".weights li").first).to_be_visible()
    page.get_by_text("all heads").click()
    quiet(page)
    expect(page.locator(".heads button")).to_have_count(3)
    expect(page.locator(".status")).to_contain_text("Ready")


def test_heads_that_are_not_stored_have_overviews_only(files: Open) -> None:
    page = files("some.html")
    expect(page.locator("canvas.there")).to_have_count(8)
    expect(page.locator("a:has(canvas)")).to_have_count(1)
    expect(page.locator(".lead").last).to_contain_text("1 of 8 heads can be opened")
    page.get_by_role("link", name="Text").click()
    quiet(page)
    expect(page.get_by_label("Head", exact=True)).to_have_value("2")
    expect(page.get_by_label("Layer", exact=True).locator("option")).to_have_count(1)
    expect(page.locator(".status")).to_contain_text("Ready")


def test_an_image_with_its_overlays(files: Open) -> None:
    page = files("images.html#image?map=0&head=1")
    assert page.locator(".picture img").evaluate("image => image.naturalWidth") == 224
    page.get_by_text("rollout").click()
    quiet(page)
    expect(page.locator(".status")).to_contain_text("Ready")
