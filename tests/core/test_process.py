"""Freed memory that the process keeps for the next allocation."""

import ctypes
import subprocess
import sys
import textwrap

import pytest

from regard.core import process
from regard.core.process import keep_freed

STEPS = """
    import ctypes, torch
    from regard.core.process import keep_freed

    class Mallinfo(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in
                    "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    torch.set_num_threads(1)
    kept = keep_freed() if {keep} else None
    sizes = [2**22] * 4 + [10 * 2**20]  # floats: 16 MiB each and 40 MiB, which the C library returns by default
    before = mallinfo()
    blocks = [torch.empty(size) for size in sizes]
    during = mallinfo()
    del blocks
    after = mallinfo()
    print(kept, during.hblkhd - before.hblkhd, during.arena - after.arena)
"""


def returned_bytes(keep: bool) -> int:
    """Bytes that a process returns to the system when it frees 104 MiB: mapped blocks, and the top of the heap."""
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STEPS.format(keep=keep))], capture_output=True, text=True, check=True
    ).stdout
    kept, mapped, trimmed = output.split()
    assert kept == str(keep or None)
    return int(mapped) + int(trimmed)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2") if sys.platform == "linux" else True, reason="needs glibc 2.33 or later"
)
def test_freed_memory_is_kept() -> None:
    assert returned_bytes(keep=False) > 100 * 2**20  # otherwise the test could not fail
    assert returned_bytes(keep=True) == 0


def test_a_smaller_limit_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
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
