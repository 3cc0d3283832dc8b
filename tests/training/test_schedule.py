"""The learning rate schedule compared with its formulas."""

from __future__ import annotations

import dataclasses
import math

import pytest

from regard.training import Training
from regard.training.optimizer import Schedule
from regard.training.recipes.recipe_choice import MODULES


@pytest.mark.parametrize("kind", ["cosine", "linear", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_warm_up_is_linear(kind: str, warmup: int) -> None:
    schedule = Schedule(kind, warmup, steps=100)
    for step in range(1, warmup + 1):
        assert schedule(step) == pytest.approx(step / warmup)
    assert max(schedule(step) for step in range(1, 101)) <= 1


def test_cosine_by_steps() -> None:
    schedule = Schedule("cosine", 10, steps=110, final=0.1)
    for step in range(10, 111):
        assert schedule(step) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * (step - 10) / 100)) / 2)
    assert schedule(110) == pytest.approx(0.1)
    assert schedule(500) == pytest.approx(0.1), "never up again"


def test_cosine_by_time_and_by_whichever_ends_first() -> None:
    by_time = Schedule("cosine", 10, seconds=60.0)
    assert by_time(10_000, 30.0) == pytest.approx(0.5)
    assert by_time(5, 30.0) == pytest.approx(0.25), "still warming up"
    assert by_time(10_000, 60.0) == pytest.approx(0.0)
    both = Schedule("cosine", 0, steps=100, seconds=60.0)
    assert both(75, 30.0) == pytest.approx((1 + math.cos(math.pi * 0.75)) / 2)
    assert both(25, 30.0) == pytest.approx(0.5)


def test_linear_by_steps() -> None:
    schedule = Schedule("linear", 10, steps=110, final=0.2)
    assert [schedule(step) for step in (5, 10, 60, 110, 500)] == pytest.approx([0.5, 1.0, 0.6, 0.2, 0.2])


def test_a_warm_up_as_a_fraction_of_the_run() -> None:
    by_steps = Schedule("linear", 0.1, steps=200)
    assert [by_steps(step) for step in (1, 10, 20, 110)] == pytest.approx([0.05, 0.5, 1.0, 0.5])
    by_time = Schedule("constant", 0.25, seconds=80.0)
    assert [by_time(1, seconds) for seconds in (0.0, 5.0, 20.0, 80.0)] == pytest.approx([0.0, 0.25, 1.0, 1.0])
    both = Schedule("constant", 0.1, steps=1000, seconds=100.0)
    assert both(10, 5.0) == pytest.approx(0.5) and both(80, 1.0) == pytest.approx(0.8)


def test_inverse_square_root() -> None:
    schedule = Schedule("inverse_sqrt", 16)
    assert [schedule(step) for step in (16, 64, 400)] == pytest.approx([1.0, 0.5, 0.2])
    assert Schedule("inverse_sqrt", 0)(4) == pytest.approx(0.5)


def test_inverse_square_root_decays_by_the_clock_if_only_time_limits_the_run() -> None:
    schedule = Schedule("inverse_sqrt", 0.1, seconds=100)
    assert [schedule(1, seconds) for seconds in (5, 10, 40, 90)] == pytest.approx([0.5, 1.0, 0.5, 1 / 3])
    both = Schedule("inverse_sqrt", 0.1, steps=1000, seconds=100)
    assert [both(400, 1.0), both(1, 40.0)] == pytest.approx([0.5, 0.5])  # whichever ends first


def test_constant() -> None:
    assert Schedule("constant", 4)(1000, 1e6) == 1.0


def test_a_schedule_from_settings() -> None:
    schedule = Schedule.of(Training(minutes=2.0, warmup=5, final_rate=0.2), steps=math.inf)
    assert schedule == Schedule("cosine", 5, math.inf, 120.0, 0.2)


@pytest.mark.parametrize("name,kind", [(name, kind) for name, module in MODULES.items() for kind in module.KINDS])
def test_by_default_short_runs_reach_the_learning_rate(name: str, kind: str) -> None:
    """Little data or a few minutes are enough: a warm-up of 500 steps never ended in a run of 270."""
    default = next(item for item in dataclasses.fields(MODULES[name].KINDS[kind]) if item.name == "training")
    training = default.default_factory()  # type: ignore[misc]  # all recipes have one
    by_steps = Schedule.of(dataclasses.replace(training, steps=60), 60)
    assert max(by_steps(step) for step in range(1, 61)) > 0.8
    by_time = Schedule.of(dataclasses.replace(training, minutes=1.0), 10_000)
    assert max(by_time(step, step) for step in range(1, 61)) > 0.8
