"""Every process collects the same tests, and a test does not depend on those that ran before it.

pytest-xdist refuses to run when two workers collect different tests.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
import torch

import conftest

ROOT = Path(__file__).parent.parent

SHIFTED_CLOCK = """
import sys, time
now = time.time
time.time = lambda: now() + {seconds}
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def collect(seconds: int, *paths: str, **environment: str) -> subprocess.Popen[str]:
    """Start collecting `paths` with another clock and another environment."""
    return subprocess.Popen(
        [sys.executable, "-c", SHIFTED_CLOCK.format(seconds=seconds), *paths],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        cwd=ROOT,
    )


def ids(process: subprocess.Popen[str]) -> list[str]:
    """Return the ids of the tests in the order in which they would run."""
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return [line for line in output.splitlines() if "::" in line]


@pytest.mark.slow
def test_ids_do_not_depend_on_clock_hash_seed_time_zone_or_locale(request: pytest.FixtureRequest) -> None:
    """Compare the tests of this run with those that another process collects."""
    own = [item.nodeid for item in request.session.items]
    other = ids(collect(100_003, *request.config.args, PYTHONHASHSEED="2", TZ="Asia/Shanghai", LC_ALL="C"))
    deselected = set(other) - set(own)
    assert [name for name in other if name not in deselected] == own


class Selection:
    """Stands in for the configuration of a run with or without --quick."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.hook = self
        self.deselected: list[pytest.Item] = []

    def getoption(self, name: str) -> bool:
        assert name == "--quick"
        return self.quick

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.deselected += items


def select(items: list[pytest.Item], seed: str = "", quick: bool = False) -> list[str]:
    """Return the ids of the tests that a run with these settings would run, in its order."""
    selected, config = items.copy(), Selection(quick)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_TEST_ORDER", seed)
        conftest.pytest_collection_modifyitems(config, selected)  # type: ignore[arg-type]
    assert sorted(item.nodeid for item in selected + config.deselected) == sorted(item.nodeid for item in items)
    return [item.nodeid for item in selected]


def file_of(name: str) -> str:
    return name.partition("::")[0]


def test_a_seed_determines_the_random_order(request: pytest.FixtureRequest) -> None:
    """The seed determines the order of files and of tests in each file; the order of collection does not matter."""
    items = request.session.items
    seeds = ((1, ""), (1, "one"), (-1, "one"), (1, "two"))  # the session itself may have the order of a number
    plain, one, again, other = (select(items[::step], seed) for step, seed in seeds)
    assert plain == [item.nodeid for item in items] and one == again
    assert len(items) < 20 or len({tuple(order) for order in (plain, one, other)}) == 3
    assert len(list(itertools.groupby(one, key=file_of))) == len({file_of(name) for name in plain})


def test_quick_selects_the_first_functions_of_every_file(request: pytest.FixtureRequest) -> None:
    selected = select(request.session.items, quick=True)
    functions = [name.partition("[")[0] for name in selected]
    assert len(set(functions)) == len(functions)  # each with its first parameters
    assert max(Counter(map(file_of, functions)).values()) == 1
    slow = {file_of(item.nodeid) for item in request.session.items if item.get_closest_marker("slow")}
    assert {file_of(item.nodeid) for item in request.session.items} - set(map(file_of, functions)) <= slow


@pytest.fixture(scope="module")
def drawn_for_the_module() -> tuple[float, float]:
    return random.random(), torch.rand(()).item()


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_starts_with_the_same_random_state(turn: int, drawn_for_the_module: tuple[float, float]) -> None:
    assert random.random() == random.Random(0).random()
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(0))
    assert 0 < drawn_for_the_module[0] != random.Random(0).random()


def test_hypothesis_draws_the_same_examples_in_every_run_and_measures_no_time() -> None:
    used = hypothesis.settings()
    assert used.derandomize and used.deadline is None
    assert hypothesis.HealthCheck.too_slow in used.suppress_health_check
