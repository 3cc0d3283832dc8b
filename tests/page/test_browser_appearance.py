"""Appearance of the page: status and errors, colours, languages, phones, golden screenshots."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.page import browser
from tests.page.browser import Open, expect, middle, number, quiet, until
from tests.page.gated_server import GatedServer

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process


GOLDEN = Path(__file__).parent / "golden"
CHINESE = json.loads((Path(__file__).parents[2] / "web/src/shared/words.zh.json").read_text(encoding="utf-8"))
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def test_running_work_is_shown_and_can_be_cancelled(visit: Open, server: GatedServer) -> None:
    page = visit("translator/")
    server.gate.open.clear()
    page.locator("textarea").fill("the cat")
    page.keyboard.press("Enter")
    page.get_by_text("Computing translations…").wait_for()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".said")).to_have_text(re.compile("^Cancelled"))
    server.gate.open.set()
    until(page, lambda: server.gate.done(), "the unneeded response")
    page.wait_for_timeout(200)
    expect(page.locator(".hypothesis")).to_have_count(0)
    page.get_by_role("button", name="Translate").click()
    page.locator(".hypothesis").first.wait_for()


def test_progress_is_shown(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#map?map=1&head=2")
    far = page.locator(".status .far")
    first, second = server.pretend_to_work("capture", "layers.1, head 2", "x")
    first.done = 0.417
    server.gate.open.clear()
    page.mouse.click(*middle(page))
    expect(far).to_have_text("layers.1, head 2: 41 % · x")
    first.done, second.started = 0.98, False
    expect(far).to_have_text("layers.1, head 2: 98 %")
    server.gate.open.set()
    quiet(page)
    expect(far).to_have_text("")


def test_the_language_changes_during_work(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text?map=0&head=1")
    server.gate.open.clear()
    page.get_by_text("Another text").click()
    page.locator("dialog textarea").fill("Something else")
    page.get_by_role("button", name="Run").click()
    page.get_by_text("Computing the model").wait_for()
    page.get_by_label("Language").select_option("zh")
    expect(page.locator(".said")).to_have_text("正在计算新文本上的模型…")
    page.get_by_role("button", name="取消").click()
    server.gate.open.set()
    until(page, lambda: server.gate.done(), "the unneeded response")
    expect(page).to_have_title("a made-up capture · regard")


def test_the_language_of_the_progress_changes_before_its_next_update(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#map?map=1&head=2")
    far = page.locator(".status .far")
    server.pretend_to_work("capture", "layers.1, head 2")[0].done = 0.417
    server.gate.open.clear()
    page.mouse.click(*middle(page))
    expect(far).to_have_text("layers.1, head 2: 41 %")
    page.route("**/api/progress", lambda route: None)  # a busy server
    page.get_by_label("Language").select_option("zh")
    expect(far).to_have_text("41 %", timeout=1000)


def test_an_outdated_page_says_so_in_its_language(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text?map=0&head=1", locale="zh-CN")
    other = visit("capture/#text?map=0&head=1")
    other.get_by_text("Another text").click()
    other.locator("dialog textarea").fill("Something else")
    other.get_by_role("button", name="Run").click()
    expect(other).to_have_title("Something else · regard")
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".said")).to_have_text(CHINESE["outdated"])


def test_cancelled_tiles_load_after_a_move(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#map?map=1&head=2")
    server.gate.open.clear()
    page.locator(".stage").focus()
    page.keyboard.press("+")
    page.get_by_text("Computing a part of the map").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Cancelled").wait_for()
    server.gate.open.set()
    server.gate.asked.clear()
    page.keyboard.press("Shift+ArrowRight")
    until(page, lambda: any("/tile/" in path for path in server.gate.asked), "new requests for the tiles")


def test_error_messages_of_the_server_are_shown(visit: Open, server: GatedServer) -> None:
    server.gate.refuse = "query (40) must be below 12; choose another."
    page = visit("capture/#text?map=0&head=1&token=40")
    expect(page.locator(".said")).to_have_text(server.gate.refuse)
    expect(page.locator(".status.wrong")).to_be_visible()
    server.gate.refuse = None
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".said")).to_have_text("Ready")


def test_light_and_dark_by_preference_and_by_choice(visit: Open, server: GatedServer) -> None:
    page = visit("capture/", color_scheme="dark")
    paper = expect(page.locator("body"))
    paper.to_have_css("background-color", "rgb(22, 21, 26)")
    page.get_by_label("Colours").select_option("light")
    paper.to_have_css("background-color", "rgb(251, 250, 247)")
    page.reload()
    paper.to_have_css("background-color", "rgb(251, 250, 247)")


def test_chinese_by_preference_and_by_choice(visit: Open) -> None:
    page = visit("capture/", locale="zh-CN")
    tabs = expect(page.locator("nav a"))
    tabs.to_have_text(["注意力图", "文本", "流程图"])
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    page.get_by_label("语言").focus()
    page.get_by_label("语言").select_option("en")
    expect(page.get_by_label("Language")).to_be_focused()
    tabs.to_have_text(["Map", "Text", "Explain"])
    page.reload()
    expect(page.locator("h1")).to_have_text("All layers and heads")


def test_equations_in_words_are_translated(visit: Open) -> None:
    page = visit("short/explain.html#encoder-decoder", locale="zh-CN")
    page.locator(".chart .box").first.wait_for()
    texts = page.locator("svg.chart").text_content()
    assert "c = 编码器的最后一个状态" in texts and "the encoder's last state" not in texts


def test_the_text_beside_a_map_scrolls_to_a_key_that_is_not_drawn_yet(visit: Open) -> None:
    """The strongest key is in another part of the text than the query."""
    page = visit("capture/#map?map=1&head=2")

    def answer(route: Any) -> None:
        result = route.fetch()
        body = result.json()
        body["keys"][0] = 1900
        route.fulfill(response=result, json=body)

    page.route("**/api/maps/1/2/query/905?*", answer)
    page.evaluate("location.hash = '#map?map=1&head=2&token=905'")
    expect(page.locator(".reading [data-token='1900']")).to_be_visible()
    until(
        page,
        lambda: page.locator(".reading .tokens").evaluate(
            """text => {
              const frame = text.getBoundingClientRect();
              const token = text.querySelector("[data-token='1900']").getBoundingClientRect();
              return token.top >= frame.top && token.bottom <= frame.bottom;
            }"""
        ),
        "the key in sight",
    )


def test_an_alignment_has_a_legend(visit: Open) -> None:
    page = visit("translator/")
    page.locator("textarea").fill("the cat")
    page.keyboard.press("Enter")
    legend = page.locator(".detail .legend")
    expect(legend).to_be_visible()
    assert re.fullmatch(r"0\s*0\.\d{3}", legend.inner_text().strip())


ADDRESSES = {
    "grid": "capture/",
    "map": "capture/#map?map=1&head=2&token=905&sight=800,800,300",
    "text": "capture/#text?map=0&head=1&token=40&end=46",
    "image": "images/#image?map=1&head=2",
    "translate": "translator/#translate?say=the+red+cat+sits+on+the+mat",
    "generate": "language/#generate?say=the+cat&tokens=40",
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_phone_shows_every_view_without_scrolling_sideways(visit: Open, name: str) -> None:
    page = visit(ADDRESSES[name], **PHONE)
    assert (
        page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    )  # innerWidth grows with it
    expect(page.locator(".brand span")).to_be_in_viewport()  # the title names the class that a classifier predicts
    if name == "map":
        expect(page.locator("h2", has_text="What “")).to_be_visible()
        page.touchscreen.tap(*middle(page))
        until(page, lambda: number(page, "token") != 905, "another query")
        expect(page.locator(".weights li")).to_have_count(20)
        expect(page.locator(".readout")).to_be_in_viewport()
        assert re.fullmatch(r"“.+”.*“.+”\d* .+", page.locator(".readout").inner_text().replace("\n", " "))
    if name == "text":
        page.locator("[data-token='50']").tap()
        quiet(page)
        expect(page.locator(".readout")).to_be_in_viewport()
        expect(page.locator(".readout em").first).to_have_text(page.locator(".weights .number").first.inner_text())


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_desktop_shows_every_view_without_scrolling_sideways(visit: Open, name: str) -> None:
    page = visit(ADDRESSES[name])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", ADDRESSES)
def test_every_control_has_a_name(visit: Open, name: str) -> None:
    page = visit(ADDRESSES[name])
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("a, button, select, input, textarea, [tabindex='0']")].filter(node =>
          !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent.trim()))
          .map(node => node.outerHTML.slice(0, 80))"""
    )
    assert not nameless


SCREENSHOTS = {
    "grid-light": ("grid", {}),
    "map-dark": ("map", {"color_scheme": "dark"}),
    "text-light": ("text", {}),
    "image-dark": ("image", {"color_scheme": "dark"}),
    "translate-chinese": ("translate", {"locale": "zh-CN"}),
    "map-phone": ("map", PHONE),
    "generate-light": ("generate", {}),
}


@pytest.mark.parametrize("name", SCREENSHOTS)
def test_screenshots_match_the_golden_images(visit: Open, name: str, tmp_path: Path) -> None:
    """Small screenshots of the views, recorded once and reviewed by people. Fonts differ between machines, so letters
    are blurred; the layout and the colours are not. REGARD_GOLDEN=1 records them again."""
    address, options = SCREENSHOTS[name]
    page = visit(ADDRESSES[address], **options)
    seen = small(Image.open(io.BytesIO(page.screenshot(animations="disabled"))))
    kept = GOLDEN / f"{name}.png"
    if browser.update_goldens():
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
