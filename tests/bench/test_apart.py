"""A contender in its own process runs there, returns its tensor, and ends with its parent object."""

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
        print("not a reply")
        return torch.tensor([7.0])

    return run


def failing(message: str) -> object:
    raise ValueError(message)


def test_the_contender_runs_in_one_child_process() -> None:
    child = Apart("tests.bench.test_apart:child_process")
    first, second = child().fetch(), child().fetch()
    assert first.item() == second.item() != os.getpid()


def test_printed_output_is_not_a_reply(capfd: pytest.CaptureFixture[str]) -> None:
    assert Apart("tests.bench.test_apart:printing")().fetch().tolist() == [7.0]
    assert "not a reply" in capfd.readouterr().err


def test_an_error_in_the_child_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    child = Apart("tests.bench.test_apart:failing", "no such weights")
    with pytest.raises(RuntimeError, match=r"apart: .*:failing must run in its own process; .* status 1"):
        child()
    assert "no such weights" in capfd.readouterr().err


def test_the_child_is_killed_when_the_object_is_deleted() -> None:
    child = Apart("tests.bench.test_apart:child_process")
    process = child()._child
    assert process is not None and process.returncode is None
    del child
    gc.collect()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("count", [3, 4])
def test_the_harness_times_the_child_and_compares_its_output(count: int) -> None:
    def view(output: object) -> object:
        return output.fetch() if isinstance(output, Apart) else output

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
