"""The page in a real browser: every view opened, zoomed, hovered, clicked, and walked through with keys alone."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.view import browser
from tests.view.fake_server import Server, words

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process
GOLDEN = Path(__file__).parent / "golden"
LENGTH = 2048
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    browser.demand()
    torch.manual_seed(0)
    server = Server(length=LENGTH, layers=2, heads=3)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def chromium(server: Server) -> Iterator[Any]:
    with browser.chromium() as opened:
        yield opened


@pytest.fixture
def visit(server: Server, chromium: Any) -> Iterator[Open]:
    """Open an address of the page. At the end: nothing was asked of anybody else, and nothing went wrong unseen."""
    contexts, strangers, errors = [], [], []
    server.delay, server.refuse = 0.0, None
    server.asked.clear()

    def open_page(address: str, **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "request", lambda request: request.url.startswith((server.url, "blob:")) or strangers.append(request.url)
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: "Content Security Policy" in said.text and errors.append(said.text))
        page.goto(f"{server.url}/{address}")
        quiet(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    server.delay, server.refuse = 0.0, None
    assert not strangers
    assert not errors


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


# The grid


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


# The text


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


# Work, errors, looks


def test_it_says_what_it_computes_and_can_be_cancelled(visit: Open, server: Server) -> None:
    page = visit("translator/")
    server.delay = 2.0
    page.locator("textarea").fill("the cat")
    page.keyboard.press("Enter")
    page.get_by_text("Computing translations…").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert page.locator(".said").inner_text().startswith("Cancelled")
    page.wait_for_timeout(2300)
    assert page.locator(".hypothesis").count() == 0
    server.delay = 0.0
    page.get_by_role("button", name="Translate").click()
    page.locator(".hypothesis").first.wait_for()


def test_tiles_can_be_cancelled_and_come_after_a_move(visit: Open, server: Server) -> None:
    page = visit("capture/#map?map=1&head=2")
    server.delay = 1.0
    page.locator(".stage").focus()
    page.keyboard.press("+")
    page.get_by_text("Computing a part of the map").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Cancelled").wait_for()
    server.delay = 0.0
    server.asked.clear()
    page.keyboard.press("Shift+ArrowRight")
    until(page, lambda: any("/tile/" in path for path in server.asked), "the tiles to be asked for again")


def test_what_the_server_refuses_is_told_in_its_words(visit: Open, server: Server) -> None:
    server.refuse = "query (40) must be below 12; choose another."
    page = visit("capture/#text?map=0&head=1&token=40")
    assert page.locator(".said").inner_text() == server.refuse
    assert "wrong" in page.get_attribute(".status", "class")
    server.refuse = None
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    quiet(page)
    assert page.locator(".said").inner_text() == "Ready"


def test_light_and_dark_by_preference_and_by_hand(visit: Open, server: Server) -> None:
    page = visit("capture/", color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(22, 21, 26)"
    assert any("palette=dark" in path for path in server.asked)
    page.get_by_label("Colours").select_option("light")
    assert page.evaluate(paper) == "rgb(251, 250, 247)"
    page.reload()
    assert page.evaluate(paper) == "rgb(251, 250, 247)"


def test_chinese_by_preference_and_by_hand(visit: Open) -> None:
    page = visit("capture/", locale="zh-CN")
    assert page.locator("nav a").all_inner_texts() == ["图谱", "文本"]
    assert page.get_attribute("html", "lang") == "zh"
    page.get_by_label("语言").select_option("en")
    assert page.locator("nav a").all_inner_texts() == ["Map", "Text"]
    page.reload()
    assert page.locator("h1").inner_text() == "All layers and heads"


ADDRESSES = {
    "grid": "capture/",
    "map": "capture/#map?map=1&head=2&token=905&sight=800,800,300",
    "text": "capture/#text?map=0&head=1&token=40&end=46",
    "image": "images/#image?map=1&head=2",
    "translate": "translator/#translate?say=the+red+cat+sits+on+the+mat",
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_phone_shows_every_view_without_scrolling_sideways(visit: Open, name: str) -> None:
    page = visit(ADDRESSES[name], **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if name == "map":
        page.touchscreen.tap(*middle(page))
        quiet(page)
        assert page.locator(".weights li").count() == 20


@pytest.mark.parametrize("name", ADDRESSES)
def test_every_control_has_a_name(visit: Open, name: str) -> None:
    page = visit(ADDRESSES[name])
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("a, button, select, input, textarea, [tabindex='0']")].filter(node =>
          !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent.trim()))
          .map(node => node.outerHTML.slice(0, 80))"""
    )
    assert not nameless


LOOKS = {
    "grid-light": ("grid", {}),
    "map-dark": ("map", {"color_scheme": "dark"}),
    "text-light": ("text", {}),
    "image-dark": ("image", {"color_scheme": "dark"}),
    "translate-chinese": ("translate", {"locale": "zh-CN"}),
    "map-phone": ("map", PHONE),
}


@pytest.mark.parametrize("name", LOOKS)
def test_it_looks_as_it_was_seen_to_look(visit: Open, name: str, tmp_path: Path) -> None:
    """Small pictures of the views, taken once and looked at by people. Fonts differ from machine to machine, so letters
    are blurred away; the layout and the colours are not. REGARD_GOLDEN=1 takes them anew."""
    address, options = LOOKS[name]
    page = visit(ADDRESSES[address], **options)
    page.wait_for_timeout(500)
    seen = small(Image.open(io.BytesIO(page.screenshot())))
    kept = GOLDEN / f"{name}.png"
    if browser.anew():
        seen.save(kept)
    seen.save(tmp_path / "seen.png")
    before, now = (_tensor(image) for image in (small(Image.open(kept)), seen))
    assert before.shape == now.shape
    apart = (before - now).abs()
    assert apart.mean() < 6, f"{apart.mean():.1f} of 255 from {kept}; see {tmp_path / 'seen.png'}"
    assert (apart > 60).float().mean() < 0.02


def small(image: Image.Image) -> Image.Image:
    return image.convert("RGB").resize((240, round(240 * image.height / image.width)), Image.Resampling.BOX)


def _tensor(image: Image.Image) -> torch.Tensor:
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).float()
