"""The Text, Image and Translate views in a real browser, with mouse and keyboard."""

from __future__ import annotations

import re

import pytest

from tests.page.browser import LENGTH, Open, at, expect, not_at, number, quiet, until
from tests.page.gated_server import GatedServer

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process


def test_a_token_colours_what_it_attends_to_and_what_it_receives(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text?map=0&head=1")

    def shaded(token: int, shade: float) -> None:
        property = "node => Number(node.style.getPropertyValue('--w'))"
        index = page.locator(f"[data-token='{token}']")
        until(page, lambda: index.evaluate(property) == shade, f"token {token} in a shade of {shade}")

    page.locator("[data-token='40']").click()
    at(page, "token=40")
    shaded(int(server.row("capture", 0, "1", 40).argmax()), 1)
    shaded(41, 0)  # the future, in a causal map
    page.get_by_text("what it receives").click()
    at(page, "direction=to")
    shaded(39, 0)  # the past receives nothing from it
    shaded(int(server.column("capture", 0, "1", 40).argmax()), 1)


def test_tokens_by_keys_and_links_of_a_span(visit: Open) -> None:
    page = visit("capture/#text?map=0&head=1")
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    at(page, r"token=5\b")
    page.keyboard.press("ArrowDown")
    below = until(page, lambda: (result := number(page, "token")) != 5 and result, "a token of the next line")
    assert 12 < below < 60
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    at(page, rf"token={below}&end={below + 3}\b")
    expect(page.locator(".tokens .chosen")).to_have_count(4)
    page.locator("svg.links").wait_for()
    expect(page.locator("svg.links text.chosen")).to_have_count(4)
    expect(page.locator("svg.links path")).to_have_count(4 * 5)
    page.keyboard.press("Escape")
    not_at(page, "token")


def test_a_long_text_is_drawn_when_it_becomes_visible(visit: Open) -> None:
    page = visit("capture/#text?map=0&head=1")
    drawn = page.locator("[data-token]").count()
    assert 100 < drawn < LENGTH - 200
    page.locator(".tokens").focus()
    page.keyboard.press("End")
    page.keyboard.press("End")
    last = page.locator(f"[data-token='{LENGTH - 1}']")
    last.wait_for()
    at(page, f"token={LENGTH - 1}")
    until(page, lambda: last.evaluate("n => n.getBoundingClientRect().bottom <= innerHeight"), "the end in sight")


def test_across_two_texts(visit: Open) -> None:
    page = visit("capture/#text?map=2&head=1")
    keys, queries = page.locator(".tokens").all()
    queries.locator("[data-token='4']").click()
    at(page, r"token=4\b")
    not_at(page, "direction")
    keys.locator("[data-token='7']").click()
    at(page, "token=7&direction=to")
    page.reload()
    quiet(page)
    expect(keys.locator(".chosen")).to_have_attribute("data-token", "7")
    expect(queries.locator(".chosen")).to_have_count(0)


def test_another_text(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text")
    page.get_by_text("Another text").click()
    page.locator("dialog textarea").fill("Something else")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("header .brand")).to_contain_text("Something else")
    assert any(path.endswith("/api/run") for path in server.gate.asked)


def test_links_of_all_heads_in_colours(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text?map=0&head=1&token=40")
    page.get_by_text("all heads").click()
    at(page, "links=all")
    curves = page.locator("svg.links path")
    expect(curves).to_have_count(3 * 4)  # four links of each head
    colours = curves.evaluate_all("nodes => [...new Set(nodes.map(n => getComputedStyle(n).stroke))]")
    assert len(colours) == 3
    best = int(server.row("capture", 0, "2", 40).argmax())
    page.get_by_role("button", name="Head 2").hover()
    expect(curves).to_have_count(4)
    expect(page.locator("svg.links title", has_text="2: ")).to_have_count(4)
    expect(page.locator("svg.links .place", has_text=re.compile(f"^{best}$"))).to_have_count(1)
    page.locator("[data-token='60']").hover()
    expect(page.locator(".linked h2")).to_contain_text("(60) in all heads")
    expect(curves).to_have_count(3 * 4)
    page.mouse.move(5, 5)
    expect(page.locator(".linked h2")).to_contain_text("(40) in all heads")
    page.get_by_role("button", name="Head 2").click()
    at(page, "head=2")


@pytest.mark.parametrize("more", ["token=40&links=all", "token=40&end=46", "links=all"])
def test_links_are_in_sight_on_a_phone(visit: Open, more: str) -> None:
    page = visit(f"capture/#text?map=0&head=1&{more}", viewport={"width": 390, "height": 844})
    expect(page.locator(".linked h2")).to_be_in_viewport(ratio=1)
    expect(page.locator("[data-token='0']")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_the_toolbar_of_the_text_is_one_row(visit: Open, locale: str) -> None:
    page = visit("capture/#text?map=0&head=1", locale=locale)
    bottoms = page.locator(".toolbar > *").evaluate_all("nodes => nodes.map(n => n.getBoundingClientRect().bottom)")
    assert len(bottoms) == 4
    assert max(bottoms) - min(bottoms) < 5


def test_repeated_tokens_have_positions_in_lists(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text?map=0&head=1&token=400")
    names = server.targets["capture"].snapshot.layers[0].key_tokens
    assert names is not None
    keys = server.row("capture", 0, "1", 400).topk(20).indices.tolist()
    rows = page.locator(".weights li")
    expect(rows).to_have_count(20)
    shown = ["".join(row.locator(".name small").all_inner_texts()) for row in rows.all()]
    spoken = [name.replace("Ġ", "") for name in names]
    assert shown == [str(key) if spoken.count(spoken[key]) > 1 else "" for key in keys]
    assert any(shown)


def test_a_legend_names_the_weights_of_its_colours(visit: Open, server: GatedServer) -> None:
    page = visit("capture/#text?map=0&head=1&token=40&scale=linear")
    strongest = float(server.row("capture", 0, "1", 40).max())
    expect(page.locator(".texts .legend span")).to_have_text(["0", f"{strongest:.3f}"])
    page.get_by_text("log", exact=True).click()
    expect(page.locator(".texts .legend span").first).not_to_have_text("0")
    page = visit("capture/#map?map=0&head=1")
    expect(page.locator(".toolbar .legend")).to_have_attribute(
        "aria-label", re.compile("^Legend: weights from .* to 1")
    )
    page = visit("images/#image?map=1&head=2")
    expect(page.locator(".framed .legend span").last).to_have_text(re.compile(r"^\d\.\d"))


def test_layer_names_break_only_between_parts(visit: Open) -> None:
    page = visit("capture/", viewport={"width": 390, "height": 844})
    breaks = page.locator(".sheet th b").evaluate_all(
        """nodes => nodes.flatMap(node => [...node.childNodes].filter(part => part.nodeType === 3).map(part => {
          const range = document.createRange();
          range.selectNode(part);
          return range.getClientRects().length;
        }))"""
    )
    assert breaks and set(breaks) == {1}


def test_layer_names_and_sizes_are_one_line_on_a_desktop(visit: Open) -> None:
    """Though there are more heads than fit."""
    page = visit("capture/")
    more = "row => row.append(...Array.from({length: 20}, () => row.lastElementChild.cloneNode(true)))"
    page.locator(".sheet tr").evaluate_all(f"rows => rows.forEach({more})")
    names = page.locator(".sheet th b, .sheet th b + span")
    lines = names.evaluate_all("nodes => nodes.map(node => node.offsetHeight)")
    assert lines and max(lines) < 25


def test_shift_and_click_selects_tokens_and_no_text(visit: Open) -> None:
    page = visit("capture/#text?map=0&head=1")
    page.locator("[data-token='5']").click()
    page.locator("[data-token='12']").click(modifiers=["Shift"])
    at(page, r"token=5&end=12\b")
    assert page.evaluate("getSelection().toString()") == ""


# The picture


def test_the_image_with_class_token_patch_and_rollout_overlays(visit: Open, server: GatedServer) -> None:
    page = visit("images/#image?map=1&head=2")
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].reduce((a, b) => a + b, 0)"
    overlay = page.locator(".picture .overlay")
    assert overlay.evaluate("c => [c.width, c.height]") == [14, 14]
    of_class = overlay.evaluate(pixels)
    page.locator(".picture").click(position={"x": 100, "y": 140})
    at(page, "overlay=patch")
    expect(page.locator(".patch")).to_be_visible()
    patch = number(page, "patch")
    asked = f"overlay?map=1&head=2&query={patch + 1}"
    until(page, lambda: any(asked in path for path in server.gate.asked), "what the patch attends to")
    until(page, lambda: overlay.evaluate(pixels) != of_class, "another overlay")
    quiet(page)
    page.keyboard.press("ArrowRight")
    at(page, rf"patch={patch + 1}\b")
    row = server.row("images", 1, "2", patch + 2)
    expect(page.locator(".framed .hint")).to_contain_text(f"{float(row[patch + 2]):.3f}")
    page.get_by_text("rollout", exact=True).click()
    until(page, lambda: any("rollout=1" in path for path in server.gate.asked), "a rollout")
    page.get_by_label("Head 3").click()
    at(page, "head=3")


# Translation


def test_a_sentence_is_translated_with_word_links(visit: Open) -> None:
    page = visit("translator/")
    page.get_by_role("button", name="Translate").click()
    expect(page.locator(".said")).to_have_text("Type a sentence first.")
    page.locator("textarea").fill("the red cat")
    page.keyboard.press("Enter")
    expect(page.locator(".written").first).to_have_text("Katze rote die")
    at(page, r"say=the\+red\+cat")
    page.get_by_role("button", name="Katze").hover()
    expect(page.locator(".word.linked")).to_have_text(["cat"])
    page.locator(".hypothesis").nth(1).click()
    expect(page.locator(".hypothesis input").nth(1)).to_be_checked()
    matrix, response = page.locator(".matrix canvas"), page.locator(".told")
    matrix.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(response).to_have_text(re.compile(r"^Katze ← cat: 0\."))
    box = matrix.bounding_box()
    matrix.hover(position={"x": box["width"] - 8, "y": box["height"] - 8})
    expect(response).to_have_text(re.compile("^</s> ← </s>"))


def test_a_refused_sentence_removes_the_translation_of_the_one_before(visit: Open) -> None:
    page = visit("translator/#translate?say=the+red+cat")
    expect(page.locator(".written").first).to_have_text("Katze rote die")
    page.route("**/api/translate", lambda route: route.fulfill(status=400, json={"error": "text is too long"}))
    page.locator("textarea").fill("a longer sentence")
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text("text is too long")
    expect(page.locator(".hypothesis")).to_have_count(0)
    expect(page.locator(".matrix")).to_have_count(0)
