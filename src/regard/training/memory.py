"""Memory that the C library keeps for the next step, where it would give it back to the system."""

from __future__ import annotations

import ctypes
import functools

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt."""
LARGEST = 2**30
"""Bytes of the largest piece that is kept: a larger one goes back as soon as it is free."""


@functools.cache
def keep_freed() -> bool:
    """Have the C library keep what is freed, from now on and in the whole process; returns whether it does.

    Every step of training frees what it took and takes as much again. GNU's C library gives large pieces back to the
    system in between, and then each 4 KiB costs a page fault when it is first written: a tenth of the time of a step on
    two cores. Memory grows to what the largest step needs, as it would anyway, and stays there until the process ends.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, 2 * LARGEST - 1))
