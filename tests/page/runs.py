"""A target of each kind for `regard view`, created by the public commands in the smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import regard
from regard.commands.main import main
from regard.models.vit import ViTConfig
from regard.training import Silent, Training
from regard.training.recipes.train_image_classifier import ImagesRecipe, Pictures, train
from tests.tasks.conftest import pairs
from tests.tasks.sample_texts import write_labelled

SHORT = ("--steps", "2", "--log-every", "2")


def translator(folder: Path) -> Path:
    """A translator with two encoder layers and one decoder layer."""
    for name, count in (("train", 40), ("valid", 6)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(count, seed=len(name)))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    texts = ("--train", str(folder / "train.tsv"), "--valid", str(folder / "valid.tsv"))
    sizes = ("--vocabulary", "60", "--tokens", "200", "--width", "16", "--hidden", "16", "--warmup", "2")
    layers = ("--heads", "2", "--encoder-layers", "2", "--decoder-layers", "1")
    assert main(["train", "translate", str(folder / "run"), *texts, *sizes, *layers, *SHORT]) == 0
    return folder / "run"


def text_classifier(folder: Path) -> Path:
    """Two layers of two heads; two classes."""
    data = ("--data", str(write_labelled(folder / "train.tsv", 40)), "--hold-out", "0.25")
    sizes = ("--vocabulary", "80", "--width", "16", "--heads", "2", "--hidden", "32", "--layers", "2")
    lengths = ("--positions", "32", "--longest", "24", "--tokens", "200")
    assert main(["train", "classify", str(folder / "run"), *data, *sizes, *lengths, *SHORT]) == 0
    return folder / "run"


def image_classifier(folder: Path) -> tuple[Path, Path]:
    """Two layers of two heads over patches of 4 × 4, and an image of 12 × 8: a grid of two rows and three columns."""
    random = np.random.default_rng(0)
    for number in range(16):
        part, side = ("train", "test")[number >= 12], ("left", "right")[number % 2]
        path = folder / "data" / part / side / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 12), np.uint8)).save(path)
    recipe = ImagesRecipe(
        Pictures(folder / "data", held_out=0.25, batch=4, flip=0.0, crop=0, erase=0.0),
        Training(steps=2, warmup=1, learning_rate=1e-3, evaluate_every=2, log_every=2, device="cpu"),
        model=ViTConfig(width=16, heads=2, hidden=32, layers=2),
    )
    train(recipe, folder / "run", Silent())
    return folder / "run", path


RHYME = "the cat sat on the mat. the dog sat on the log. the cat saw the dog, and the dog saw the cat.\n"


def language_model(folder: Path) -> Path:
    """A model of characters with two layers of two heads that has begun to learn a rhyme."""
    (folder / "text.txt").write_text(RHYME * 40, encoding="utf-8")
    data = ("--train", str(folder / "text.txt"), "--vocabulary", "characters", "--context", "64", "--batch", "8")
    sizes = ("--width", "32", "--heads", "2", "--layers", "2", "--learning-rate", "0.01", "--warmup", "5")
    steps = ("--steps", "60", "--log-every", "60", "--evaluate-tokens", "64")
    assert main(["train", "language", str(folder / "run"), *data, *sizes, *steps]) == 0
    return folder / "run"


def capture(folder: Path) -> Path:
    """Two entries of seven tokens, recorded in two layers of two heads."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    with regard.watch(model) as seen, torch.no_grad():
        model(3 * torch.randn(2, 7, 8))
    return seen.tokens(list("regards")).save(folder / "seen.safetensors")
