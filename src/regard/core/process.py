"""Memory that the C library keeps for the next time, where it would give it back to the system.

PyTorch's elementwise functions at full precision from the first call on.

On x86 `torch.exp`, `log`, `tanh`, `sin`, `cos` and `erf` of float32 come from a vector library that looks for its
kernels when it is first called. Where two threads make that first call at the same moment, one of them can be given a
kernel of half the digits: in 92 of 1,200 fresh processes the first exponentials were off by 1.5e-4, half of the tensor
and that once. A first call by one thread alone, of whichever of these functions, settles it: 0 of 1,200.

Independent pieces of work side by side, a thread each.

A small operation gains little from a second thread: handing it over takes about as long as it does. Pieces that know
nothing of each other gain all of it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

MMAP_THRESHOLD, TRIM_THRESHOLD, ARENA_MAX = -3, -1, -8
"""M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX of mallopt."""
LARGEST = 2**30
_kept = 0
"""Bytes of the largest piece that is kept so far."""


def limit_arenas(count: int) -> bool:
    """Have the C library serve all threads from `count` arenas; returns whether it does.

    By default each thread gets an arena of its own, and memory freed in one is not used by the others: a server whose
    threads draw large pictures in turn keeps several times what one of them needs.
    """
    return _allocator("mallopt", ARENA_MAX, count)


def release_freed() -> bool:
    """Have the C library return freed memory to the system; returns whether it returned any."""
    return _allocator("malloc_trim", 0)


def keep_freed(most: int = LARGEST) -> bool:
    """Have the C library keep freed pieces of up to `most` bytes, twice as much in all, in the whole process; returns
    whether it does.

    Every step of training, and every look at a model, frees what it took and takes as much again. GNU's C library gives
    large pieces back to the system in between, and then each 4 KiB costs a page fault when it is first written: a tenth
    of the time of a step on two cores. What was asked for once stays: less is not asked for after more.
    """
    global _kept
    if most <= _kept:
        return True
    trimmed = min(2 * most, 2**31 - 1)
    if _allocator("mallopt", MMAP_THRESHOLD, most) and _allocator("mallopt", TRIM_THRESHOLD, trimmed):
        _kept = most
    return _kept == most


def _allocator(function: str, *arguments: int) -> bool:
    """Call a function of GNU's C library that reports success; another C library does not have it."""
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except (AttributeError, OSError):
        return False


def settle() -> None:
    """Make the first call; sixteen numbers, so that no other thread takes part."""
    torch.exp(torch.zeros(16))


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
    with one_thread_each():
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
def one_thread_each() -> Iterator[None]:
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
