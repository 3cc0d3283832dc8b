"""Resuming after real processes were killed, interrupted or terminated."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import kills
from regard.training import Silent, checkpoint, fit
from regard.training.signals import DEBOUNCE_SECONDS, Signals
from tests.training.processes import Command
from tests.training.test_loop import SHORT, lines, same_runs
from tests.training.toy import Settings, Slow

CONFIG = dataclasses.replace(SHORT, steps=40, accumulate=2, average="exponential", save_every=1)


def unbroken(folder: Path) -> Path:
    task = Slow(Settings(folder))
    fit(task, CONFIG, folder, recipe={"toy": {"dropout": 0.1}}, display=Silent())
    return folder


def wait(until: Callable[[], bool], limit: float = 300.0) -> None:
    end = time.monotonic() + limit
    while not until():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.005)


def saved(folder: Path) -> int:
    """Return the step of the newest state."""
    states = checkpoint.states(folder)
    return int(states[-1].name.removeprefix("state-")) if states else 0


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    """Every step writes a state, so that some kills happen during a write."""
    folder, moments = tmp_path / "broken", random.Random(3)
    for after in (3, 14, 25):
        left = CONFIG.accumulate * (CONFIG.steps - 2 - saved(folder))  # batches, so that it never finishes
        command = Command(folder, CONFIG, "--sleep", "0.01", "--stay", str(left))
        wait(lambda after=after: saved(folder) >= after)  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.05))
        command.send(signal.SIGKILL)
        assert command.end() == -signal.SIGKILL
    command = Command(folder, CONFIG)
    assert command.end() == 0, command.text()
    assert "resuming after step" in command.text() and "finished by steps after 40 steps" in command.text()
    assert same_runs(unbroken(tmp_path / "unbroken"), folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_prints_how_to_resume(tmp_path: Path, number: signal.Signals) -> None:
    config = dataclasses.replace(CONFIG, save_every=0, save_seconds=1000.0)
    command = Command(tmp_path, config, "--hold", "9")  # in the fifth step
    wait(lambda: "step 4 " in command.text())
    command.send(number)
    (tmp_path / "go").touch()
    assert command.end() == 130, command.text()
    (state,) = checkpoint.states(tmp_path)
    step = checkpoint.load(state)[0].step
    assert step == 5
    assert f"stopped after step {step}; saved: {state}. Run the same command again to resume." in command.text()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert lines(tmp_path)[0]["step"] == 4


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    command = Command(tmp_path, dataclasses.replace(CONFIG, evaluate_every=1000), "--stay", "0")
    wait(lambda: "training from step 0" in command.text())

    def ends() -> bool:
        if command.process.is_alive():
            command.send(signal.SIGINT)
        command.process.join(1.5 * DEBOUNCE_SECONDS)
        return command.process.exitcode is not None

    assert not ends(), "the first signal waits for the step"
    wait(ends)  # only a second signal can end this step
    assert command.process.exitcode != 0
    assert checkpoint.states(tmp_path) == []


def test_a_second_signal_within_the_debounce_time_is_ignored(set_clock: Callable[[Callable[[], float]], None]) -> None:
    """torchrun and a held key send more than one signal."""
    clock = iter([10.0, 10.0 + 0.9 * DEBOUNCE_SECONDS, 10.0 + 1.1 * DEBOUNCE_SECONDS])
    set_clock(lambda: next(clock))
    with Signals() as signals:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            assert signals.stop_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_preparation_and_training_may_be_killed_at_any_moment() -> None:
    """`python -m bench kills` does so forty times, for every recipe."""
    assert kills.campaign(3, recipes=("translate",), pairs=300) == 0
