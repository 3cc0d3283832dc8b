"""The grid of heads and the map in a real browser: open, zoom, hover, click and keyboard navigation."""

from __future__ import annotations

import io
import re

import pytest
import torch
from PIL import Image

from tests.page.browser import LENGTH, Open, at, expect, middle, not_at, number, quiet, read_out, scale, until
from tests.page.gated_server import GatedServer
from tests.page.targets import words

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process

PRESS = """key => document.activeElement.dispatchEvent(
    new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }))"""
"""Script that presses a key without the delay of Playwright's keyboard."""


def test_the_grid_shows_all_layers_and_heads(visit: Open) -> None:
    page = visit("capture/")
    expect(page.locator(".thumbnail.there")).to_have_count(2 * 3 + 2)
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page).to_have_title("a made-up capture · regard")
    page.get_by_label("model.layers.1.self_attn, head 2").click()
    at(page, r"map\?map=1&head=2$")
    expect(page.locator(".stage")).to_be_visible()
    page.go_back()
    expect(page.locator(".thumbnail")).to_have_count(8)


def test_keyboard_navigation_of_the_grid(visit: Open) -> None:
    page = visit("capture/")
    page.locator("tbody a").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    at(page, r"map\?map=1&head=1$")
    expect(page.locator(".stage")).to_be_focused()  # the arrow keys move over the map


def test_the_reduction_is_requested_from_the_server(visit: Open, server: GatedServer) -> None:
    page = visit("capture/")
    server.gate.asked.clear()
    page.get_by_text("mean", exact=True).click()
    page.get_by_text("linear", exact=True).click()
    until(
        page,
        lambda: any(
            "overview" in path and "reduce=mean" in path and "scale=linear" in path for path in server.gate.asked
        ),
        "an overview of means",
    )
    at(page, "reduce=mean&scale=linear")


def test_a_closed_view_sends_no_requests(visit: Open, server: GatedServer) -> None:
    """If the grid is opened and closed within one frame, its images are not requested."""
    page = visit("capture/#map?map=1&head=2")
    server.gate.asked.clear()
    page.evaluate(f"document.querySelector('.back').click(), ['2'].forEach({PRESS})")
    expect(page.locator(".tokens")).to_be_visible()
    quiet(page)
    assert not [path for path in server.gate.asked if "overview" in path]


# The map


def tickets(paths: list[str]) -> list[int]:
    return [int(result[1]) for path in paths if (result := re.search(r"/tile/.*ticket=(\d+)", path))]


