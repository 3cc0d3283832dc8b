"""The HTML report is one file with exactly the given data."""

import json
import re
from pathlib import Path

import pytest
import torch

from regard.pictures.html_report import Curve, Example, Page

WEIGHTS = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])


def data(text: str) -> dict:
    result = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert result
    return json.loads(result[1])


def page(**changes) -> Page:
    example = Example(["a", "b", " "], ["x", "y"], WEIGHTS, [("truth", "xy", True)])
    fields = {"title": "T", "lead": "L", "scores": [("98 %", "right")], "caption": "time", "examples": [example]}
    return Page(**{**fields, "curves": [Curve("additive", [(0.0, 0.0), (2.5, 0.5)])], **changes})


def test_the_page_contains_the_data(tmp_path: Path) -> None:
    path = page().write(tmp_path / "new" / "page.html")
    result = data(path.read_text(encoding="utf-8"))
    assert result["examples"] == [
        {
            "source": ["a", "b", " "],
            "target": ["x", "y"],
            "weights": WEIGHTS.tolist(),
            "others": [["truth", "xy", True]],
        }
    ]
    assert result["curves"] == [{"name": "additive", "points": [[0.0, 0.0], [2.5, 0.5]]}]
    assert (result["title"], result["lead"], result["scores"]) == ("T", "L", [["98 %", "right"]])


def test_the_page_loads_nothing() -> None:
    text = page().html().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|src=|<link|@import|url\(", text)


def test_tokens_are_never_markup() -> None:
    evil = "</script><script>alert(1)</script>"
    text = page(title=evil, examples=[Example([evil], ["@DATA@"], torch.ones(1, 1))]).html()
    assert evil not in text and text.count("<script") == 2
    assert data(text)["examples"][0]["source"] == [evil] and data(text)["examples"][0]["target"] == ["@DATA@"]


def test_nonfinite_weights_are_zero() -> None:
    result = data(page(examples=[Example(["a"], ["b"], torch.tensor([[float("nan")]]))]).html())
    assert result["examples"][0]["weights"] == [[0.0]]


def test_weights_must_match_the_tokens() -> None:
    with pytest.raises(ValueError, match=r"weights \(2, 3\) must have a row for each of 1 target tokens and a column"):
        page(examples=[Example(["a"], ["b"], WEIGHTS)]).html()
