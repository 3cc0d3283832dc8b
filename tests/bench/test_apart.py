"""A contender in a process of its own: it runs there, answers with its tensor, and does not outlive us."""

import gc
import os
import signal

import pytest
import torch
from torch import Tensor

from bench._apart import Apart
from bench.harness import Case, Versus, measure
from bench.parity import Parity, ParityError


def child_process() -> object:
    return lambda: torch.tensor([os.getpid()])


def printing() -> object:
    def run() -> Tensor:
        print("this is no answer")
        return torch.tensor([7.0])

    return run


def failing(message: str) -> object:
    raise ValueError(message)


def test_it_runs_elsewhere_and_only_once_started() -> None:
    child = Apart("tests.bench.test_apart:child_process")
    first, second = child().fetch(), child().fetch()
    assert first.item() == second.item() != os.getpid()


def test_what_it_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert Apart("tests.bench.test_apart:printing")().fetch().tolist() == [7.0]
    assert "this is no answer" in capfd.readouterr().err


def test_a_child_that_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    child = Apart("tests.bench.test_apart:failing", "no such weights")
    with pytest.raises(RuntimeError, match=r"apart: .*:failing must run in its process; .* status 1"):
        child()
    assert "no such weights" in capfd.readouterr().err


def test_it_ends_with_its_parent_s_interest() -> None:
    child = Apart("tests.bench.test_apart:child_process")
    process = child()._child
    assert process is not None and process.returncode is None
    del child
    gc.collect()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("count", [3, 4])
def test_the_harness_times_it_and_sees_what_it_computed(count: int) -> None:
    def view(found: object) -> object:
        return found.fetch() if isinstance(found, Apart) else found

    case = Case(
        "numbers",
        "(3,)",
        {"ours": lambda: torch.arange(3.0), "apart": Apart("bench._apart:numbers", count, threads=1)},
        (Versus("ours", "apart"),),
        parity=Parity("apart", view=view),
    )
    if count == 3:
        assert measure(case, rounds=3, seconds=1e-3)[0].peer == "apart"
    else:
        with pytest.raises(ParityError, match="must have the shapes of apart"):
            measure(case, rounds=3, seconds=1e-3)
