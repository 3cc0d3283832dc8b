"""A contender in a process of its own, for one that what ours does to a process would change.

    parent                         child
    start ────────────────────►    set-up: makes the inputs, returns the function to run
    call  ── "run" ───────────►    result = run()           the clock of the harness runs until "done" is read
          ◄────────── "done" ──    and the result is held until the next call
    fetch ── "fetch" ─────────►    for a look at it: its tensor, outside the clock
          ◄── a file of NumPy ─

A word each way takes tens of microseconds: this is for calls of milliseconds and more. The child ends with its parent.
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


class Apart:
    """Calls `package.module:function(*args)` once in a child, and what that returns at every call.

    >>> child = Apart("bench._apart:numbers", 3)
    >>> child().fetch().tolist()
    [0.0, 1.0, 2.0]
    """

    def __init__(self, target: str, *args: object, threads: int | None = None) -> None:
        self._job = json.dumps({"target": target, "args": args, "threads": threads})
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> "Apart":
        self._say(b"run")
        self._hear(b"done")
        return self

    def fetch(self) -> Tensor:
        """The tensor of the latest call."""
        self._say(b"fetch")
        (size,) = struct.unpack(">Q", self._read(8))
        return torch.from_numpy(np.load(io.BytesIO(self._read(size)), allow_pickle=False))

    def _say(self, word: bytes) -> None:
        if self._child is None:
            command = [sys.executable, "-c", "from bench._apart import serve; serve()", self._job]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": search_path()}
            )
            weakref.finalize(self, _end, self._child)
            self._hear(b"ready")
        try:
            self._pipe("stdin").write(word + b"\n")
            self._pipe("stdin").flush()
        except BrokenPipeError:
            self._fail()

    def _hear(self, word: bytes) -> None:
        if self._pipe("stdout").readline().strip() != word:
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
            f"apart: {json.loads(self._job)['target']} must run in its process; it ended with status "
            f"{self._child.wait()}, and said why above."
        )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:  # a word was under way when it ended
            continue


def serve() -> None:
    """What the child runs: the job is its argument, words come by its standard input."""
    job = json.loads(sys.argv[1])
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # what the measured code prints is no answer
    module, _, name = job["target"].partition(":")
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    run = getattr(import_module(module), name)(*job["args"])
    result: Any = None
    _tell(out, b"ready\n")
    for word in sys.stdin.buffer:
        if word == b"run\n":
            result = None
            result = run()
            _tell(out, b"done\n")
        else:
            content = io.BytesIO()
            np.save(content, result.detach().numpy(), allow_pickle=False)
            _tell(out, struct.pack(">Q", len(content.getvalue())) + content.getvalue())


def _tell(out: IO[bytes], content: bytes) -> None:
    out.write(content)
    out.flush()


def numbers(count: int) -> Any:
    """A contender for the example and the tests."""
    return lambda: torch.arange(float(count))
