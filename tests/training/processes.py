"""Runs the toy task in processes that may be killed. They are forked, which avoids importing torch in each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from regard.training import Training
from tests.training.toy import main, settings_of

ROOT = Path(__file__).parent.parent.parent
CONTEXT = multiprocessing.get_context("forkserver")  # one process imports torch; the others are its forks


def toy(folder: Path, words: list[str], environment: dict[str, str]) -> None:
    """Run the command in the current process, with its output in a file."""
    os.environ.update(environment)
    with (folder / "output.txt").open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    status = main(words)
    sys.stdout.flush()
    os._exit(status)


class Command:
    """The toy task in a separate process."""

    def __init__(self, folder: Path, config: Training, *options: str, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self.output = folder / "output.txt"
        words = ["--folder", str(folder), *settings_of(config), *options]
        self.process = CONTEXT.Process(target=toy, args=(folder, words, environment), daemon=True)
        self.process.start()

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None and self.process.is_alive(), self.text()
        os.kill(self.process.pid, number)

    def end(self) -> int:
        """Wait for the exit status."""
        self.process.join(300)
        assert self.process.exitcode is not None, f"it does not end:\n{self.text()}"
        return self.process.exitcode

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""
