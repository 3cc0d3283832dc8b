"""Peak memory of a function, measured in a fresh process.

        setup         creates the inputs; a tiny call loads libraries and starts thread pools
        baseline      resident memory (RSS), after garbage collection and after trimming the heap
        run           the measured function; the kernel records the highest RSS
        above         = peak − baseline − size of what the function returns (outputs, gradients)

This measures physical memory: a page counts once it is touched, no matter which library allocates it (Python, torch,
MKL or our kernels). Four pitfalls and their solutions:

- If the allocator kept a freed block, its reuse would be invisible (too little counted), or it would stay resident (too
  much). glibc raises its mmap threshold up to 32 MiB as blocks are freed. The child process fixes it at 128 KiB, so
  that every larger block is returned when freed, and uses one arena. Smaller blocks are trimmed before the baseline.
- Code pages are loaded from a library when they first run, and count. Hence the tiny call in the setup.
- The high-water mark of a process covers its whole life. On Linux it is reset through /proc/self/clear_refs. Elsewhere
  the parent samples RSS every few milliseconds and can miss a shorter peak (`method` says which was used).
- The size of the returned objects is subtracted even if the peak occurred before they were allocated. `above` may then
  be too low by at most that size. Therefore inputs created in the setup must not be returned.
"""

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

MIB = 1 << 20
PATH = re.compile(r"[\w.]+:\w+")
SLACK = 4 * MIB
"""Accuracy of the measurement: RSS fluctuates by about this much."""
INTERVAL = 0.002
"""Seconds between two samples if there is no high-water mark."""


@dataclass(frozen=True)
class Peak:
    """Memory of the child process in bytes."""

    baseline: int
    peak: int
    declared: int
    method: str
    """"high-water mark" or "sampled"."""

    @property
    def above(self) -> int:
        return max(0, self.peak - self.baseline - self.declared)


def peak(target: str, *args: object, threads: int | None = None, timeout: float = 1800.0) -> int:
    """Return the bytes that a function needs in addition to its inputs and outputs. See `profile`."""
    return profile(target, *args, threads=threads, timeout=timeout).above


def profile(
    target: str,
    *args: object,
    threads: int | None = None,
    timeout: float = 1800.0,
    sample: bool = False,
    anonymous: bool = False,
) -> Peak:
    """Run a setup function in a new Python process and measure the function that it returns.

    `target` is the setup function: "package.module:function", or source code that defines a function `setup`. It is
    called with `args` (JSON values). It creates the inputs, makes a tiny call, and returns the function to measure,
    which takes no arguments. The measured function returns objects that are not counted: nested tensors and arrays, a
    number of bytes, or None.

    `anonymous` excludes pages of mapped files, which the system can reclaim (Linux only; sampled).

    >>> code = '''
    ... def setup(mib):
    ...     def run():
    ...         scratch = b"x" * (mib << 20)
    ...     return run
    ... '''
    >>> round(peak(code, 64) / MIB / 64)
    1
    """
    if not PATH.fullmatch(target) and "def setup(" not in target:
        raise ValueError(
            f"peak: target ({target!r}) must be 'package.module:function' or code that defines setup(…); "
            f"got neither. Name the function that creates the inputs and returns the one to measure."
        )
    try:
        job = json.dumps({"target": target, "args": args, "sample": sample or anonymous, "anonymous": anonymous})
    except TypeError as error:
        raise ValueError(
            f"peak: args ({args!r}) must be JSON values; got {error}. Pass sizes and create tensors in setup."
        ) from error
    name = target if PATH.fullmatch(target) else "the source code"
    with tempfile.TemporaryDirectory() as folder:
        result = _run_child(name, Path(folder), job, _environment(threads), timeout, anonymous)
    if result.declared > result.peak - result.baseline + SLACK:
        raise ValueError(
            f"peak: the result of the function ({result.declared} bytes) must be allocated by it; got a peak only "
            f"{result.peak - result.baseline} bytes above the baseline. Do not return inputs."
        )
    return result


