"""Memory that is kept: freed and taken again, it costs no page fault."""

import subprocess
import sys
import textwrap

import pytest

from regard.core import process
from regard.core.process import keep_freed

STEPS = """
    import resource, torch
    from regard.core.process import keep_freed
    torch.set_num_threads(1)
    kept = keep_freed() if {keep} else None
    def faults(count):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            x = [torch.ones(2 ** 22) for _ in range(4)]  # 16 MiB each: the C library would give them back
            x += [torch.ones(10 * 2 ** 20)]  # 40 MiB: beyond what it ever keeps of itself
            del x
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    faults(3)
    print(kept, faults(5))
"""


def measured(keep: bool) -> tuple[str, int]:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STEPS.format(keep=keep))], capture_output=True, text=True, check=True
    )
    kept, faults = found.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="pieces are kept in GNU's C library")
def test_what_is_freed_is_used_again() -> None:
    kept, faults = measured(keep=True)
    if kept == "False":
        pytest.skip("another C library")
    assert faults < 500
    assert measured(keep=False)[1] > 20 * 500  # or the test would not see it


def test_less_is_not_asked_for_after_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        @staticmethod
        def mallopt(what: int, value: int) -> int:
            asked.append((what, value))
            return 1

    monkeypatch.setattr(process, "_kept", 0)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: Library)
    assert keep_freed(1000) and keep_freed(10) and keep_freed(2**31 - 1)
    assert asked == [(-3, 1000), (-1, 2000), (-3, 2**31 - 1), (-1, 2**31 - 1)]
    monkeypatch.setattr(process, "_kept", 0)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: object())
    assert not keep_freed(1000)
