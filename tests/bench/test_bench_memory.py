"""Peak memory of functions with known allocations."""

import doctest
import re
import sys
from pathlib import Path

import pytest

from bench import memory
from bench.memory import MIB, Peak, peak, profile

TOLERANCE = 2 * MIB

KEPT = """
def setup(mib):
    inputs = b"x" * (16 << 20)               # part of the baseline
    return lambda: bytearray(b"x" * (mib << 20)) and None
"""
FREED = """
def setup(mib):
    def run():
        for _ in range(3):                   # one after another, never together
            scratch = b"x" * (mib << 20)
            del scratch
    return run
"""
UNTOUCHED = """
import mmap
def setup(mib):
    return lambda: mmap.mmap(-1, mib << 20).close()
"""
SMALL_BLOCKS = """
def setup(mib):
    size = 4063                              # one page with its header
    def run():
        blocks = [b"x" * size for _ in range(mib * 256)]
    return run
"""
FREE_HEAP = """
size = 100_000                               # below the mmap threshold: from the heap
def setup(mib):
    global pin
    many = [b"x" * size for _ in range(mib * 10)]
    pin = b"x" * size                        # at the top: the heap below it cannot shrink
    del many
    def run():
        many = [b"x" * size for _ in range(mib * 10)]
    return run
"""
GROWING_BLOCKS = """
def setup(mib):
    b"x" * (mib + 4 << 20)                   # once freed, glibc takes blocks of this size from the heap
    def run():
        first = b"x" * (mib << 20)
        pin = b"x" * 100_000
        del first
        second = b"x" * (mib + 2 << 20)      # too large for the freed block
    return run
"""
DECLARED = """
import numpy
def setup(mib):
    def run():
        output = numpy.ones(mib << 20, dtype=numpy.uint8)
        scratch = numpy.ones((2 * mib) << 20, dtype=numpy.uint8)
        return {"output": [output, output]}
    return run
"""
LINGERING = """
from tests.bench.sampling import wait_for_samples
def setup(mib, mark):
    def run():
        scratch = b"x" * (mib << 20)
        wait_for_samples(mark)
    return run
"""


@pytest.mark.parametrize(
    ("code", "mib", "expected"),
    [
        (FREED, 0, 0),
        (FREED, 1, 1),
        (FREED, 24, 24),
        (KEPT, 64, 128),
        (UNTOUCHED, 64, 0),
        (SMALL_BLOCKS, 48, 48),
        (FREE_HEAP, 48, 46),
        (GROWING_BLOCKS, 16, 18),
        (DECLARED, 32, 64),
    ],
    ids=["nothing", "one", "freed", "twice", "untouched", "small-blocks", "free-heap", "growing-blocks", "declared"],
)
def test_known_amounts(code: str, mib: int, expected: int) -> None:
    assert peak(code, mib) == pytest.approx(expected * MIB, abs=TOLERANCE)


def test_sampling_without_a_high_water_mark(sample_mark: str) -> None:
    result = profile(LINGERING, 48, sample_mark, sample=True)
    assert result.method == "sampled"
    assert result.above == pytest.approx(48 * MIB, abs=TOLERANCE)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/clear_refs exists only on Linux")
def test_linux_reads_the_high_water_mark() -> None:
    assert profile(FREED, 1).method == "high-water mark"


def test_torch_gradients_are_declared_and_scratch_is_counted() -> None:
    """y = (2x)², from 16 MiB: 2x is kept for the backward pass. All else is output, gradient or temporary."""
    code = """
import torch
def setup(count):
    def call(x, upstream):
        y = (2 * x) ** 2
        return y, y.view(-1), torch.autograd.grad(y, x, upstream)
    def inputs(n):
        return torch.ones(n, requires_grad=True), torch.ones(n)
    call(*inputs(1 << 16))
    whole = inputs(count)
    return lambda: call(*whole)
"""
    result = profile(code, 4 << 20, threads=2)
    assert result.declared == 2 * 16 * MIB
    # y, 2x, and in the backward pass 2·(2x)·upstream with one temporary: at most five blocks, two of them declared
    assert 16 * MIB - TOLERANCE <= result.above <= 3 * 16 * MIB + 2 * TOLERANCE


def test_a_path_names_a_function_of_the_parents_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "allocations.py").write_text(FREED)
    monkeypatch.syspath_prepend(tmp_path)
    assert peak("allocations:setup", 8) == pytest.approx(8 * MIB, abs=TOLERANCE)


def test_threads_reach_the_child() -> None:
    code = "import os\ndef setup():\n    return lambda: int(os.environ['OMP_NUM_THREADS'])"
    assert profile(code, threads=3).declared == 3


def test_above_is_never_negative() -> None:
    assert Peak(baseline=10, peak=15, declared=7, method="sampled").above == 0


def test_printing_does_not_disturb_the_measurement() -> None:
    assert peak("def setup():\n    print('x' * 200_000)\n    return lambda: print('}')") < TOLERANCE


@pytest.mark.parametrize(
    ("target", "args", "error", "message"),
    [
        ("nonsense", (), ValueError, "peak: target ('nonsense') must be 'package.module:function' or code that"),
        (
            FREED,
            (object,),
            ValueError,
            "peak: args ((<class 'object'>,)) must be JSON values; got Object of",
        ),
        ("bench.memory:absent", (), RuntimeError, "peak: bench.memory:absent must run to its end; got exit status 1"),
        ("def setup():\n    return lambda: 1 / 0", (), RuntimeError, "ZeroDivisionError: division by zero"),
        (
            "def setup():\n    return lambda: 'text'",
            (),
            RuntimeError,
            "peak: the function's result (str) must be tensors",
        ),
        (
            "def setup():\n    return lambda: 64 << 20",
            (),
            ValueError,
            f"peak: the result of the function ({64 * MIB} bytes) must be allocated by it; got a peak only",
        ),
    ],
)
def test_errors_contain_the_values(target: str, args: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        peak(target, *args)


def test_timeout_ends_the_child() -> None:
    with pytest.raises(TimeoutError, match=re.escape("the source code must end within timeout (0.3 s)")):
        peak("import threading\ndef setup():\n    threading.Event().wait()", timeout=0.3)


def test_docstring_examples() -> None:
    assert doctest.testmod(memory).failed == 0
