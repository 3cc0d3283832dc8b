"""Kill training with SIGKILL twenty times at random moments and compare the final weights with an uninterrupted run.

`python -m bench.resume FOLDER SLEEP` is the run that is killed: an encoder with attention, dropout, gradient
accumulation and averaged weights, which writes a state every second step.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness import Figure, Options
from regard.core.tensor_files import read_tensors
from regard.layers import EncoderBlock, FeedForward, MultiHeadAttention
from regard.training import Loss, Silent, Task, Training, checkpoint, fit, seed_all

WIDTH, LENGTH, SYMBOLS, BATCHES = 32, 11, 13, 25
STEPS = 300
CONFIG = Training(
    steps=STEPS,
    warmup=20,
    accumulate=2,
    average="exponential",
    average_decay=0.99,
    evaluate_every=50,
    save_every=2,
    save_seconds=0.0,
    log_every=10,
)


class Reverser(nn.Module):
    """Reverses a sequence of symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.block = EncoderBlock(MultiHeadAttention(WIDTH, 4), FeedForward(WIDTH, 2 * WIDTH), dropout=0.1)
        self.write = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """(B, T) → (B, T, V)"""
        return self.write(self.block(self.symbol(symbols) + self.position.weight))


class Reverse(Task):
    """The task of reversing sequences."""

    goal = ("loss", "min")

    def __init__(self, sleep: float = 0.0) -> None:
        seed_all(0)
        self.model: nn.Module = Reverser()
        self.sleep = sleep

    def batches(self, epoch: int, *, start: int, rank: int, world: int) -> Iterator[Tensor]:
        for number in range(start, BATCHES):
            generator = torch.Generator().manual_seed(BATCHES * epoch + number)
            yield torch.randint(SYMBOLS, (16, LENGTH), generator=generator)[rank::world]

    def batches_in(self, epoch: int) -> int:
        return BATCHES

    def batch_loss(self, batch: Tensor) -> Loss:
        time.sleep(self.sleep)
        logits = self.model(batch).flatten(0, 1)  # (B·T, V)
        return Loss(nn.functional.cross_entropy(logits, batch.flip(1).flatten(), reduction="sum"), batch.numel())

    def evaluate(self) -> dict[str, float]:
        loss = self.loss(next(self.batches(10_000, start=0, rank=0, world=1)))
        return {"loss": float(loss.total) / loss.count}


def figures(options: Options) -> Iterator[Figure]:
    kills = 3 if options.quick else 20
    shape = f"{STEPS} steps, {kills} kills"
    yield Figure("tensors that differ after SIGKILL", shape, lambda: _differing(kills), "tensors", "<= 0")


def _differing(kills: int) -> float:
    """Return how many tensors of the last state (weights, moments, averages, generators) and best weights differ."""
    with tempfile.TemporaryDirectory() as folder:
        interrupted, uninterrupted = Path(folder, "interrupted"), Path(folder, "uninterrupted")
        moments = random.Random(0)
        for kill in range(kills):
            _kill(interrupted, int((kill + moments.random()) * STEPS / (kills + 1)), moments.uniform(0.0, 0.05))
        _start(interrupted, 0.0).wait()
        _start(uninterrupted, 0.0).wait()
        a, b = _tensors(interrupted), _tensors(uninterrupted)
        return sum(name not in a or name not in b or not torch.equal(a[name], b[name]) for name in a.keys() | b.keys())


def _start(folder: Path, sleep: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.resume", str(folder), str(sleep)], stdout=subprocess.DEVNULL)


def _kill(folder: Path, step: int, later: float) -> None:
    """Start the run, wait for a state of `step` or later and for `later` more seconds, and kill it."""
    process = _start(folder, 0.005)
    while process.poll() is None:
        states = checkpoint.states(folder)
        if states and int(states[-1].name.rpartition("-")[2]) >= step:
            break
        time.sleep(0.005)
    time.sleep(later)
    if process.poll() is not None:
        raise RuntimeError(f"resume: the run must last until step {step}; it exited with {process.returncode}.")
    process.kill()
    process.wait()


def _tensors(folder: Path) -> dict[str, Any]:
    last = read_tensors(checkpoint.state_path(folder, STEPS) / checkpoint.TENSORS)
    return last | {f"best/{name}": value for name, value in read_tensors(folder / "model.safetensors").items()}


def main(folder: str, sleep: str) -> None:
    torch.set_num_threads(1)
    fit(Reverse(float(sleep)), CONFIG, folder, display=Silent())


if __name__ == "__main__":
    main(*sys.argv[1:])
