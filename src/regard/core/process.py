"""Process-wide settings: memory allocator, first vectorized call, worker threads.

**Allocator.** The C library can keep freed memory for the next allocation instead of returning it to the system.

**First vectorized call.** On x86, `torch.exp`, `log`, `tanh`, `sin`, `cos` and `erf` of float32 use a vector library
that selects its kernels on the first call. If two threads make that first call at the same time, one of them may get a
kernel with half the precision. In 92 of 1,200 fresh processes the first exponentials were off by 1.5e-4, in half of the
tensor and only once. `warm_up` makes the first call in a single thread, of any of these functions: 0 of 1,200.

**Worker threads.** A small operation gains little from a second thread, because the handover takes about as long as the
operation. Independent tasks scale with the number of threads.
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
"""Size in bytes of the largest block that is currently kept."""


def limit_arenas(count: int) -> bool:
    """Limit the C library to `count` memory arenas. Return whether it supports this.

    By default each thread has its own arena, and other threads cannot reuse memory freed there. A server whose threads
    draw large images in turn then holds several times the memory that one thread needs.
    """
    return _allocator("mallopt", ARENA_MAX, count)


def release_freed() -> bool:
    """Return freed memory to the system. Return whether any was released."""
    return _allocator("malloc_trim", 0)


def keep_freed(most: int = LARGEST) -> bool:
    """Let the C library keep freed blocks of up to `most` bytes, and twice as much in total. Return whether it does.

    Each training step, and each view of a model, frees its memory and allocates the same amount again. GNU's C library
    returns large blocks to the system in between. Each 4 KiB page then costs a page fault on its first write: a tenth
    of the time of a step on two cores. The setting applies to the whole process and can only grow.
    """
    global _kept
    if most <= _kept:
        return True
    trimmed = min(2 * most, 2**31 - 1)
    if _allocator("mallopt", MMAP_THRESHOLD, most) and _allocator("mallopt", TRIM_THRESHOLD, trimmed):
        _kept = most
    return _kept == most


def _allocator(function: str, *arguments: int) -> bool:
    """Call an allocator function of GNU's C library. Return False if it fails or the C library does not have it."""
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library named None
        return False


def warm_up() -> None:
    """Make the first vectorized call. Sixteen elements are too few to be split among threads."""
    torch.exp(torch.zeros(16))


Item = TypeVar("Item")
Result = TypeVar("Result")
_lock = threading.Lock()
_users, _before = 0, 1


def run_in_threads(run: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return `[run(item) for item in items]`, computed in as many threads as torch uses.

    Each operation then uses a single thread. All items run in the calling thread if a PyTorch mode or autocast is
    active, because other threads would not inherit them. Operations are single-threaded there too, so that results are
    bitwise identical. If one item fails, or Ctrl-C is pressed, items that have not started are cancelled.

    >>> run_in_threads(lambda x: x * x, [1, 2, 3])
    [1, 4, 9]
    """
    threads = min(torch.get_num_threads(), len(items))
    if threads < 2:
        return [run(item) for item in items]
    with single_threaded_operations():
        if _thread_has_modes():
            return [run(item) for item in items]
        pool = ThreadPoolExecutor(threads)
        try:
            return list(pool.map(run, items))
        finally:
            pool.shutdown(cancel_futures=True)


def _thread_has_modes() -> bool:
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return bool(modes) or torch.is_autocast_enabled("cpu")


@contextmanager
def single_threaded_operations() -> Iterator[None]:
    """Limit every operation to one thread. The previous number of threads returns when the last user exits."""
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
