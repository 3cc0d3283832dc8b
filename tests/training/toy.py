"""A small task: label every place of short sequences. Also a command, for the tests that kill it:

python -m tests.training.toy --folder F --training.steps 30
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.training import Interrupted, Loss, Task, Training, fit, parse, seed_all

WIDTH, LABELS, LONGEST = 5, 3, 4


@dataclass(frozen=True)
class Batch:
    inputs: Tensor  # (B, T, 5)
    lengths: Tensor  # (B,)
    labels: Tensor  # (B, T)

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> Batch:
        return Batch(self.inputs.to(device), self.lengths.to(device), self.labels.to(device))


class Labeller(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 11)
        self.norm = nn.LayerNorm(11)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(11, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outer(self.dropout(self.norm(self.inner(inputs).tanh())))


class Toy(Task):
    """Sequences whose labels a fixed random layer decides."""

    goal = ("loss", "min")

    def __init__(self, dropout: float = 0.0, size: int = 7, many: int = 6, seed: int = 0) -> None:
        seed_all(seed)
        self.model: nn.Module = Labeller(dropout)
        self.size, self.many = size, many
        self.truth = torch.randn(WIDTH, LABELS, generator=torch.Generator().manual_seed(99))
        self.evaluations = 0
        self.asked: list[tuple[int, int]] = []

    def batch(self, seed: int, size: int) -> Batch:
        random = torch.Generator().manual_seed(seed)
        inputs = torch.randn(size, LONGEST, WIDTH, generator=random)
        lengths = torch.randint(1, LONGEST + 1, (size,), generator=random)
        return Batch(inputs, lengths, (inputs @ self.truth).argmax(-1))

    def batches(self, epoch: int, *, start: int, rank: int, world: int) -> Iterator[Batch]:
        for number in range(start, self.many):
            self.asked.append((epoch, number))
            whole = self.batch(1000 * epoch + number, self.size)
            share = slice(rank, None, world)
            yield Batch(whole.inputs[share], whole.lengths[share], whole.labels[share])

    def batches_in(self, epoch: int) -> int:
        return self.many

    def batch_loss(self, batch: Batch) -> Loss:
        valid = torch.arange(LONGEST) < batch.lengths.unsqueeze(1)  # (B, T)
        logits, labels = self.model(batch.inputs)[valid], batch.labels[valid]  # (N, 3), (N,)
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        accuracy = (logits.argmax(-1) == labels).float().mean()
        return Loss(total, len(labels), {"accuracy": accuracy, "padding": 1 - len(labels) / valid.numel()})

    def evaluate(self) -> dict[str, float]:
        assert not self.model.training and not torch.is_grad_enabled()
        self.evaluations += 1
        torch.rand(3)  # an evaluation may draw numbers: training goes on as if it had not
        found = self.loss(self.batch(77, 40))
        return {"loss": float(found.total) / found.count, "accuracy": float(found.extras["accuracy"])}

    def samples(self) -> list[tuple[str, str, str]]:
        return [("an input", "what [it] made", "what was wanted")]

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}\n")


@dataclass(frozen=True)
class Settings:
    """The toy as a command."""

    folder: Path
    """Of the run."""
    training: Training = field(default_factory=Training)
    """How to train."""
    dropout: float = 0.1
    """Share of units left out."""
    sleep: float = 0.0
    """Seconds that each batch takes besides."""
    hold: int = -1
    """Batch at which it waits until the file `go` is in the folder."""
    die: int = -1
    """Batch at which the last process kills itself in its first life."""
    stay: int = -1
    """Batch at which it stays until it is killed."""
    hang: float = 0.0
    """Seconds that an evaluation takes besides."""


class Slow(Toy):
    """The toy, with time to kill it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.dropout)
        self.settings, self.seen = settings, 0

    def batch_loss(self, batch: Batch) -> Loss:
        time.sleep(3600 if self.seen == self.settings.stay else self.settings.sleep)
        while self.seen == self.settings.hold and not (self.settings.folder / "go").exists():
            time.sleep(0.005)
        life, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("RANK", "0")
        if self.seen == self.settings.die and life == "0" and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1
        return super().batch_loss(batch)

    def evaluate(self) -> dict[str, float]:
        if self.settings.hang:
            print("evaluating", flush=True)
            time.sleep(self.settings.hang)
        return super().evaluate()


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    settings = parse(Settings, arguments)
    try:
        fit(Slow(settings), settings.training, settings.folder, recipe={"toy": {"dropout": settings.dropout}})
    except Interrupted:
        return 130
    except (OSError, ValueError) as error:
        print(f"toy: {error}", file=sys.stderr)
        return 1
    return 0


def settings_of(training: Training) -> list[str]:
    """A command line that says the same."""
    given = {name: value for name, value in asdict(training).items() if value is not None and name != "compile"}
    words = {name: " ".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in given.items()}
    return [word for name, text in words.items() for word in (f"--training.{name.replace('_', '-')}", *text.split())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
