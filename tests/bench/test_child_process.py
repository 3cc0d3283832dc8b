"""A contender in its own process runs there, returns its tensor, and ends with its parent object."""

import gc
import os
import signal

import pytest
import torch
from torch import Tensor

from bench._child_process import ChildProcess
from bench.harness import Case, Versus, measure
from bench.parity import Parity, ParityError


def child_process() -> object:
    return lambda: torch.tensor([os.getpid()])


def printing() -> object:
    def run() -> Tensor:
        print("not a reply")
        return torch.tensor([7.0])

    return run


def failing(message: str) -> object:
    raise ValueError(message)


def test_the_contender_runs_in_one_child_process() -> None:
    child = ChildProcess("tests.bench.test_child_process:child_process")
    first, second = child().fetch(), child().fetch()
    assert first.item() == second.item() != os.getpid()


def test_printed_output_is_not_a_reply(capfd: pytest.CaptureFixture[str]) -> None:
    assert ChildProcess("tests.bench.test_child_process:printing")().fetch().tolist() == [7.0]
    assert "not a reply" in capfd.readouterr().err


def test_an_error_in_the_child_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    child = ChildProcess("tests.bench.test_child_process:failing", "no such weights")
    with pytest.raises(RuntimeError, match=r"child process: .*:failing must run in its own process; .* status 1"):
        child()
    assert "no such weights" in capfd.readouterr().err


def test_the_child_is_killed_when_the_object_is_deleted() -> None:
    child = ChildProcess("tests.bench.test_child_process:child_process")
    process = child()._child
    assert process is not None and process.returncode is None
    del child
    gc.collect()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("count", [3, 4])
def test_the_harness_times_the_child_and_compares_its_output(count: int) -> None:
    def view(output: object) -> object:
        return output.fetch() if isinstance(output, ChildProcess) else output

    case = Case(
        "numbers",
        "(3,)",
        {"ours": lambda: torch.arange(3.0), "child": ChildProcess("bench._child_process:numbers", count, threads=1)},
        (Versus("ours", "child"),),
        parity=Parity("child", view=view),
    )
    if count == 3:
        assert measure(case, rounds=3, seconds=1e-3)[0].peer == "child"
    else:
        with pytest.raises(ParityError, match="must have the shapes of child"):
            measure(case, rounds=3, seconds=1e-3)
