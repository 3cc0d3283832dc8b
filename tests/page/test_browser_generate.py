"""The Generate view in a real browser: tokens appear, their attention and runners-up, branches, stop and continue."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.page.browser import Open, at, expect, quiet, until
from tests.page.gated_server import GatedServer
from tests.page.test_browser_appearance import PHONE

pytestmark = pytest.mark.xdist_group("browser")  # one browser, one server, one process

ADDRESS = "language/#generate?say=the+cat&tokens=20"
PROMPT = len("the cat")


def tokens(page: Any) -> list[str]:
    return page.locator("[data-token]").all_inner_texts()


def shade(page: Any, token: int) -> float:
    return float(page.locator(f"[data-token='{token}']").evaluate("node => node.style.getPropertyValue('--w')"))


def expected(server: GatedServer, text: list[str], token: int, layer: int, head: int | str) -> torch.Tensor:
    """The weights of a token, from a call over the whole text."""
    target = server.targets["language"]
    letters = target.generator.vocabulary  # type: ignore[attr-defined]
    ids = letters.encode("".join(text[: token + 1]).replace("⏎", "\n"))
    _, maps = target.gpt(torch.tensor([ids]), return_maps=True)  # type: ignore[attr-defined]
    heads = maps[layer].dense()[0, :, -1]  # (H, T)
    return heads.mean(0) if head == "mean" else heads[int(head)]


def test_a_prompt_is_continued_and_a_bookmark_repeats_the_text(visit: Open) -> None:
    page = visit("language/")
    expect(page.locator("nav a[aria-current]")).to_have_text("Generate")
    page.get_by_label("Prompt").first.fill("the cat")
    page.get_by_label("Tokens").fill("20")
    page.get_by_label("Seed").fill("3")
    page.get_by_label("Prompt").first.press("Enter")
    at(page, "say=the\\+cat&seed=3&tokens=20")
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 20)
    expect(page.locator(".progress .hint")).to_have_text("20 tokens · as many as requested")
    expect(page.locator(".runners tbody tr")).to_have_count(7)
    before = tokens(page)
    assert "".join(before[:PROMPT]) == "the cat"
    page.reload()
    quiet(page)
    assert tokens(page) == before
    page.get_by_label("Seed").fill("4")
    page.get_by_role("button", name="Generate").click()
    at(page, "seed=4")
    quiet(page)
    until(page, lambda: tokens(page) not in ([], before), "another text")
    page.go_back()
    at(page, "seed=3")
    until(page, lambda: tokens(page) == before, "the first text again")


def test_a_token_shows_what_it_attended_to_in_every_layer_and_head(visit: Open, server: GatedServer) -> None:
    page = visit(ADDRESS)
    quiet(page)
    text = tokens(page)
    page.locator("[data-token='15']").click()
    quiet(page)
    for layer, head in ((1, 0), (0, 2), (0, "mean")):
        page.get_by_label("Layer").select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        quiet(page)
        weights = expected(server, text, 15, layer, head)
        best = int(weights.argmax())
        until(page, lambda best=best: shade(page, best) == 1, "the strongest token in the strongest shade")
        other = (best + 5) % 16
        assert shade(page, other) == pytest.approx(float(weights[other] / weights[best]), abs=0.002)
        assert shade(page, 16) == 0
        expect(page.locator(".weights .number").first).to_have_text(f"{float(weights[best]):.3f}")
    at(page, "head=mean.*layer=0")
    page.locator("[data-token='3']").hover()
    expect(page.locator(".told")).to_have_text(re.compile(r"^“␣”: \d\.\d"))


def test_attention_is_shown_during_generation(visit: Open, server: GatedServer) -> None:
    page = visit("language/")
    server.gate.hold_after("/steps", 4)
    page.get_by_label("Prompt").first.fill("the cat")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 4)
    page.locator("[data-token='8']").click()
    until(page, lambda: max(shade(page, token) for token in range(9)) == 1, "the attention of token 8")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    server.gate.hold_after("/steps", None)
    expect(page.locator("[data-token]")).to_have_count(64 + 1)  # the context, and the token that was not read
    expect(page.locator("[data-token].chosen")).to_have_attribute("data-token", "8")
    expect(page.locator(".progress .hint")).to_have_text("58 tokens · the context of the model is full")


def test_stop_and_continue(visit: Open, server: GatedServer) -> None:
    page = visit("language/")
    server.gate.hold_after("/steps", 3)
    page.get_by_label("Prompt").first.fill("the cat")
    page.get_by_label("Tokens").fill("10")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 3)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    server.gate.hold_after("/steps", None)
    quiet(page)
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 3)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 10)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 20)
    quiet(page)
    stopped = tokens(page)
    page.get_by_label("Tokens").fill("20")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".progress .hint")).to_have_text("20 tokens · as many as requested")
    assert tokens(page) == stopped


def test_escape_stops(visit: Open, server: GatedServer) -> None:
    page = visit("language/")
    server.gate.hold_after("/steps", 2)
    page.get_by_label("Prompt").first.fill("the cat")
    page.keyboard.press("Enter")
    page.get_by_text("Computing the next tokens…").wait_for()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    expect(page.locator(".said")).to_have_text(re.compile("^Cancelled"))
    server.gate.hold_after("/steps", None)
    page.get_by_role("button", name="Continue").press("Enter")
    expect(page.locator("[data-token]")).to_have_count(64 + 1)


def test_a_runner_up_branches(visit: Open) -> None:
    page = visit(ADDRESS)
    quiet(page)
    before = tokens(page)
    page.locator("[data-token='12']").click()
    quiet(page)
    other = page.locator(".runners button").nth(1)
    name = other.inner_text()
    assert name != before[12]
    other.click()
    expect(page.locator("[data-token='12']")).to_have_text({"␣": " "}.get(name, name))
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 20)
    quiet(page)
    after = tokens(page)
    assert after[:12] == before[:12] and after[12:] != before[12:]
    expect(page.locator("[data-token].chosen")).to_have_attribute("data-token", "12")
    expect(page.locator(".runners .taken th")).to_have_text(name)


def test_keys_choose_tokens_heads_layers_and_branches(visit: Open) -> None:
    page = visit(ADDRESS)
    quiet(page)
    page.locator(".tokens").focus()
    page.keyboard.press("End")
    page.keyboard.press("End")
    expect(page.locator("[data-token].chosen")).to_have_attribute("data-token", str(PROMPT + 19))
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[data-token].chosen")).to_have_attribute("data-token", str(PROMPT + 18))
    page.keyboard.press("]")
    at(page, "head=1")
    page.keyboard.press("{")
    at(page, "layer=0")
    quiet(page)
    button = page.locator(".runners button").first
    name = button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".runners .taken th")).to_have_text(name)
    quiet(page)
    page.locator(".tokens").focus()
    page.keyboard.press("Escape")
    expect(page.locator("[data-token].chosen")).to_have_count(0)


def test_a_phone_branches_by_touch(visit: Open) -> None:
    page = visit(ADDRESS, **PHONE)
    quiet(page)
    page.locator("[data-token='14']").tap()
    expect(page.locator(".weights li").first).to_be_visible()
    page.locator(".runners button").first.tap()
    expect(page.locator("[data-token]")).to_have_count(PROMPT + 20)
    quiet(page)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    sizes = page.locator(".runners button").evaluate_all("nodes => nodes.map(n => n.getBoundingClientRect().height)")
    assert min(sizes) >= 32


def test_in_chinese(visit: Open) -> None:
    page = visit(ADDRESS, locale="zh-CN")
    quiet(page)
    expect(page.locator("nav a[aria-current]")).to_have_text("生成")
    expect(page.locator(".progress .hint")).to_have_text("已生成 20 个词元 · 已达到指定的词元数")
    page.locator("[data-token='12']").click()
    expect(page.locator("h2", has_text="关注了什么")).to_be_visible()
    expect(page.get_by_role("button", name="继续")).to_be_enabled()


def test_errors_of_the_server_are_shown(visit: Open) -> None:
    page = visit("language/")
    page.get_by_label("Prompt").first.fill("a" * 65)
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".said")).to_have_text(
        "text (65 tokens) must have at most 64 for a made-up language model. Send a shorter text."
    )
    page.get_by_label("Prompt").first.fill("a" * 60)
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".progress .hint")).to_have_text("5 tokens · the context of the model is full")
    expect(page.get_by_role("button", name="Continue")).to_be_disabled()


def test_the_maps_of_a_prompt_are_shown(visit: Open) -> None:
    page = visit(ADDRESS)
    quiet(page)
    page.get_by_role("button", name="All maps of the prompt").click()
    expect(page.locator("h1")).to_have_text("All layers and heads")
    expect(page.locator("nav a")).to_have_text(["Map", "Text", "Generate", "Explain"])
