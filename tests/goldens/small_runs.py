"""One short run of each recipe, a capture and the exports, written as users write them: by the command line.

All paths are relative to the current directory, because a run stores the paths of its data.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

import regard
from tests.goldens.entry_points import Patches, command
from tests.goldens.module_cases import fill, values

WORDS = {"the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "a": "un", "bird": "oiseau"}
GOOD, BAD = ("fine", "lovely", "great"), ("dull", "awful", "poor")
REST = ("film", "story", "actor", "truly", *WORDS)

LOG = ("--steps", "4", "--warmup", "2", "--log-every", "1", "--save-every", "2", "--evaluate-every", "2")
STEPS_AFTER_RESUME = "6"
PAIRS = (
    "--train",
    "pairs.tsv",
    "--valid",
    "held-out.tsv",
    "--vocabulary",
    "60",
    "--tokens",
    "100",
    "--longest",
    "30",
    "--learning-rate",
    "0.01",
)
NO_DROPOUT = ("--dropout", "0")
"""Where norms follow dropout, the kernels draw other random numbers than PyTorch does without them."""
SIZES = (
    "--width",
    "12",
    "--heads",
    "3",
    "--hidden",
    "17",
    "--layers",
    "2",
    "--positions",
    "32",
    "--vocabulary",
    "90",
    *NO_DROPOUT,
)
TEXTS = ("--data", "labelled.tsv", "--hold-out", "0.25", "--longest", "24", "--tokens", "150")
IMAGES = ("--images", "images", "--held-out", "0.25", "--batch", "5")

RECIPES: dict[str, tuple[str, ...]] = {
    "transformer": (
        *("translate", *PAIRS, *LOG, "--width", "12", "--heads", "3", "--hidden", "17"),
        *("--encoder-layers", "2", "--decoder-layers", "1", *NO_DROPOUT),
    ),
    "recurrent": (
        *("translate", "--kind", "recurrent", *PAIRS, *LOG),
        *("--width", "12", "--hidden", "11", "--encoder-hidden", "10", "--average", "none"),
    ),
    "pretrained": (
        *("pretrain", "--text", "plain.txt", "--documents", "line", "--hold-out", "0.2", "--longest", "24"),
        *("--tokens", "150", "--next-sentence", *SIZES, *LOG, "--average", "last"),
    ),
    "scratch": ("classify", *TEXTS, *SIZES, *LOG),
    "finetuned": ("classify", *TEXTS, "--from", "pretrained", *LOG, "--epochs", "30", "--accumulate", "2"),
    "vit": ("classify", *IMAGES, *LOG, "--width", "12", "--heads", "3", "--hidden", "17", "--layers", "2"),
    "cnn": ("classify", "--kind", "cnn", *IMAGES, *LOG, "--widths", "5", "7", "--blocks", "1"),
}
"""The arguments of `regard train`, by the folder of the run."""

ASKED: dict[str, tuple[str, ...]] = {
    "beam": (
        "translate",
        "transformer",
        "the cat sees a dog",
        "a bird",
        "--beam",
        "3",
        "--n-best",
        "2",
        "--longest",
        "9",
    ),
    "alignments": ("translate", "transformer", "the cat sees a dog", "--longest", "9", "--alignments"),
    "recurrent": ("translate", "recurrent", "the cat sees a dog", "--longest", "9", "--alignments"),
    "classes": ("classify", "scratch", "a lovely film", "the story was dull", "--all"),
    "finetuned": ("classify", "finetuned", "a lovely film", "--top", "2"),
    "image": ("classify", "vit", "images/test/left/0.png", "--all"),
    "convolution": ("classify", "cnn", "images/test/right/1.png", "--all"),
    "embedding": ("embed", "huggingface", "a lovely film", "the dog"),
}
"""Commands that ask the trained models."""

EXPORTS: dict[str, tuple[str, ...]] = {
    "ctranslate2": ("export", "transformer", "--out", "ctranslate2"),
    "huggingface": ("export", "pretrained", "--to", "huggingface", "--out", "huggingface"),
}
NOT_STORED = ("*.png", ".lock")
"""Files of a run that are neither stored nor compared: drawings, and the lock."""


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder, with one thread and without drawing curves, which would take longer than training."""
    from matplotlib.figure import Figure

    before, threads, savefig = Path.cwd(), torch.get_num_threads(), Figure.savefig
    os.chdir(folder)
    torch.set_num_threads(1)
    Figure.savefig = _save_nothing
    try:
        yield
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)
        Figure.savefig = savefig


