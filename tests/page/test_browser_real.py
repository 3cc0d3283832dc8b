"""The page with the real server, for a target of each kind: it shows the attention of the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.lens.head_profile import MEASURES, profile
from regard.server.open_target import open_target
from regard.server.target import Target
from regard.server.work_queue import Task
from tests.page import runs
from tests.page.browser import at, expect, middle, number, quiet, read_out, until

pytestmark = [
    pytest.mark.xdist_group("browser"),  # one browser, one server, one process
    pytest.mark.usefixtures("no_drawing"),
]

SENTENCE = "the cat sees a dog"


def row(target: Target, map: int, head: int | str, query: int) -> torch.Tensor:
    return target.snapshot.layers[map].head(str(head)).row(query, Task())


def test_a_translator_translates_and_shows_every_map_behind_it(real: Any, tmp_path: Path) -> None:
    target: Any = open_target(runs.translator(tmp_path))
    page = real(target)()
    page.locator("textarea").fill(SENTENCE)
    page.keyboard.press("Enter")
    translator = target.translator
    (result,) = translator.translate([SENTENCE], size=5, n_best=5, longest=256)
    expect(page.locator(".written")).to_have_text([one.text or "The model wrote nothing." for one in result])
    page.locator(".hypothesis").nth(1).click()
    expect(page.locator(".hypothesis input").nth(1)).to_be_checked()
    second = result[1]
    (map,), (aligned,) = translator.look([second]), translator.align([second])
    lines = page.locator(".sentences p")
    expect(lines.nth(0).locator(".word")).to_have_text(second.source.split())
    lines.nth(0).locator(".word").first.hover()
    linked = [second.text.split()[written] for read, written in sorted(aligned.links) if read == 0]
    expect(lines.nth(1).locator(".linked")).to_have_text(linked)
    page.locator(".matrix canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    weight = float(map.dense().mean(0)[0, 1])
    expect(page.locator(".told")).to_have_text(re.compile(rf" ← .+: {weight:.3f}$"))
    page.get_by_role("button", name="Show the maps of the best").click()
    at(page, "map")
    expect(page.locator(".thumbnail.there")).to_have_count(4 * 2)
    expect(page.locator("header .brand")).to_contain_text(SENTENCE)
    page.get_by_role("link", name="Text", exact=True).click()
    page.locator("[data-token='1']").first.click()
    at(page, r"token=1\b")
    best = float(row(target, 0, 0, 1).max())
    expect(page.locator(".weights .number").first).to_have_text(f"{best:.3f}")


def test_a_reload_shows_the_text_of_the_address_though_another_tab_ran_another_one(real: Any, tmp_path: Path) -> None:
    open_page = real(open_target(runs.translator(tmp_path)))
    for text in (SENTENCE, "a dog sees the cat"):
        page = open_page()
        page.locator("textarea").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator("header .brand")).to_contain_text(text)
        if text == SENTENCE:
            first = page
    first.get_by_role("link", name="Text", exact=True).click()
    first.reload()
    quiet(first)
    expect(first.locator("header .brand")).to_contain_text(SENTENCE)
    expect(first.locator("main")).to_contain_text("sees")


def test_an_image_under_patch_rollout_and_another_head(real: Any, tmp_path: Path) -> None:
    folder, image = runs.image_classifier(tmp_path)
    target = open_target(folder, image=image)
    page = real(target)("#image?map=1&head=0")
    response, overlay = page.locator(".framed .hint"), page.locator(".picture .overlay")
    assert overlay.evaluate("c => [c.height, c.width]") == [2, 3]
    until(page, lambda: page.locator(".picture img").evaluate("i => i.naturalWidth") == 12, "the picture itself")
    small = page.locator(".small").first.bounding_box()
    assert abs(small["width"] / small["height"] - 12 / 8) < 0.01
    box = page.locator(".picture").bounding_box()
    page.locator(".picture").click(position={"x": box["width"] / 2, "y": 0.75 * box["height"]})
    at(page, r"patch=4\b")  # in the second row, of the second column
    weights = row(target, 1, 0, 1 + 4)
    expect(response).to_have_text(f"Patch in row 2, column 2: weight {float(weights[1 + 4]):.3f}")
    page.locator(".picture").focus()
    page.keyboard.press("ArrowUp")
    at(page, r"patch=1\b")
    expect(response).to_have_text(f"Patch in row 1, column 2: weight {float(row(target, 1, 0, 2)[2]):.3f}")
    page.get_by_label("Head 1").click()
    at(page, "head=1")
    expect(response).to_have_text(f"Patch in row 1, column 2: weight {float(row(target, 1, 1, 2)[2]):.3f}")
    page.get_by_text("rollout", exact=True).click()
    at(page, "overlay=rollout")
    quiet(page)
    expect(page.locator(".status")).not_to_have_class(re.compile("wrong"))


def test_a_text_classifier_runs_two_texts(real: Any, tmp_path: Path) -> None:
    target = open_target(runs.text_classifier(tmp_path), "the film was truly fine")
    tokens = target.snapshot.layers[0].key_tokens
    assert tokens is not None and tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    page = real(target)("#text?map=1&head=1")
    expect(page.locator("header .brand")).to_contain_text(re.compile(r"run: (good|bad) \([01]\.\d\d\): the film was"))
    expect(page.locator("[data-token]")).to_have_count(len(tokens))
    page.locator("[data-token='2']").click()
    at(page, r"token=2\b")
    weights = row(target, 1, 1, 2)
    shade = "node => Number(node.style.getPropertyValue('--w'))"
    best = page.locator(f"[data-token='{int(weights.argmax())}']")
    until(page, lambda: best.evaluate(shade) == 1, "the strongest in the strongest shade")
    expect(page.locator(".weights .number").first).to_have_text(f"{float(weights.max()):.3f}")
    page.get_by_text("Another text").click()
    page.locator("dialog textarea").fill("a film")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("header .brand")).to_contain_text(": a film")
    expect(page.locator("dialog")).to_have_count(0)
    another = target.snapshot.layers[0].key_tokens
    assert another is not None and len(another) != len(tokens)
    expect(page.locator("[data-token]")).to_have_count(len(another))


def test_a_capture_from_the_grid_to_a_cell(real: Any, tmp_path: Path) -> None:
    path = runs.capture(tmp_path)
    page = real(open_target(path, batch=1))()
    seen = regard.load_capture(path)
    expect(page.locator(".thumbnail.there")).to_have_count(4)
    page.get_by_label("layers.1.self_attn, head 1").click()
    at(page, r"map=1&head=1")
    quiet(page)
    page.mouse.move(*middle(page))
    query, key, weight, rank = read_out(page)
    i, j = int(query.split()[-1]), int(key.split()[-1])
    weights = seen[1][1, 1, i]
    assert query.startswith(f"“{'regards'[i]}”") and key.startswith(f"“{'regards'[j]}”")
    assert float(weight) == pytest.approx(float(weights[j]), rel=0.06, abs=6e-4)
    assert rank == f"{int((weights > weights[j]).sum()) + 1} of 7"
    page.mouse.click(*middle(page))
    best = seen[1][1, 1, number(page, "token")].topk(7).indices.tolist()
    expect(page.locator(".weights .token")).to_have_text([f"“{'regards'[key]}”" for key in best])
    figures = dict(zip(MEASURES, profile(seen[1], batch=1).values[0, 1].tolist(), strict=True))
    card = page.locator(".card", has_text="This head")
    expect(card.locator("dd").nth(0)).to_have_text(f"{figures['entropy']:.2f}")
    expect(card.locator("dd").nth(1)).to_have_text(f"{figures['distance']:.1f}")
    expect(card.locator("dd").nth(4)).to_have_text(f"{100 * figures['same']:.1f} %")