def test_from_the_whole_matrix_to_single_cells(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#map?map=1&head=2")
    whole = scale(page)
    assert 0.1 < whole < 0.5
    levels = {int(result[1]) for path in server.gate.asked if (result := re.search(r"/tile/(\d+)/", path))}
    assert max(levels) <= 10  # of 11: one screenful, not all cells
    before, then = tickets(server.gate.asked), []
    page.on("request", lambda request: then.append(request.url))
    page.mouse.move(*middle(page))

    def further() -> bool:
        page.mouse.wheel(0, -240)
        return scale(page) > 8

    until(page, further, "cells of eight pixels")
    at(page, "sight=")
    until(page, lambda: any("/tile/11/" in path for path in server.gate.asked), "single cells")
    quiet(page)
    assert tickets(then) == sorted(tickets(then)) and tickets(then)[-1] > max(before)


def test_a_hovered_cell_shows_query_key_weight_and_rank(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#map?map=1&head=2&sight=870,890,40")
    x, y = middle(page)
    page.mouse.move(x, y)
    query, key, weight, rank = read_out(page)
    i, j = int(query.split()[-1]), int(key.split()[-1])
    assert 890 <= i < 930 and 870 <= j < 910
    tokens = words(LENGTH)
    assert query == f"“{tokens[i].lstrip('Ġ')}” {i}" and key == f"“{tokens[j].lstrip('Ġ')}” {j}"
    row = server.row("capture", 1, "2", i)
    assert float(weight) == pytest.approx(float(row[j]), rel=0.06, abs=6e-4)
    assert rank == f"{int((row > row[j]).sum()) + 1} of 2,048"


def test_a_late_weight_is_not_shown_for_another_cell(visit: Open, server: GatedServer) -> None:
    """The response for one cell arrives when another cell, or none, is hovered. It is not shown."""
    page = visit("capture/#map?map=1&head=2&sight=870,890,40")
    page.locator(".stage").focus()
    server.gate.open.clear()
    page.keyboard.press("ArrowDown")
    until(page, lambda: any("/cell?" in path for path in server.gate.asked), "the first request")
    first = page.locator("#here dd").all_inner_texts()
    page.keyboard.press("ArrowRight")
    until(page, lambda: sum("/cell?" in path for path in server.gate.asked) == 2, "the second request")
    server.gate.open.set()
    response = read_out(page)
    assert response[0] == first[0] and response[1] != first[1]
    row = server.row("capture", 1, "2", int(response[0].split()[-1]))
    assert float(response[2]) == pytest.approx(float(row[int(response[1].split()[-1])]), rel=0.06, abs=6e-4)
    server.gate.open.clear()
    page.mouse.move(*middle(page))
    page.mouse.move(1, 1)
    server.gate.open.set()
    quiet(page)
    expect(page.locator("#here")).to_have_text("Point at the map, or move with the arrow keys.")


def test_a_cell_on_the_screen_has_the_colour_of_its_weight(visit: Open, server: GatedServer) -> None:
    """The strongest cell of a row, found by colour on the screen, is the strongest cell of the map."""
    page = visit("capture/#map?map=1&head=2&token=905&sight=880,895,30")
    box = page.locator(".stage").bounding_box()
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    not_at(page, "token")
    quiet(page)
    picture = Image.open(io.BytesIO(page.screenshot(clip=box))).convert("L")
    size = scale(page)
    row = server.row("capture", 1, "2", 905)[880:910]
    y = int((905.5 - 895) * size)
    seen = torch.tensor([float(picture.getpixel((int((key + 0.5) * size), y))) for key in range(30)])
    strong, weak = row > 0.05, row < 1e-5
    assert strong.any() and weak.any()
    assert seen[strong].max() < seen[weak].min()


def test_a_click_does_not_move_the_page(visit: Open) -> None:
    page = visit("capture/#map?map=1&head=2", viewport={"width": 1280, "height": 640})
    page.evaluate("() => scrollTo(0, 0)")
    assert page.evaluate("() => document.documentElement.scrollHeight > innerHeight")  # there is where it could go
    page.mouse.click(*middle(page))
    expect(page.locator(".stage")).to_be_focused()
    at(page, r"token=\d+")
    assert page.evaluate("() => scrollY") == 0


def test_a_click_marks_the_strongest_keys_in_list_text_and_url(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#map?map=1&head=2&sight=870,890,40")
    page.mouse.click(*middle(page))
    query = number(page, "token")
    best = server.row("capture", 1, "2", query).topk(20)
    tokens = words(LENGTH)
    expect(page.locator(".weights .token")).to_have_text(
        [f"“{tokens[key].lstrip('Ġ')}”" for key in best.indices.tolist()], use_inner_text=True
    )
    quiet(page)
    numbers = "all => all.map(one => Number(one.dataset.token))"
    drawn, marked = (set(page.eval_on_selector_all(name, numbers)) for name in ("[data-token]", ".marked"))
    assert marked == set(best.indices.tolist()) & drawn and int(best.indices[0]) in marked
    expect(page.locator(f"[data-token='{query}'].chosen")).to_have_count(1)
    page.locator(".weighed").first.click()
    expect(page.locator("#here dd").nth(1)).to_have_text(re.compile(rf"\b{best.indices[0]}$"))
    quiet(page)
    page.keyboard.press("Escape")
    not_at(page, "token")
    expect(page.locator(".marked")).to_have_count(0)


def test_keyboard_navigation_of_the_map(visit: Open) -> None:
    page = visit("capture/#map?map=0&head=1")
    container = page.locator(".stage")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "stage":
            break
    expect(container).to_be_focused()
    assert page.evaluate("document.activeElement.matches(':focus-visible')")
    before = scale(page)
    page.keyboard.press("ArrowDown")
    expect(page.locator("#here dd").first).to_have_text(re.compile(rf"\b{LENGTH // 2 + round(8 / before)}$"))
    for _ in range(3):
        page.keyboard.press("+")
    until(page, lambda: scale(page) > 7 * before, "eightfold")
    page.keyboard.press("-")
    until(page, lambda: scale(page) < 5 * before, "fourfold")
    quiet(page)
    position = page.url
    page.keyboard.press("Shift+ArrowRight")
    expect(page).not_to_have_url(position)
    page.keyboard.press("0")
    until(page, lambda: abs(scale(page) / before - 1) < 0.02, "the whole map")
    page.keyboard.press("Enter")
    at(page, "token=")
    page.keyboard.press("]")
    at(page, "head=2")
    expect(container).to_be_focused()
    page.keyboard.press("}")
    at(page, "map=1")
    page.keyboard.press("2")
    at(page, r"text\?")
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_keys_pressed_before_the_map_is_ready(visit: Open) -> None:
    """Zooming while the map opens, and selecting the next head during the move, both take effect."""
    page = visit("capture/")
    page.evaluate(f"document.querySelector('tbody a').click(), ['+', '+', '+'].forEach({PRESS})")
    at(page, "sight=")
    quiet(page)
    close = scale(page)
    assert close > 1
    page.evaluate(f"['+', ']'].forEach({PRESS})")
    at(page, "head=1&sight=")
    until(page, lambda: scale(page) == pytest.approx(2 * close, rel=0.02), "the next head, as close")


def test_a_bookmark_restores_the_view(visit: Open) -> None:
    page = visit("capture/#map?map=1&head=2&token=905&reduce=mean&scale=linear&sight=870,890,40")
    size = page.locator(".stage").bounding_box()["width"] / 40
    for _ in range(2):
        until(page, lambda: scale(page) == pytest.approx(size, rel=0.02), "cells as large as they were")
        expect(page.locator("input[value=linear]")).to_be_checked()
        expect(page.locator(".weights li")).to_have_count(20)
        page.reload()


def test_a_url_of_another_target_is_not_an_error(visit: Open) -> None:
    page = visit("capture/#map?map=99&head=77&token=123456789")
    expect(page.locator(".thumbnail")).to_have_count(8)
    expect(visit("translator/#map?map=3").locator("textarea")).to_be_visible()