def _save_nothing(figure: Any, file: Any, **options: Any) -> None:
    """In place of `Figure.savefig`: an empty file."""
    if isinstance(file, str | os.PathLike):
        Path(file).touch()


def regard_command(*arguments: str) -> str:
    """Run a command of `regard` in this process; return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = command()(arguments)
    assert status == 0, f"regard {' '.join(arguments)} ended with status {status}"
    return printed.getvalue()


def write_files() -> dict[str, dict[str, Any]]:
    """Write data, runs, capture and exports; the metadata of each run."""
    write_data()
    runs = {name: train(name) for name in RECIPES}
    write_capture()
    for arguments in EXPORTS.values():
        regard_command(*arguments)
    return runs


def write_data() -> None:
    """Sentence pairs, labelled texts, plain text and images, always the same."""
    draw = random.Random(0)
    for name, count in (("pairs.tsv", 40), ("held-out.tsv", 6)):
        _write(name, [_pair(draw) for _ in range(count)])
    _write("labelled.tsv", [_labelled(draw) for _ in range(40)])
    _write("plain.txt", [". ".join(_labelled(draw)[0] for _ in range(draw.randint(2, 4))) for _ in range(30)])
    for number in range(24):
        part, side = ("train", "test")[number < 4], ("left", "right")[number % 2]
        path = Path("images", part, side, f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        light = 96 * (number % 2)
        Image.frombytes("L", (12, 8), bytes(light + draw.randrange(160) for _ in range(96))).save(path)


def _write(name: str, lines: Sequence[str | tuple[str, str]]) -> None:
    joined = [line if isinstance(line, str) else "\t".join(line) for line in lines]
    Path(name).write_text("\n".join(joined) + "\n", encoding="utf-8")


def _pair(draw: random.Random) -> tuple[str, str]:
    words = [draw.choice(list(WORDS)) for _ in range(draw.randint(1, 5))]
    return " ".join(words), " ".join(WORDS[word] for word in words)


def _labelled(draw: random.Random) -> tuple[str, str]:
    label = draw.choice(("good", "bad"))
    words = [draw.choice(REST) for _ in range(draw.randint(2, 8))]
    words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label == "good" else BAD))
    return " ".join(words), label


def train(name: str) -> dict[str, Any]:
    """Train by a recipe; the metadata of the run. The final weights are in its folder."""
    recipe, *options = RECIPES[name]
    regard_command("train", recipe, name, *options)
    return described(Path(name))


def resume(name: str) -> list[dict[str, Any]]:
    """Continue a run for a few steps more; the lines that this adds to its metrics."""
    before = len(metrics(Path(name)))
    regard_command("train", RECIPES[name][0], name, "--steps", STEPS_AFTER_RESUME)
    return metrics(Path(name))[before:]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; what depends on the clock is None."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [without_time(json.loads(line)) for line in lines]


def without_time(values: Any) -> Any:
    """The same with None for what depends on the clock or on the machine, such as the digest of a progress.json."""
    clock = {"seconds", "tokens_per_second", "environment", "metrics", "since", "sha256"}
    if isinstance(values, dict):
        return {name: None if name in clock else without_time(value) for name, value in values.items()}
    return [without_time(value) for value in values] if isinstance(values, list) else values


def described(run: Path) -> dict[str, Any]:
    """Everything in a run that is text or JSON."""
    files = {
        str(path.relative_to(run)): without_time(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(run.rglob("*.json"))
    }
    samples = run / "samples.txt"
    return {
        "lines": metrics(run),
        "samples": samples.read_text(encoding="utf-8") if samples.exists() else None,
        "json": files,
    }


def write_capture() -> None:
    """Two layers and two batch entries, with tokens and an image."""
    layer = nn.TransformerEncoderLayer(10, 2, 11, batch_first=True)
    model = fill(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    with regard.watch(model) as seen, torch.no_grad():
        model(values("captured", 2, 7, 10, scale=3))
    seen.tokens(list("regards"))
    seen.image = (127 * (values("picture", 4, 6, 3) + 1)).to(torch.uint8)
    seen.patches = Patches(2, 3, 1)
    seen.save("capture.safetensors")
