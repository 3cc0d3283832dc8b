"""The grid of heads and the map in a real browser: opened, zoomed, hovered, clicked, walked through with keys alone."""

from __future__ import annotations

import io
import re

import pytest
import torch
from PIL import Image

from tests.view.browser import LENGTH, Open, middle, quiet, read_out, scale, state, until
from tests.view.fake_server import Server, words

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process


def test_all_layers_and_heads_are_there_and_one_opens(visit: Open) -> None:
    page = visit("capture/")
    assert page.locator(".thumbnail.there").count() == 2 * 3 + 2
    assert page.locator("tbody tr").count() == 3
    assert page.title() == "a made-up capture · regard"
    page.get_by_label("model.layers.1.self_attn, head 2").click()
    assert state(page) == "map?map=1&head=2"
    assert page.locator(".stage").is_visible()
    page.go_back()
    assert page.locator(".thumbnail").count() == 8


def test_the_grid_by_keys(visit: Open) -> None:
    page = visit("capture/")
    page.locator("tbody a").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    assert state(page) == "map?map=1&head=1"


def test_what_a_pixel_shows_is_asked_of_the_server(visit: Open, server: Server) -> None:
    page = visit("capture/")
    server.asked.clear()
    page.get_by_text("mean", exact=True).click()
    page.get_by_text("linear", exact=True).click()
    quiet(page)
    assert any("overview" in path and "reduce=mean" in path and "scale=linear" in path for path in server.asked)
    assert "reduce=mean&scale=linear" in state(page)


# The map


def test_from_the_whole_matrix_to_single_cells(visit: Open, server: Server) -> None:
    page = visit("capture/#map?map=1&head=2")
    whole = scale(page)
    assert 0.1 < whole < 0.5
    levels = {int(found[1]) for path in server.asked if (found := re.search(r"/tile/(\d+)/", path))}
    assert max(levels) <= 10  # of 11: one screenful, not all cells
    page.mouse.move(*middle(page))
    for _ in range(14):
        page.mouse.wheel(0, -240)
        page.wait_for_timeout(40)
    until(page, lambda: scale(page) > 8, "cells of eight pixels")
    quiet(page)
    assert any("/tile/11/" in path for path in server.asked)
    assert "sight=" in state(page)
    tickets = [int(found[1]) for path in server.asked if (found := re.search(r"ticket=(\d+)", path))]
    assert tickets == sorted(tickets) and tickets[-1] > tickets[0]


def test_a_cell_pointed_at_tells_query_key_weight_and_rank(visit: Open, server: Server) -> None:
    page = visit("capture/#map?map=1&head=2&sight=870,890,40")
    x, y = middle(page)
    page.mouse.move(x, y)
    until(page, lambda: "…" not in "".join(read_out(page)) and read_out(page) != [], "a weight")
    query, key, weight, rank = read_out(page)
    i, j = int(query.split()[-1]), int(key.split()[-1])
    assert 890 <= i < 930 and 870 <= j < 910
    tokens = words(LENGTH)
    assert query == f"“{tokens[i].lstrip('Ġ')}” {i}" and key == f"“{tokens[j].lstrip('Ġ')}” {j}"
    row = server.fakes["capture"].row(1, "2", i)
    assert float(weight) == pytest.approx(float(row[j]), rel=0.06, abs=6e-4)
    assert rank == f"{int((row > row[j]).sum()) + 1} of 2,048"


def test_a_cell_on_the_screen_has_the_colour_of_its_weight(visit: Open, server: Server) -> None:
    """The strongest cell of a row, found by colour on the screen, is the strongest cell of the map."""
    page = visit("capture/#map?map=1&head=2&token=905&sight=880,895,30")
    box = page.locator(".stage").bounding_box()
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    quiet(page)
    picture = Image.open(io.BytesIO(page.screenshot(clip=box))).convert("L")
    size = scale(page)
    row = server.fakes["capture"].row(1, "2", 905)[880:910]
    y = int((905.5 - 895) * size)
    seen = torch.tensor([float(picture.getpixel((int((key + 0.5) * size), y))) for key in range(30)])
    strong, weak = row > 0.05, row < 1e-5
    assert strong.any() and weak.any()
    assert seen[strong].max() < seen[weak].min()


def test_a_click_marks_the_strongest_keys_in_list_text_and_address(visit: Open, server: Server) -> None:
    page = visit("capture/#map?map=1&head=2&sight=870,890,40")
    page.mouse.click(*middle(page))
    quiet(page)
    found = re.search(r"token=(\d+)", state(page))
    assert found
    query = int(found[1])
    best = server.fakes["capture"].row(1, "2", query).topk(20)
    tokens = words(LENGTH)
    listed = page.locator(".weights .token").all_inner_texts()
    assert listed == [f"“{tokens[key].lstrip('Ġ')}”" for key in best.indices.tolist()]
    numbers = "all => all.map(one => Number(one.dataset.token))"
    drawn, marked = (set(page.eval_on_selector_all(name, numbers)) for name in ("[data-token]", ".marked"))
    assert marked == set(best.indices.tolist()) & drawn and int(best.indices[0]) in marked
    assert page.locator(f"[data-token='{query}'].chosen").count() == 1
    page.locator(".weighed").first.click()
    assert read_out(page)[1].endswith(str(best.indices[0].item()))
    page.keyboard.press("Escape")
    assert "token" not in state(page) and page.locator(".marked").count() == 0


def test_the_map_by_keys_alone(visit: Open) -> None:
    page = visit("capture/#map?map=0&head=1")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "stage":
            break
    assert page.evaluate("document.activeElement.matches(':focus-visible')")
    page.keyboard.press("ArrowDown")
    assert read_out(page)[0].endswith(str(LENGTH // 2 + round(8 / scale(page))))
    before = scale(page)
    for _ in range(3):
        page.keyboard.press("+")
    until(page, lambda: scale(page) > 7 * before, "eightfold")
    page.keyboard.press("-")
    until(page, lambda: scale(page) < 5 * before, "fourfold")
    quiet(page)
    place = state(page)
    page.keyboard.press("Shift+ArrowRight")
    until(page, lambda: state(page) != place, "the map to move")
    page.keyboard.press("0")
    until(page, lambda: abs(scale(page) / before - 1) < 0.02, "the whole map")
    page.keyboard.press("Enter")
    assert "token=" in state(page)
    page.keyboard.press("]")
    assert "head=2" in state(page) and page.evaluate("document.activeElement.className") == "stage"
    page.keyboard.press("}")
    assert "map=1" in state(page)
    page.keyboard.press("2")
    assert state(page).startswith("text?")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("dialog").count() == 0


def test_a_bookmark_brings_the_place_back(visit: Open) -> None:
    first = visit("capture/#map?map=1&head=2&token=905&reduce=mean&scale=linear&sight=870,890,40")
    size = scale(first)
    assert size == pytest.approx(first.locator(".stage").bounding_box()["width"] / 40, rel=0.02)
    assert first.locator("input[value=linear]").is_checked()
    first.reload()
    quiet(first)
    assert scale(first) == pytest.approx(size, rel=0.01)
    assert first.locator(".weights li").count() == 20


def test_an_address_of_something_else_is_no_error(visit: Open) -> None:
    page = visit("capture/#map?map=99&head=77&token=123456789")
    assert page.locator(".thumbnail").count() == 8
    assert visit("translator/#map?map=3").locator("textarea").is_visible()
