"""Tiny training runs of every recipe, started by the command line. `damage` and `kills` use them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.core.tensor_files import read_tensors
from regard.training import checkpoint

STEPS = 6
WORDS = {"the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "a": "un", "bird": "oiseau"}
OFTEN = [
    *("--warmup", "2", "--save-every", "2", "--save-seconds", "0", "--evaluate-every", "3", "--log-every", "2"),
    *("--schedule", "constant"),  # other schedules depend on --steps, so extending a run would change its past
]
SIZES = ["--width", "8", "--heads", "2", "--hidden", "16"]
BERT = [*SIZES, "--layers", "1", "--vocabulary", "60", "--tokens", "100", "--longest", "24"]
RECIPES: dict[str, list[str]] = {
    "translate": [
        *("train", "translate", "RUN", "--train", "train.tsv", "--valid", "valid.tsv", "--vocabulary", "40"),
        *("--tokens", "60", "--encoder-layers", "1", "--decoder-layers", "1", *SIZES, *OFTEN),
    ],
    "classify": ["train", "classify", "RUN", "--data", "labelled.tsv", "--hold-out", "0.2", *BERT, *OFTEN],
    "pretrain": [
        *("train", "pretrain", "RUN", "--text", "plain.txt", "--documents", "line", "--hold-out", "0.2", *BERT, *OFTEN),
    ],
    "language": [
        *("train", "language", "RUN", "--train", "plain.txt", "--hold-out", "0.2", "--vocabulary", "280", *SIZES),
        *("--layers", "1", "--context", "12", "--batch", "4", *OFTEN),
    ],
    "images": [
        *("train", "classify", "RUN", "--images", "squares", "--held-out", "0.2", "--batch", "8", "--layers", "1"),
        *(*SIZES, *OFTEN),
    ],
}
"""Commands to run in the folder of the inputs. RUN is replaced by the run folder."""


def write_inputs(folder: Path, pairs: int = 40) -> None:
    """Write sentence pairs, labelled texts, plain text and images."""
    generator = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", pairs), ("valid", 6)):
        lines = [[generator.choice(list(WORDS)) for _ in range(generator.randint(1, 5))] for _ in range(count)]
        text = "".join(f"{' '.join(line)}\t{' '.join(map(WORDS.__getitem__, line))}\n" for line in lines)
        (folder / f"{name}.tsv").write_text(text)
    labelled = [
        (generator.choice(("good", "bad")), [generator.choice(list(WORDS)) for _ in range(4)]) for _ in range(pairs)
    ]
    (folder / "labelled.tsv").write_text("".join(f"{' '.join(words)} {label}\t{label}\n" for label, words in labelled))
    (folder / "plain.txt").write_text("".join(f"{label}: {' '.join(words)}.\n" for label, words in labelled))
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), np.uint8)
    (folder / "squares").mkdir(exist_ok=True)
    write_idx(folder / "squares/train-images-idx3-ubyte", pixels)
    write_idx(folder / "squares/train-labels-idx1-ubyte", (pixels[:, 0, 0] > 127).astype(np.uint8))


def write_idx(path: Path, array: np.ndarray) -> None:
    from regard.data.image_files import idx_bytes

    path.write_bytes(idx_bytes(array))


def command(recipe: str, run: Path, steps: int = STEPS) -> list[str]:
    return [str(run) if word == "RUN" else word for word in RECIPES[recipe]] + ["--steps", str(steps)]


def tensors(run: Path, step: int) -> dict[str, Tensor]:
    """Return the training state of a step (weights, moments, averages, generators) and the best weights."""
    last = read_tensors(checkpoint.state_path(run, step) / checkpoint.TENSORS)
    return last | {f"best/{name}": value for name, value in read_tensors(run / "model.safetensors").items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> int:
    """Return the number of tensors that are not bitwise equal."""
    names = a.keys() | b.keys()
    return sum(name not in a or name not in b or not torch.equal(a[name], b[name]) for name in names)
