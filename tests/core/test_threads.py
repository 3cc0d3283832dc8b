"""Items run in threads: order, number of threads, modes and errors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.core.process import run_in_threads

LIMIT = 600.0
"""Seconds after which a test that hangs fails."""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2, "the number of threads was not given back"
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_two_at_once_with_one_thread_each() -> None:
    together = threading.Barrier(2, timeout=LIMIT)

    def run(item: int) -> tuple[int, int]:
        together.wait()  # passes where two are there at the same time, and breaks where they come one by one
        return item, torch.get_num_threads()

    assert run_in_threads(run, [3, 1, 2, 0]) == [(3, 1), (1, 1), (2, 1), (0, 1)]


@pytest.mark.usefixtures("two_threads")
def test_nested_contexts_restore_the_number_of_threads() -> None:
    assert run_in_threads(lambda x: run_in_threads(lambda y: x * y, [1, 2]), [1, 2]) == [[1, 2], [2, 4]]


@pytest.mark.usefixtures("two_threads")
def test_a_thread_with_a_mode_runs_all_items_itself() -> None:
    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def run(x: Tensor) -> tuple[int, int]:
        torch.sin(x)
        return threading.get_ident(), torch.get_num_threads()

    itself = {(threading.get_ident(), 1)}  # with one thread for each operation, as unwatched
    with Mode():
        assert set(run_in_threads(run, [torch.ones(1)] * 3)) == itself
    assert seen.count("sin") == 3
    with torch.autocast("cpu"):
        assert set(run_in_threads(run, [torch.ones(1)] * 3)) == itself


@pytest.mark.usefixtures("two_threads")
def test_a_failure_is_raised_and_the_rest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    dropped = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            dropped.set()
            super().shutdown(wait)

    def run(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise KeyError("broken")
        assert dropped.wait(LIMIT)

    monkeypatch.setattr("regard.core.process.ThreadPoolExecutor", Pool)
    with pytest.raises(KeyError, match="broken"):
        run_in_threads(run, list(range(1000)))
    assert len(begun) <= 3  # the first one, and what each thread had begun when it failed


def test_one_thread_and_no_work() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert run_in_threads(lambda x: threading.get_ident(), [1, 2]) == [threading.get_ident()] * 2
    torch.set_num_threads(before)
    assert run_in_threads(str, []) == []
