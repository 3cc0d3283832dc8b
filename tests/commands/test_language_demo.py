"""The command `demo --language`, with a small model and a few steps."""

from __future__ import annotations

import itertools
import json
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.commands import language_demo
from regard.commands.demo_progress import ModelBar
from regard.commands.main import main
from regard.core import assets
from regard.server.target import Target
from regard.tasks.run_files import read_weights

STEPS = ["--steps", "4"]
RUN = "language-run/gpt"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sizes = replace(language_demo.SIZES, width=16, heads=2, hidden=24, layers=2)
    for name, value in (("SIZES", sizes), ("CONTEXT", 48), ("WRITTEN", 30)):
        monkeypatch.setattr(language_demo, name, value)
    yield


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(read_weights(folder / RUN))


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_it_trains_writes_and_shows_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--language", *STEPS, "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "step 4 · " in output and "nats per unseen character" in output
    written = output.partition("JULIET:")[2].partition("\nThe last 12 characters (rows)")[0]
    assert len(written) > 20
    drawn = output.partition("attends to the fewest:\n")[2].partition("\n\n")[0].splitlines()
    assert len(drawn) == 14 and drawn[-1].startswith("0 ") and "█" in "".join(drawn)  # keys, 12 queries, the scale
    config = json.loads((tmp_path / RUN / "config.json").read_text())
    assert config["recipe"] == "language" and config["training"]["steps"] == 4
    assert config["training"]["minutes"] is None  # no time limit


def test_the_commands_open_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened: list[Target] = []
    monkeypatch.setattr("regard.commands.view.serve", lambda target, *_: opened.append(target) or 0)
    assert main(["demo", "--language", *STEPS, "--out", "demo"]) == 0
    printed = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in printed if line.startswith("  regard ")]
    assert [words[1] for words in commands] == ["generate", "view", "explain"]
    for words in commands:
        if words[1] == "explain" and not (assets.FOLDER / "index.html").exists():
            words = words[: words.index("--out")]  # without the page, it prints an outline
        assert main(words[1:]) == 0, words
        assert words[1] == "view" or capsys.readouterr().out.strip()
    assert len(opened) == 1


def test_it_does_not_depend_on_the_clock(tmp_path: Path, set_clock: Callable[[Callable[[], float]], None]) -> None:
    """A machine that is a thousand times slower gives the same weights."""
    assert main(["demo", "--language", *STEPS, "--out", str(tmp_path / "fast")]) == 0
    clock = itertools.count(0, 1000)
    set_clock(lambda: float(next(clock)))
    assert main(["demo", "--language", *STEPS, "--out", str(tmp_path / "slow")]) == 0
    assert equal(weights(tmp_path / "fast"), weights(tmp_path / "slow"))


def test_an_interrupted_demo_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advance = ModelBar.advance

    def interrupt(bar: ModelBar, step: int, done: float, seconds: float, *, evaluation: float = 0.0) -> None:
        advance(bar, step, done, seconds, evaluation=evaluation)
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    assert main(["demo", "--language", *STEPS, "--out", str(tmp_path / "whole")]) == 0
    command = ["demo", "--language", *STEPS, "--out", str(tmp_path / "parts")]
    with monkeypatch.context() as patch:
        patch.setattr(ModelBar, "advance", interrupt)
        assert main(command) == 130
    stopped = capsys.readouterr()
    assert "stopped after step 2" in stopped.out and "Run the same command again to resume." in stopped.out
    assert "JULIET:" not in stopped.out.partition("stopped after step 2")[2] and "stopped" in stopped.err
    assert main(command) == 0
    records = (tmp_path / "parts" / RUN / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records if "evaluate" in line] == [1, 2, 3, 4]
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_finished_run_is_kept_and_another_one_replaced(tmp_path: Path) -> None:
    command = ["demo", "--language", *STEPS, "--out", str(tmp_path)]
    assert main(command) == 0
    first, stamp = weights(tmp_path), (tmp_path / RUN / "model.safetensors").stat().st_mtime_ns
    assert main(command) == 0
    assert (tmp_path / RUN / "model.safetensors").stat().st_mtime_ns == stamp
    assert main([*command, "--seed", "1"]) == 0
    assert not equal(weights(tmp_path), first)
    (tmp_path / RUN / "config.json").write_text("{")  # damaged
    assert main(command) == 0
    assert equal(weights(tmp_path), first)


def test_steps_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--language", "--steps", "0"]) == 1
    assert f"steps (0) must be at least 1; {language_demo.STEPS} are enough" in capsys.readouterr().err
