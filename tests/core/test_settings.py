"""Settings from a command line and from JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from regard.training import Training, from_json, parse, to_json


@dataclass(frozen=True)
class Model:
    """Settings of the model."""

    width: int = 64
    """Width of each vector."""
    kind: Literal["gru", "lstm"] = "gru"
    """The cell."""

    def errors(self) -> list[str]:
        return [f"model: width ({self.width}) must be even; got {self.width}."] if self.width % 2 else []


@dataclass(frozen=True)
class Recipe:
    """A recipe."""

    data: Path
    """Where the text lies."""
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=lambda: Training(epochs=3))


def test_nested_settings_from_a_command_line() -> None:
    words = "--data d/e --model.kind lstm --training.betas 0.8 0.9 --training.compile --training.epochs None"
    result = parse(Recipe, [*words.split(), "--training.steps", "900"])
    assert result == Recipe(Path("d/e"), Model(64, "lstm"), Training(steps=900, betas=(0.8, 0.9), compile=True))
    assert parse(Recipe, ["--data", "d", "--width", "8", "--steps", "500"], flat=True).training.steps == 500


def test_defaults_may_be_given() -> None:
    result = parse(Recipe, ["--model.width", "10"], Recipe(Path("x"), Model(8, "lstm")))
    assert result == Recipe(Path("x"), Model(10, "lstm"))


def test_the_help_is_the_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(Recipe, ["--help"], program="regard train")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert stopped.value.code == 0
    assert "usage: regard train" in text
    for words in (
        "--model.kind {gru,lstm} The cell. (default: gru)",
        "Peak learning rate, reached at the end of the warm-up. (default: 0.001)",
        "Compile the model with torch.compile. (default: False)",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data d --model.width many", "many"),
        ("--data d --model.kind tree", "tree"),
        ("--data d --training.stepps 3", "--training.steps"),
        ("", "--data"),
    ],
)
def test_a_wrong_command_line_names_the_option(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(Recipe, words.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_errors_of_all_nested_settings_come_together() -> None:
    with pytest.raises(ValueError) as caught:
        parse(Recipe, ["--data", "d", "--model.width", "7", "--training.clip", "-1"])
    assert str(caught.value).splitlines() == [
        "model: width (7) must be even; got 7.",
        "training: clip (-1.0) must be 0 or more and finite; got -1.0. Try 1, or 0 for no clipping.",
    ]


def test_json_gives_back_what_was_written() -> None:
    recipe = Recipe(Path("a/b"), Model(2, "lstm"), Training(minutes=0.1, betas=(0.5, 0.25), average="last"))
    assert from_json(Recipe, to_json(recipe)) == recipe
    assert json.loads(to_json(recipe))["training"]["clip"] == 1.0, "defaults are spelled out"
    assert from_json(Recipe, '{"data": "x"}') == Recipe(Path("x"))


def test_json_errors_come_together_and_name_the_keys() -> None:
    text = '{"dat": "x", "model": {"width": "wide", "kind": "tree", "zoom": 3}, "training": {"warm_up": 3, "clip": 1}}'
    with pytest.raises(ValueError) as caught:
        from_json(Recipe, text)
    assert sorted(str(caught.value).splitlines()) == [
        "settings: dat ('x') must be a known setting; got another name. Did you mean data?",
        "settings: data must be given; got nothing. Add it.",
        "settings: model.kind ('tree') must be one of gru, lstm; got str. Change it.",
        "settings: model.width ('wide') must be of type int; got str. Change it.",
        "settings: model.zoom (3) must be a known setting; got another name. Remove it.",
        "settings: training.warm_up (3) must be a known setting; got another name. Did you mean warmup?",
    ]
    with pytest.raises(ValueError, match=r"must be JSON; got text that is not JSON \(.*: line 2 column 8"):
        from_json(Recipe, '{\n"data":}')
    with pytest.raises(ValueError, match=r"settings: model \(3\) must be an object with settings"):
        from_json(Recipe, '{"data": "x", "model": 3}')
