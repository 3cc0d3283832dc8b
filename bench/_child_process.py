"""Run a contender in its own process, so that it is not affected by changes that ours makes to the process.

    parent                         child
    start ────────────────────►    setup: creates the inputs and returns the function to run
    call  ── "run" ───────────►    result = run()           the harness times the call until it reads "done"
          ◄────────── "done" ──    the result is kept until the next call
    fetch ── "fetch" ─────────►    sends the result as a tensor; not timed
          ◄── a file of NumPy ─

One message in each direction takes tens of microseconds, so use this only for calls that take milliseconds or more.
The child is killed when its parent object is garbage collected or the parent exits.
"""

import io
import json
import os
import struct
import subprocess
import sys
import weakref
from importlib import import_module
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bench.memory import search_path


class ChildProcess:
    """Call `package.module:function(*args)` once in a child process, and run the function it returns at each call.

    >>> child = ChildProcess("bench._child_process:numbers", 3)
    >>> child().fetch().tolist()
    [0.0, 1.0, 2.0]
    """

    def __init__(self, target: str, *args: object, threads: int | None = None) -> None:
        self._job = json.dumps({"target": target, "args": args, "threads": threads})
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> "ChildProcess":
        self._send(b"run")
        self._expect(b"done")
        return self

    def fetch(self) -> Tensor:
        """Return the tensor computed by the latest call."""
        self._send(b"fetch")
        (size,) = struct.unpack(">Q", self._read(8))
        return torch.from_numpy(np.load(io.BytesIO(self._read(size)), allow_pickle=False))

    def _send(self, message: bytes) -> None:
        if self._child is None:
            command = [sys.executable, "-c", "from bench._child_process import serve; serve()", self._job]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": search_path()}
            )
            weakref.finalize(self, _end, self._child)
            self._expect(b"ready")
        try:
            self._pipe("stdin").write(message + b"\n")
            self._pipe("stdin").flush()
        except BrokenPipeError:
            self._fail()

    def _expect(self, message: bytes) -> None:
        if self._pipe("stdout").readline().strip() != message:
            self._fail()

    def _read(self, size: int) -> bytes:
        content = self._pipe("stdout").read(size)
        if len(content) < size:
            self._fail()
        return content

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] = getattr(self._child, name)
        return pipe

    def _fail(self) -> None:
        assert self._child is not None
        raise RuntimeError(
            f"child process: {json.loads(self._job)['target']} must run in its own process; it exited with "
            f"status {self._child.wait()}. Its error message is above."
        )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:  # unsent data in the buffer when the child exited
            continue


def serve() -> None:
    """Run the loop of the child process. The job is its argument; commands arrive on standard input."""
    job = json.loads(sys.argv[1])
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # keep prints of the measured code out of the replies
    module, _, name = job["target"].partition(":")
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    run = getattr(import_module(module), name)(*job["args"])
    result: Any = None
    _write(out, b"ready\n")
    for message in sys.stdin.buffer:
        if message == b"run\n":
            result = None
            result = run()
            _write(out, b"done\n")
        else:
            content = io.BytesIO()
            np.save(content, result.detach().numpy(), allow_pickle=False)
            _write(out, struct.pack(">Q", len(content.getvalue())) + content.getvalue())


def _write(out: IO[bytes], content: bytes) -> None:
    out.write(content)
    out.flush()


def numbers(count: int) -> Any:
    """Return a contender for the doctest and the tests."""
    return lambda: torch.arange(float(count))
