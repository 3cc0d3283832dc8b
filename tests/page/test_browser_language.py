"""The page of a trained language model: Generate keeps its text, Explain shows the model, settings, keys, phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from regard.models.sampling import Sampling
from regard.server.language_target import LanguageTarget
from regard.server.open_target import open_target
from regard.training import logbook
from tests.page import runs
from tests.page.browser import Open, at, expect, not_at, quiet, until
from tests.page.conftest import visits
from tests.page.gated_server import served
from tests.page.test_browser_appearance import PHONE

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process

PROMPT = "the cat"
LENGTH = len(PROMPT)


class Conversations:
    """The vocabulary of a run, with a chat template."""

    chat_template = "{% for m in messages %}the {{ m.content }}{% endfor %} saw"

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vocabulary, name)

    def encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> LanguageTarget:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logbook, "draw", lambda records, goal: b"")
        folder = runs.language_model(tmp_path_factory.mktemp("language"))
    target = open_target(folder, PROMPT)
    assert isinstance(target, LanguageTarget)
    return target


@pytest.fixture(scope="module")
def address(language: LanguageTarget) -> Iterator[str]:
    with served(language) as url:
        yield url


@pytest.fixture
def visit(chromium: Any, address: str, language: LanguageTarget) -> Iterator[Open]:
    before = language.snapshot
    with visits(chromium, address) as open_page:
        yield open_page
    language.snapshot = before


def tokens(page: Any) -> list[str]:
    return [" " if one == "␣" else one for one in page.locator("[data-token]").all_inner_texts()]


def text(page: Any) -> str:
    return "".join(tokens(page)).replace("⏎", "\n")


def finished(page: Any, count: int) -> None:
    expect(page.locator("[data-token]")).to_have_count(LENGTH + count)
    quiet(page)


def test_the_text_of_the_command_is_continued(visit: Open, language: LanguageTarget) -> None:
    page = visit()
    expect(page.locator("nav a[aria-current]")).to_have_text("Generate")
    expect(page.locator("nav a")).to_have_text(["Map", "Text", "Generate", "Explain"])
    expect(page.get_by_label("Prompt").first).to_have_value(PROMPT)
    quiet(page)
    (expected,) = language.generator.generate(PROMPT, Sampling(), max_new_tokens=57)
    assert text(page).startswith(PROMPT + expected.text[:40])


def test_another_view_and_back_keeps_text_branch_token_and_scroll(visit: Open) -> None:
    page = visit("#generate?say=the+cat&tokens=40", viewport={"width": 900, "height": 420})
    finished(page, 40)
    page.locator("[data-token='12']").click()
    quiet(page)
    page.locator(".runners button").nth(1).click()
    at(page, "branches=5,")
    finished(page, 40)
    page.locator("[data-token='20']").click()
    at(page, r"at=20\b")
    quiet(page)
    before, address = text(page), page.url
    page.evaluate("scrollTo(0, 150)")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("Map", "Text"):
        page.keyboard.press({"Map": "1", "Text": "2"}[name])
        expect(page.locator("nav a[aria-current]")).to_have_text(name)
        quiet(page)
        page.keyboard.press("5")
        expect(page.locator("[data-token].chosen")).to_have_attribute("data-token", "20")
        assert (text(page), page.url) == (before, address)
        until(page, lambda: page.evaluate("scrollY") == 150, "the text where it was")
        quiet(page)
    page.locator("nav").get_by_text("Explain", exact=True).click()
    page.locator(".chart .box").first.wait_for()
    page.locator("nav").get_by_text("Generate", exact=True).click()
    expect(page.locator("[data-token].chosen")).to_have_attribute("data-token", "20")
    assert (text(page), page.url) == (before, address)
    assert not [url for url in asked if "/steps" in url or url.endswith("/api/generate")]


def test_a_bookmark_repeats_a_branch_and_back_undoes_it(visit: Open) -> None:
    page = visit("#generate?say=the+cat&tokens=30")
    finished(page, 30)
    plain = text(page)
    for token in (10, 16):
        page.locator(f"[data-token='{token}']").click()
        quiet(page)
        page.locator(".runners button").nth(1).click()
        at(page, rf"branches=.*\b{token - LENGTH},")
        finished(page, 30)
    branched = text(page)
    assert branched[:10] == plain[:10] and branched[10] != plain[10]
    page.reload()
    finished(page, 30)
    assert text(page) == branched
    page.go_back()
    page.go_back()
    not_at(page, "branches")
    until(page, lambda: text(page) == plain, "the text without branches")


def test_generation_continues_in_another_view(visit: Open) -> None:
    page = visit("#map")
    page.goto(page.url.split("#")[0] + "#generate?say=the+cat&tokens=50")
    expect(page.locator("[data-token]").nth(LENGTH)).to_be_visible()
    page.locator("nav").get_by_text("Map", exact=True).click()
    page.locator(".thumbnail.there").first.wait_for()
    quiet(page)
    page.locator("nav").get_by_text("Generate", exact=True).click()
    expect(page.locator("[data-token]")).to_have_count(LENGTH + 50)


def test_all_settings_reach_the_model(visit: Open, language: LanguageTarget) -> None:
    page = visit()
    page.get_by_text("More settings").click()
    values = {"Temperature": "0.8", "Seed": "3", "Top-k": "5", "Top-p": "0.9", "Min-p": "0.02"}
    values |= {"Repetition penalty": "1.2", "Tokens": "25"}
    for name, value in values.items():
        page.get_by_label(name).fill(value)
    page.get_by_role("button", name="Generate", exact=True).click()
    at(page, "seed=3&temperature=0.8&top_k=5&top_p=0.9&min_p=0.02&repetition_penalty=1.2&tokens=25")
    finished(page, 25)
    sampling = Sampling(temperature=0.8, top_k=5, top_p=0.9, min_p=0.02, repetition_penalty=1.2, seed=3)
    (expected,) = language.generator.generate(PROMPT, sampling, max_new_tokens=25)
    assert text(page) == PROMPT + expected.text
    page.reload()
    expect(page.get_by_label("Top-k")).to_have_value("5")  # open, because a setting is in use
    expect(page.get_by_label("Top-k")).to_be_visible()


def test_a_stop_string_ends_the_text(visit: Open, language: LanguageTarget) -> None:
    page = visit("#generate?say=the+cat&temperature=0&tokens=50")
    quiet(page)
    page.get_by_text("More settings").click()
    (greedy,) = language.generator.generate(PROMPT, Sampling(temperature=0), max_new_tokens=50)
    stop = greedy.text[8:11]
    page.get_by_label("Stop string").fill(stop)
    page.get_by_label("Stop string").press("Enter")
    expect(page.locator(".progress .hint")).to_have_text(re.compile(r"\d+ tokens · stopped"))
    assert text(page).endswith(stop) and text(page).count(stop) >= 1
    expect(page.get_by_role("button", name="Continue")).to_be_disabled()


def test_invalid_settings_are_shown_although_they_were_closed(visit: Open) -> None:
    page = visit()
    page.get_by_text("More settings").click()
    page.get_by_label("Top-p").fill("3")
    page.get_by_text("More settings").click()
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.get_by_label("Top-p")).to_be_visible()
    expect(page.get_by_label("Top-p")).to_be_focused()
    not_at(page, "top_p")


def test_chat_is_offered_only_with_a_template(visit: Open, language: LanguageTarget, chromium: Any) -> None:
    page = visit()
    expect(page.get_by_label("Chat")).to_have_count(0)
    vocabulary = language.generator.vocabulary
    language.generator.vocabulary = Conversations(vocabulary)
    try:
        page = visit("#generate?say=cat&tokens=5")
        expect(page.locator("[data-token]")).to_have_count(3 + 5)
        page.get_by_label("Chat").check()
        page.get_by_role("button", name="Generate", exact=True).click()
        at(page, "chat=true")
        template = "the cat saw"
        expect(page.locator("[data-token]")).to_have_count(len(template) + 5)
        assert text(page).startswith(template)
        expect(page.locator(".say .field span").first).to_have_text("Message")
    finally:
        language.generator.vocabulary = vocabulary


def test_explain_shows_the_model_with_the_prompt(visit: Open, language: LanguageTarget) -> None:
    page = visit("#generate?say=the+dog&tokens=5")
    finished(page, 5)
    page.locator("nav").get_by_text("Explain", exact=True).click()
    page.locator(".chart .box").first.wait_for()
    expect(page).to_have_url(re.compile(r"/explain\.html$"))
    expect(page.get_by_label("Mechanism")).to_have_value("run")
    expect(page.locator(".toolbar input[type=text]")).to_have_value("the dog")
    letters = page.locator(".box.input text").all_text_contents()
    assert letters[1:8] == [*"the", "␣", *"dog"]
    quiet(page)
    expect(page.locator(".status")).not_to_have_class(re.compile("wrong"))
    page.get_by_label("Mechanism").select_option("dot")
    expect(page).to_have_url(re.compile(r"explain\.html#dot"))
    page.go_back()
    expect(page.get_by_label("Mechanism")).to_have_value("run")
    page.go_back()
    finished(page, 5)
    expect(page).to_have_title(re.compile("^run: the cat"))


def test_explain_asks_for_a_text(visit: Open, language: LanguageTarget) -> None:
    from regard.server.target import Snapshot

    language.snapshot = Snapshot("language", "run", [])
    page = visit("explain.html")
    expect(page.locator("main .hint")).to_have_text("Type a text for the model to read.")
    expect(page.locator(".status")).not_to_have_class(re.compile("wrong"))
    page.locator(".toolbar input[type=text]").fill("the log")
    page.keyboard.press("Enter")
    page.locator(".chart .box").first.wait_for()


def test_by_keyboard_only(visit: Open) -> None:
    page = visit("#generate")
    page.get_by_label("Prompt").first.focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(PROMPT)
    page.keyboard.press("Tab")  # temperature
    page.keyboard.press("Tab")  # tokens
    page.keyboard.press("Control+a")
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    finished(page, 20)
    before = text(page)
    for _ in range(4):  # seed, the button, more settings, the text
        page.keyboard.press("Tab")
    expect(page.get_by_role("listbox")).to_be_focused()
    page.keyboard.press("Home")
    for _ in range(LENGTH + 4):
        page.keyboard.press("ArrowRight")
    at(page, rf"at={LENGTH + 4}\b")
    quiet(page)
    for _ in range(3):  # continue, maps of the prompt, the first runner-up
        page.keyboard.press("Tab")
    expect(page.locator(".runners button").first).to_be_focused()
    page.keyboard.press("Enter")
    at(page, "branches=4,")
    finished(page, 20)
    assert text(page)[: LENGTH + 4] == before[: LENGTH + 4] and text(page) != before
    page.get_by_role("button", name="Continue").press("Enter")
    finished(page, 40)


def test_on_a_phone_a_tap_shows_numbers(visit: Open) -> None:
    page = visit("#generate?say=the+cat&tokens=40", **PHONE)
    finished(page, 40)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    page.locator("[data-token='20']").scroll_into_view_if_needed()
    page.locator("[data-token='20']").tap()
    readout = page.locator(".readout")
    expect(readout).to_be_in_viewport()
    expect(readout.locator("em").first).to_have_text(page.locator(".weights .number").first.inner_text())
    page.get_by_text("More settings").tap()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]


def test_in_chinese_every_label_is_translated(visit: Open) -> None:
    page = visit("#generate?say=the+cat&tokens=10&top_k=5", locale="zh-CN")
    finished(page, 10)
    labels = page.locator(".say .field > :first-child, .say legend, .say summary").all_inner_texts()
    assert labels == [
        *("提示词", "温度", "词元数", "随机种子", "更多设置", "可选的词元", "Top-k", "Top-p", "Min-p"),
        *("重复与结束", "重复惩罚", "停止字符串"),
    ]


def test_repeated_tokens_have_their_positions(visit: Open) -> None:
    page = visit("#generate?say=the+cat&tokens=20&at=20")
    finished(page, 20)
    rows = page.locator(".weights li")
    rows.first.wait_for()
    all_tokens = tokens(page)
    for row in rows.all():
        name = row.locator(".token").inner_text().replace("␣", " ").replace("⏎", "\n")
        positions = [index for index, one in enumerate(all_tokens) if one.replace("⏎", "\n") == name]
        if len(positions) > 1:
            assert int(row.locator(".name small").inner_text()) in positions
        else:
            expect(row.locator(".name small")).to_have_count(0)
