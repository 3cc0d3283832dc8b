"""Counts the memory that a function allocates. The result does not depend on the machine or on timing."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_allocated(run: Callable[[], object]) -> int:
    """Return the most bytes that tensors allocated by `run` hold at one time, in forward and backward passes.

    Working memory inside the native kernels is not counted.

    >>> import torch
    >>> x = torch.ones(1000)
    >>> peak_allocated(lambda: (x + 1) * 2) // 4000
    2
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # negative when memory is freed
        peak = max(peak, held)
    return peak
