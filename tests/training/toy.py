"""A small task: label every position of short sequences. Also a command, for the tests that kill it:

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
    """Sequences labelled by a fixed random layer."""

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
        torch.rand(3)  # an evaluation may draw random numbers without changing training
        loss = self.loss(self.batch(77, 40))
        return {"loss": float(loss.total) / loss.count, "accuracy": float(loss.extras["accuracy"])}

    def samples(self) -> list[tuple[str, str, str]]:
        return [("an input", "the [model] output", "the reference")]

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}\n")


@dataclass(frozen=True)
class Settings:
    """Settings of the toy command."""

    folder: Path
    """Folder of the run."""
    training: Training = field(default_factory=Training)
    """Training settings."""
    dropout: float = 0.1
    """Dropout rate."""
    sleep: float = 0.0
    """Extra seconds per batch."""
    hold: int = -1
    """Batch at which it waits for the file `go` in the folder."""
    die: int = -1
    """Batch at which the last process kills itself, unless it was restarted."""
    stay: int = -1
    """Batch at which it hangs until it is killed."""
    hang: float = 0.0
    """Extra seconds per evaluation."""


class Slow(Toy):
    """A slow variant of the toy task, which can be killed in time."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.dropout)
        self.settings, self.count = settings, 0  # batches so far

    def batch_loss(self, batch: Batch) -> Loss:
        time.sleep(3600 if self.count == self.settings.stay else self.settings.sleep)
        while self.count == self.settings.hold and not (self.settings.folder / "go").exists():
            time.sleep(0.005)
        life, rank = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("RANK", "0")
        if self.count == self.settings.die and life == "0" and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
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
    """Return the command-line options of these settings."""
    values = {name: value for name, value in asdict(training).items() if value is not None and name != "compile"}
    words = {name: " ".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in values.items()}
    return [word for name, text in words.items() for word in (f"--training.{name.replace('_', '-')}", *text.split())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
