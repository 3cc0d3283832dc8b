"""Memory that the C library keeps for the next time, where it would give it back to the system."""

from __future__ import annotations

import ctypes

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
    try:
        return bool(ctypes.CDLL(None).mallopt(ARENA_MAX, count))
    except (AttributeError, OSError):  # another C library
        return False


def release_freed() -> bool:
    """Have the C library return freed memory to the system; returns whether it returned any."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError):  # another C library
        return False


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
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    if mallopt(MMAP_THRESHOLD, most) and mallopt(TRIM_THRESHOLD, min(2 * most, 2**31 - 1)):
        _kept = most
    return _kept == most