def resident(pid: int | None = None, anonymous: bool = False) -> int:
    """Return the resident bytes of a process (default: this one), or 0 if it has ended.

    `anonymous` excludes pages of mapped files.
    """
    pid = pid or os.getpid()
    if anonymous:
        try:
            match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except (FileNotFoundError, ProcessLookupError) as error:
            if not Path("/proc/self/status").exists():
                raise ValueError(f"peak: anonymous memory needs /proc; got {error}. Use Linux.") from error
            return 0
        return int(match[1]) * 1024 if match else 0
    if Path("/proc/self/statm").exists():
        try:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (FileNotFoundError, ProcessLookupError):
            return 0
    process = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True)
    return int(process.stdout or 0) * 1024


def _run_child(
    name: str, folder: Path, job: str, environment: dict[str, str], timeout: float, anonymous: bool = False
) -> Peak:
    """Start the child, sample it if it asks for sampling, and read its answer."""
    (folder / "job").write_text(job)
    command = [sys.executable, "-c", "from bench.memory import _child; _child()", str(folder)]
    sampled, deadline = 0, time.monotonic() + timeout
    # Use a file instead of a pipe, which the measured code could fill.
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as child,
    ):
        try:
            while child.poll() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"peak: {name} must end within timeout ({timeout} s); got more. Raise timeout.")
                if (folder / "sample-me").exists():
                    sampled = max(sampled, resident(child.pid, anonymous))
                time.sleep(INTERVAL)
        finally:
            child.kill()
    if child.returncode != 0:
        raise RuntimeError(
            f"peak: {name} must run to its end; got exit status {child.returncode} in the child process. Its output:\n"
            + (folder / "output").read_text(errors="replace").strip()[-2000:]
        )
    result = Peak(**json.loads((folder / "answer").read_text()))
    return replace(result, peak=max(result.peak, sampled))


def search_path() -> str:
    """Return this process's module search path, for child processes."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def _environment(threads: int | None) -> dict[str, str]:
    """Return the child's environment: same modules, a glibc that returns freed memory, numbers of threads."""
    malloc = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
    # glibc stops mapping blocks after 65536 of them, and would then keep freed memory
    malloc["MALLOC_MMAP_MAX_"] = "1000000"
    count = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**os.environ, **malloc, "PYTHONPATH": search_path(), **count}


def _child() -> None:
    """Run the child process. Job and answer are files in the folder named on the command line."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job").read_text())
    if PATH.fullmatch(job["target"]):
        module, _, name = job["target"].partition(":")
        setup = getattr(import_module(module), name)
    else:
        names: dict[str, Any] = {"__name__": "measured"}
        exec(compile(job["target"], "<peak>", "exec"), names)
        setup = names["setup"]
    run = setup(*job["args"])
    gc.collect()
    _trim()
    marked = not job["sample"] and _reset_mark()
    baseline = resident(anonymous=job["anonymous"])
    if not marked:
        (folder / "sample-me").touch()
    kept = run()
    highest = max(_mark() if marked else resident(anonymous=job["anonymous"]), baseline)
    result = Peak(baseline, highest, _size(kept, set()), "high-water mark" if marked else "sampled")
    (folder / "answer").write_text(json.dumps(asdict(result)))


def _size(kept: object, seen: set[int]) -> int:
    """Return the bytes of a nested result. Storage shared by several tensors counts once."""
    if kept is None:
        return 0
    if isinstance(kept, int):
        return kept
    if isinstance(kept, dict):
        kept = list(kept.values())
    if isinstance(kept, tuple | list):
        return sum(_size(part, seen) for part in kept)
    if hasattr(kept, "untyped_storage"):
        storage = kept.untyped_storage()
        where, size = storage.data_ptr(), storage.nbytes()
    elif hasattr(kept, "nbytes"):
        where, size = id(kept), kept.nbytes
    else:
        raise TypeError(
            f"peak: the function's result ({type(kept).__name__}) must be tensors, arrays, a number of bytes or None; "
            f"got {type(kept).__name__}. Return only objects that must not be counted."
        )
    if where in seen:
        return 0
    seen.add(where)
    return int(size)


def _trim() -> None:
    """Return free heap to the system if the C library supports it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def _reset_mark() -> bool:
    """Reset the high-water mark to the current RSS. Return False if the system does not support it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _mark() <= resident() + SLACK


def _mark() -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else sys.maxsize
