"""Let a function whose memory is sampled by its parent wait for samples instead of a fixed time."""

from __future__ import annotations

import time
from pathlib import Path


def wait_for_samples(mark: str) -> None:
    """Return once a sample has been taken after this call; `mark` is the file of the fixture `sample_mark`.

    The first mark may stem from a sample that began before the call; the second cannot.
    """
    for _ in range(2):
        Path(mark).unlink(missing_ok=True)
        while not Path(mark).exists():
            time.sleep(0.001)
