"""Settings from a command line and from JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from regard.commands.main import main
from regard.core.option_parser import HelpTexts
from regard.core.setting_options import named, settings_from
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
        "--model.kind {gru,lstm} the cell (default: gru)",
        "peak learning rate, reached at the end of the warm-up (default: 0.001)",
        "compile the model with torch.compile (default: False)",
        "--data FILE where the text lies (required)",
    ):
        assert words in text


def test_help_shows_the_important_options_and_help_all_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    printed, texts = [], HelpTexts(("data", "steps"), {"--mode MODE": "9 %"}, "example:\n  x")
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parse(Recipe, [word], flat=True, texts=texts)
        printed.append(capsys.readouterr().out)
    assert "--steps N" in printed[0] and "--clip" not in printed[0] and "more" in printed[0]
    assert all("--mode MODE" in text and "9 %" in text and text.endswith("example:\n  x\n") for text in printed)
    assert "--clip X" in printed[1] and "Settings of the model:" in printed[1]


@dataclass(frozen=True)
class Renamed:
    """Settings with other names on the command line."""

    text: tuple[Path, ...] = field(metadata=named("train"))
    """The text."""
    width: int | None = None
    """The width."""
    size: Literal["large"] | int = 3
    """The size."""
    lower: bool = True
    """Lower case."""


def test_an_old_name_is_still_accepted() -> None:
    expected = Renamed((Path("a"), Path("b")), 4, "large", False)
    for name in ("--train", "--text"):
        words = [name, "a", "b", "--width", "4", "--size", "large", "--no-lower"]
        assert parse(Renamed, words, flat=True) == expected
        assert settings_from(Renamed, {name[2:]: ["a", "b"], "width": 4, "size": "large", "lower": False}) == expected
    assert parse(Renamed, ["--width", "None", "--size", "7"], expected).size == 7
    assert parse(Renamed, ["--width", "none"], expected).width is None
    assert settings_from(Renamed, {"train": "a"}).text == (Path("a"),)
    assert parse(Renamed, ["--train", "a"], values={"width": 8, "train": ["b"]}) == Renamed((Path("a"),), 8)


def test_underscores_are_accepted_in_options() -> None:
    assert parse(Training, ["--learning_rate=0.5", "--steps", "500"]).learning_rate == 0.5


def test_a_tuple_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"settings: betas \(\[0.9\]\) must be 2 values; got 1. Change it."):
        from_json(Training, '{"betas": [0.9]}')


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


def test_errors_of_nested_settings_are_reported_together() -> None:
    with pytest.raises(ValueError) as caught:
        parse(Recipe, ["--data", "d", "--model.width", "7", "--training.clip", "-1"])
    assert str(caught.value).splitlines() == [
        "model: width (7) must be even; got 7.",
        "training: clip (-1.0) must be 0 or more and finite; got -1.0. Try 1, or 0 for no clipping.",
    ]


def test_json_round_trip() -> None:
    recipe = Recipe(Path("a/b"), Model(2, "lstm"), Training(minutes=0.1, betas=(0.5, 0.25), average="last"))
    assert from_json(Recipe, to_json(recipe)) == recipe
    assert json.loads(to_json(recipe))["training"]["clip"] == 1.0, "defaults are spelled out"
    assert from_json(Recipe, '{"data": "x"}') == Recipe(Path("x"))


def test_json_errors_are_reported_together_with_their_keys() -> None:
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


def test_help_names_the_folder_to_start_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "translate", "--help"])
    assert "--from RUN " in (output := capsys.readouterr().out) and "(default: None)" not in output


def test_help_does_not_show_none_as_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Training, ["--help-all"])
    assert "(default: None)" not in (output := capsys.readouterr().out) and "(default: 0.001)" in output
