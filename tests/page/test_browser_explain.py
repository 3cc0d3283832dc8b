"""The Explain view in a real browser: boxes open and close, steps change, and a cell shows its origin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from regard.explain import chart_files, explain
from tests.page.browser import Open, expect, until

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process


def boxes(page: Any) -> int:
    return int(page.locator(".stage").get_attribute("data-boxes") or 0)


def drawn(page: Any) -> int:
    """Wait for a chart and return its number of boxes."""
    page.locator(".chart .box").first.wait_for()
    return boxes(page)


def test_a_group_opens_and_closes(visit: Open) -> None:
    page = visit("capture/explain.html#bahdanau")
    before = drawn(page)
    page.locator("[aria-label^='state f']").click(position={"x": 20, "y": 15})
    until(page, lambda: boxes(page) == before + 8, "the eight operations of a GRU")
    page.locator("[aria-label^='state f']").click(position={"x": 20, "y": 15})
    until(page, lambda: boxes(page) == before, "them gone again")


def test_the_gates_of_a_recurrent_layer_open_by_keyboard(visit: Open) -> None:
    page = visit("capture/explain.html#bahdanau")
    drawn(page)
    for name in ("encoder,", "recurrent encoder", "GRU", "forward", "place 2: cat"):
        before = boxes(page)
        page.locator(f"[aria-label^='{name}']").focus()
        page.keyboard.press("Enter")
        until(page, lambda before=before: boxes(page) > before, name)  # type: ignore[misc]
        expect(page.locator(f".box[aria-label^='{name}']")).to_be_focused()
    for gate in ("reset gate", "update gate", "candidate", "new state"):
        page.locator(f"[aria-label^='{gate}']").wait_for()
    page.locator("[aria-label^='place 2: cat']").press("Enter")
    until(page, lambda: page.locator("[aria-label^='reset gate']").count() == 0, "them closed again")


def test_ids_are_beside_their_tokens_and_titles_fit(visit: Open) -> None:
    page = visit("capture/explain.html#bert")
    drawn(page)
    ids = page.locator(".box.input text").all_text_contents()
    assert ids == ["ids", "[CLS]", "the", "cat", "sat", "on", "it", "[SEP]", "B T", "1×7"]
    assert page.locator(".header text", has_text="then blocks").count() == 1  # the equation of BERT, not cut


def test_predictions_are_named_with_their_values(visit: Open) -> None:
    """The next tokens of a language model with their probabilities, highest first; the classes of a classifier."""
    chart = explain("gpt")
    page = visit("capture/explain.html#gpt")
    drawn(page)
    output = chart.values[chart.nodes[-1].value].values[0, 0]
    probabilities = [f"{value:.2f}" for value in output.tolist()]
    texts = page.locator(".box.output text").all_text_contents()
    assert texts == ["output", *chart.tokens["K"], *probabilities, "B K", "1×5"]
    page = visit("capture/explain.html#bert")
    drawn(page)
    texts = page.locator(".box.output text").all_text_contents()
    assert texts[:4] == ["output", "LABEL_0", "LABEL_1", "LABEL_2"] and texts[-2:] == ["B K", "1×3"] and len(texts) == 9


def test_the_first_box_is_visible_on_a_phone(visit: Open) -> None:
    page = visit("capture/explain.html#transformer", viewport={"width": 390, "height": 844})
    drawn(page)
    container, source = page.locator(".stage").bounding_box(), page.locator("[aria-label^='source']").bounding_box()
    assert container["x"] <= source["x"] and source["x"] + source["width"] <= container["x"] + container["width"]
    assert source["width"] > 70  # large enough to be read


def test_changing_the_step(visit: Open) -> None:
    page = visit("capture/explain.html#bahdanau")
    drawn(page)
    assert page.locator(".box.earlier").count() == 0
    page.keyboard.press("]")
    until(page, lambda: page.locator("[data-step='2']").count() == 1, "the second step")
    page.locator(".box.earlier").wait_for()
    page.get_by_text("step 2", exact=True).wait_for()


def test_a_cell_shows_the_row_and_the_column_it_came_from(visit: Open) -> None:
    page = visit("capture/explain.html#scaled-dot")
    drawn(page)
    box = page.locator("[aria-label^='weighted sum']")
    box.locator(".cover").last.hover(position={"x": 3, "y": 3})
    until(page, lambda: box.locator(".mark").count() == 3, "a cell, a row and a column")
    message = page.locator(".tip").inner_text()
    assert re.search(r"\[0, 0\] = [−\d.]+", message) and "row 0 of the first × column 0 of the second" in message


def test_a_selected_box_shows_its_values(visit: Open) -> None:
    page = visit("capture/explain.html#multi-head")
    drawn(page)
    page.locator("[aria-label^='queries']").focus()
    page.keyboard.press("Enter")
    page.locator(".panel h2", has_text="queries").wait_for()
    assert page.locator(".panel .card").count() == 4  # made; x, the weight, the bias
    table = page.locator(".panel table").first
    table.focus()
    page.keyboard.press("ArrowRight")
    until(page, lambda: page.locator(".panel .from").count() > 8, "the row and the weights")


def test_another_text_and_chinese(visit: Open) -> None:
    page = visit("capture/explain.html#multi-head", locale="zh-CN")
    drawn(page)
    page.get_by_text("查询", exact=True).wait_for()
    page.locator(".toolbar input[type=text]").fill("one two three")
    page.keyboard.press("Enter")
    until(page, lambda: "text=one" in page.url, "the address")
    page.locator("text", has_text="three").first.wait_for()


def test_a_file_is_a_self_contained_page(chromium: Any, tmp_path: Path) -> None:
    path = chart_files.write(explain("encoder-block").to_dict(), tmp_path / "block.html")
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    asked: list[str] = []
    errors: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    assert drawn(page) > 5
    assert asked == [path.as_uri()] and not errors
    context.close()
