"""Every process collects the same tests: pytest-xdist refuses to run when two workers disagree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

SHIFTED_CLOCK = """
import sys, time
now = time.time
time.time = lambda: now() + {seconds}
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"]))
"""


def collect(seconds: int, **environment: str) -> subprocess.Popen[str]:
    """Start collecting with another clock and another environment."""
    return subprocess.Popen(
        [sys.executable, "-c", SHIFTED_CLOCK.format(seconds=seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        cwd=ROOT,
    )


def test_ids_do_not_depend_on_clock_hash_seed_time_zone_or_locale() -> None:
    processes = [
        collect(0, PYTHONHASHSEED="1", TZ="UTC", LC_ALL="C.UTF-8"),
        collect(100_003, PYTHONHASHSEED="2", TZ="Asia/Shanghai", LC_ALL="C"),
    ]
    first, second = ([line for line in p.communicate()[0].splitlines() if "::" in line] for p in processes)
    assert [p.returncode for p in processes] == [0, 0]
    assert len(first) > 1000
    assert [(a, b) for a, b in zip(first, second, strict=True) if a != b] == []
