"""Independent pieces of work side by side, a thread each.

A small operation gains little from a second thread: handing it over takes about as long as it does. Pieces that know
nothing of each other gain all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_users, _before = 0, 1


def side_by_side(run: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """run(item) of each, in their order, in as many threads as torch has, one for each operation.

    Where somebody watches this thread (a mode of PyTorch), or it computes under autocast, all run in it, one after the
    other: other threads would know nothing of either. Each operation has one thread there, too, so that it rounds as
    it would unwatched. If one fails, or Ctrl-C is pressed, those not begun are dropped.

    >>> side_by_side(lambda x: x * x, [1, 2, 3])
    [1, 4, 9]
    """
    threads = min(torch.get_num_threads(), len(items))
    if threads < 2:
        return [run(item) for item in items]
    with _one_thread_each():
        if _watched():
            return [run(item) for item in items]
        pool = ThreadPoolExecutor(threads)
        try:
            return list(pool.map(run, items))
        finally:
            pool.shutdown(cancel_futures=True)


def _watched() -> bool:
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return bool(modes) or torch.is_autocast_enabled("cpu")


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Threads that begin now compute with one thread each. The number is torch's own again when the last has left."""
    global _users, _before
    with _lock:
        if not _users:
            _before = torch.get_num_threads()
            torch.set_num_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                torch.set_num_threads(_before)
