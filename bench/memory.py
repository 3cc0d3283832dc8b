"""Peak memory of a function, measured in a fresh process.

    set-up        inputs are made, a tiny call loads libraries and starts thread pools
    baseline      resident memory (RSS), after garbage is collected and free heap is returned to the system
    run           the measured function; the kernel keeps the highest RSS
    above         = peak − baseline − what the function declares by returning it (outputs, gradients)

What is measured is physical memory, so a page counts when it is touched, and whatever library allocates it: Python,
torch, MKL or a kernel of ours. Four traps, and what is done about each:

- A freed block that the allocator keeps would be reused unseen (too little counted) or stay resident (too much).
  glibc raises the size from which it maps blocks up to 32 MiB as it sees them freed; the child pins it to 128 KiB, so
  that every larger block is returned when freed, and uses one arena. Smaller blocks are trimmed before the baseline.
- Code that runs for the first time is read in from its library and counts: hence the tiny call in the set-up.
- The high-water mark of a process covers its whole life: on Linux it is reset through /proc/self/clear_refs. Where
  that is impossible the parent samples RSS every few milliseconds, and can miss a shorter peak (`method` tells).
- What is returned is subtracted even if the peak came before it was all allocated: `above` may then err low, by at most
  the size of what is returned, which is why the inputs of the set-up must not be returned.
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
"""The accuracy claimed: RSS moves by this much without anybody's intent."""
INTERVAL = 0.002
"""Seconds between two samples, where there is no high-water mark to read."""


@dataclass(frozen=True)
class Peak:
    """Bytes, as seen by the child process."""

    baseline: int
    peak: int
    declared: int
    method: str
    """"high-water mark" or "sampled"."""

    @property
    def above(self) -> int:
        return max(0, self.peak - self.baseline - self.declared)


def peak(target: str, *args: object, threads: int | None = None, timeout: float = 1800.0) -> int:
    """Bytes that a function needs above its inputs and outputs; see `profile`."""
    return profile(target, *args, threads=threads, timeout=timeout).above


def profile(
    target: str,
    *args: object,
    threads: int | None = None,
    timeout: float = 1800.0,
    sample: bool = False,
    anonymous: bool = False,
) -> Peak:
    """Runs a set-up and the function it returns in a new Python process, and measures the function.

    `target` is the set-up: "package.module:function", or source code that defines a function `setup`. It is called with
    `args` (anything JSON can carry), makes the inputs, does a tiny call, and returns the function to measure, which
    takes nothing and returns what is not to be counted: tensors and arrays in any nesting, a number of bytes, or None.

    `anonymous` leaves out pages of mapped files, which the system takes back when it needs them (Linux; sampled).

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
            f"got neither. Name the function that makes the inputs and returns the one to measure."
        )
    try:
        job = json.dumps({"target": target, "args": args, "sample": sample or anonymous, "anonymous": anonymous})
    except TypeError as error:
        raise ValueError(
            f"peak: args ({args!r}) must be something JSON can carry; got {error}. Pass sizes; make tensors in setup."
        ) from error
    name = target if PATH.fullmatch(target) else "the code given"
    with tempfile.TemporaryDirectory() as folder:
        found = _run_child(name, Path(folder), job, _environment(threads), timeout, anonymous)
    if found.declared > found.peak - found.baseline + SLACK:
        raise ValueError(
            f"peak: what the function returns ({found.declared} bytes) must be allocated by it; got a peak only "
            f"{found.peak - found.baseline} bytes above the baseline. Do not return inputs."
        )
    return found


def resident(pid: int | None = None, anonymous: bool = False) -> int:
    """Bytes of a process (this one by default) in physical memory now, of no file if so asked; 0 when it has ended."""
    pid = pid or os.getpid()
    if anonymous:
        try:
            found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except (FileNotFoundError, ProcessLookupError) as error:
            if not Path("/proc/self/status").exists():
                raise ValueError(f"peak: anonymous memory must be told by /proc; got {error}. Linux has it.") from error
            return 0
        return int(found[1]) * 1024 if found else 0
    if Path("/proc/self/statm").exists():
        try:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (FileNotFoundError, ProcessLookupError):
            return 0
    asked = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True)
    return int(asked.stdout or 0) * 1024


def _run_child(
    name: str, folder: Path, job: str, environment: dict[str, str], timeout: float, anonymous: bool = False
) -> Peak:
    """Starts the child, samples it if it asks for that, and reads its answer."""
    (folder / "job").write_text(job)
    command = [sys.executable, "-c", "from bench.memory import _child; _child()", str(folder)]
    sampled, deadline = 0, time.monotonic() + timeout
    # Files, not pipes: the measured code may print as much as it likes.
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(command, env=environment, stdout=said, stderr=said) as child,
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
            f"peak: {name} must run to its end; got exit status {child.returncode} in the child process, which said:\n"
            + (folder / "said").read_text(errors="replace").strip()[-2000:]
        )
    found = Peak(**json.loads((folder / "answer").read_text()))
    return replace(found, peak=max(found.peak, sampled))


def search_path() -> str:
    """Where this process finds its modules, for a child that is to find the same."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def _environment(threads: int | None) -> dict[str, str]:
    """The child's: the parent's modules, a glibc that returns what is freed, and threads for OpenMP and MKL."""
    malloc = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
    # glibc stops mapping blocks after 65536 of them, and would then keep what is freed
    malloc["MALLOC_MMAP_MAX_"] = "1000000"
    count = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**os.environ, **malloc, "PYTHONPATH": search_path(), **count}


def _child() -> None:
    """What the child process runs; job and answer are files in the folder named on the command line."""
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
    found = Peak(baseline, highest, _size(kept, set()), "high-water mark" if marked else "sampled")
    (folder / "answer").write_text(json.dumps(asdict(found)))


def _size(kept: object, seen: set[int]) -> int:
    """Bytes of everything in a nested result; storage shared by several tensors counts once."""
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
            f"got {type(kept).__name__}. Return only what is not to be counted."
        )
    if where in seen:
        return 0
    seen.add(where)
    return int(size)


def _trim() -> None:
    """Returns free heap to the system, where the C library can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def _reset_mark() -> bool:
    """Sets the high-water mark to the present RSS; False where the system has no such thing."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _mark() <= resident() + SLACK


def _mark() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else sys.maxsize
