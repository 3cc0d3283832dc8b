"""Where the page opens each kind of target, and how the views follow a new text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from regard.server.open_target import open_target
from regard.server.target import NoTarget
from tests.page import runs
from tests.page.browser import expect, quiet

pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser, one server, one process
    pytest.mark.usefixtures("no_drawing"),
]

SENTENCE = "the cat sees a dog"


def current(page: Any, name: str) -> None:
    expect(page.locator("nav a[aria-current]")).to_have_text(name)


def no_error(page: Any) -> None:
    quiet(page)
    expect(page.locator(".status")).not_to_have_class(re.compile("wrong"))


def test_a_translator_opens_with_its_sentence_and_its_maps_follow(real: Any, tmp_path: Path) -> None:
    page = real(open_target(runs.translator(tmp_path), SENTENCE))()
    current(page, "Translate")
    expect(page.locator("textarea")).to_have_value(SENTENCE)
    page.locator(".hypothesis").first.wait_for()
    no_error(page)
    page.locator("textarea").fill("a bird sees the cat")
    page.keyboard.press("Enter")
    expect(page.locator("header .brand")).to_contain_text("a bird sees the cat →")
    quiet(page)
    page.locator("nav").get_by_text("Text", exact=True).click()
    expect(page.locator(".tokens").first).to_contain_text("bird")
    page.locator("nav").get_by_text("Explain", exact=True).click()
    page.locator(".chart .box").first.wait_for()
    expect(page.get_by_label("Mechanism")).to_have_value("run")
    expect(page.locator(".toolbar input[type=text]")).to_have_value("a bird sees the cat")
    no_error(page)
    page.locator("nav").get_by_text("Translate", exact=True).click()
    expect(page.locator("textarea")).to_have_value("a bird sees the cat")


def test_a_translator_without_a_sentence_is_explained_once_there_is_one(real: Any, tmp_path: Path) -> None:
    page = real(open_target(runs.translator(tmp_path)))("explain.html")
    expect(page.locator("main .hint")).to_have_text("Type a text for the model to read.")
    no_error(page)


def test_a_classifier_opens_its_text_at_the_last_layer(real: Any, tmp_path: Path) -> None:
    text = "the film was truly fine"
    page = real(open_target(runs.text_classifier(tmp_path), text))()
    current(page, "Text")
    expect(page.get_by_label("Layer")).to_have_value("1")
    expect(page.get_by_label("Head", exact=True)).to_have_value("mean")
    page.locator("nav").get_by_text("Explain", exact=True).click()
    page.locator(".chart .box").first.wait_for()
    expect(page.locator(".toolbar input[type=text]")).to_have_value(text)
    no_error(page)


def test_an_image_opens_as_an_image_and_is_explained(real: Any, tmp_path: Path) -> None:
    folder, image = runs.image_classifier(tmp_path)
    page = real(open_target(folder, image=image))()
    current(page, "Image")
    page.locator("nav").get_by_text("Explain", exact=True).click()
    page.locator(".chart .box").first.wait_for()
    expect(page.get_by_label("Mechanism")).to_have_value("run")
    expect(page.locator(".toolbar input[type=text]")).to_have_count(0)
    no_error(page)


def test_without_a_target_mechanisms_are_explained(real: Any) -> None:
    page = real(NoTarget())()
    expect(page).to_have_url(re.compile(r"/explain\.html$"))
    page.locator(".chart .box").first.wait_for()
    expect(page.locator("nav a")).to_have_text(["Explain"])
    no_error(page)


def test_a_bookmark_opens_its_own_view(real: Any, tmp_path: Path) -> None:
    page = real(open_target(runs.translator(tmp_path), SENTENCE))("#map")
    current(page, "Map")
    expect(page.locator(".thumbnail.there")).to_have_count(4 * 2)
