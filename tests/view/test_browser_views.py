"""Text, picture and translation in a real browser: clicked, hovered, and walked through with keys."""

from __future__ import annotations

import re

import pytest

from tests.view.browser import LENGTH, Open, quiet, state
from tests.view.fake_server import Server

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process


def test_a_token_colours_what_it_attends_to_and_what_it_receives(visit: Open, server: Server) -> None:
    page = visit("capture/#text?map=0&head=1")
    page.locator("[data-token='40']").click()
    quiet(page)
    assert "token=40" in state(page)
    row = server.fakes["capture"].row(0, "1", 40)
    shade = "node => Number(node.style.getPropertyValue('--w'))"
    assert page.locator(f"[data-token='{int(row.argmax())}']").evaluate(shade) == 1
    assert page.locator("[data-token='41']").evaluate(shade) == 0  # the future, in a causal map
    page.get_by_text("what it receives").click()
    quiet(page)
    assert "direction=to" in state(page)
    column = server.fakes["capture"].column(0, "1", 40)
    assert page.locator(f"[data-token='{int(column.argmax())}']").evaluate(shade) == 1
    assert page.locator("[data-token='39']").evaluate(shade) == 0  # the past receives nothing from it


def test_tokens_by_keys_and_links_of_a_span(visit: Open) -> None:
    page = visit("capture/#text?map=0&head=1")
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert "token=5" in state(page)
    page.keyboard.press("ArrowDown")
    below = int(re.search(r"token=(\d+)", state(page))[1])
    assert 12 < below < 60
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    quiet(page)
    assert f"token={below}&end={below + 3}" in state(page)
    assert page.locator(".tokens .chosen").count() == 4
    page.locator("svg.links").wait_for()
    assert page.locator("svg.links text.chosen").count() == 4
    assert page.locator("svg.links path").count() == 4 * 5
    page.keyboard.press("Escape")
    assert "token" not in state(page)


def test_a_long_text_is_drawn_as_it_comes_into_sight(visit: Open) -> None:
    page = visit("capture/#text?map=0&head=1")
    drawn = page.locator("[data-token]").count()
    assert 100 < drawn < LENGTH - 200
    page.locator(".tokens").focus()
    page.keyboard.press("End")
    page.keyboard.press("End")
    page.locator(f"[data-token='{LENGTH - 1}']").wait_for()
    assert f"token={LENGTH - 1}" in state(page)
    assert page.locator(f"[data-token='{LENGTH - 1}']").evaluate("n => n.getBoundingClientRect().bottom <= innerHeight")


def test_across_two_texts(visit: Open) -> None:
    page = visit("capture/#text?map=2&head=1")
    keys, queries = page.locator(".tokens").all()
    queries.locator("[data-token='4']").click()
    quiet(page)
    assert "token=4" in state(page) and "direction" not in state(page)
    keys.locator("[data-token='7']").click()
    quiet(page)
    assert "token=7" in state(page) and "direction=to" in state(page)


def test_another_text(visit: Open, server: Server) -> None:
    page = visit("capture/#text")
    page.get_by_text("Another text").click()
    page.locator("dialog textarea").fill("Something else")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("Something else").wait_for()
    assert any(path.endswith("/api/run") for path in server.asked)


# The picture


def test_the_picture_under_class_token_patch_and_rollout(visit: Open, server: Server) -> None:
    page = visit("images/#image?map=1&head=2")
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].reduce((a, b) => a + b, 0)"
    overlay = page.locator(".picture .overlay")
    assert overlay.evaluate("c => [c.width, c.height]") == [14, 14]
    of_class = overlay.evaluate(pixels)
    page.locator(".picture").click(position={"x": 100, "y": 140})
    quiet(page)
    assert "overlay=patch" in state(page) and page.locator(".patch").is_visible()
    patch = int(re.search(r"patch=(\d+)", state(page))[1])
    assert any(f"overlay?map=1&head=2&query={patch + 1}" in path for path in server.asked)
    assert overlay.evaluate(pixels) != of_class
    page.keyboard.press("ArrowRight")
    quiet(page)
    assert f"patch={patch + 1}" in state(page)
    row = server.fakes["images"].row(1, "2", patch + 2)
    assert f"{float(row[patch + 2]):.3f}" in page.locator(".framed .hint").inner_text()
    page.get_by_text("rollout", exact=True).click()
    quiet(page)
    assert any("rollout=1" in path for path in server.asked)
    page.get_by_label("Head 3").click()
    assert "head=3" in state(page)


# Translation


def test_a_sentence_is_translated_and_read_word_by_word(visit: Open) -> None:
    page = visit("translator/")
    page.get_by_role("button", name="Translate").click()
    assert page.locator(".said").inner_text() == "Type a sentence first."
    page.locator("textarea").fill("the red cat")
    page.keyboard.press("Enter")
    page.locator(".hypothesis").first.wait_for()
    assert page.locator(".written").first.inner_text() == "Katze rote die"
    assert "say=the+red+cat" in state(page)
    page.get_by_role("button", name="Katze").hover()
    assert page.locator(".word.linked").all_inner_texts() == ["cat"]
    page.locator(".hypothesis").nth(1).click()
    matrix = page.locator(".matrix canvas")
    matrix.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator(".told").inner_text().startswith("Katze ← cat: 0.")
    box = matrix.bounding_box()
    matrix.hover(position={"x": box["width"] - 8, "y": box["height"] - 8})
    assert page.locator(".told").inner_text().startswith("</s> ← </s>")
