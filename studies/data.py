"""Data: a Vision Transformer against a residual network of equal size, with growing data and after pretraining.

Claim ("Attention", section 7; Dosovitskiy et al. 2021, section 4.3): with enough pretraining data, a ViT surpasses a
CNN and transfers well to other tasks. If the training set is not large enough, it is usually somewhat worse than a
ResNet of the same size.

Both models learn some images of some classes, either from scratch or from weights that were pretrained on many images
of other classes. Steps, batches and learning rates are the same for both. The images are generated letters of a random
alphabet, a new one for each seed. With `--data`, they are those of a folder created by `regard data fashion-mnist` (or
mnist), scaled to the same size; half of the classes are used for pretraining, the others for training. Both data sets
are small: "enough" is limited to what fits in ten minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.image_batches import Normal
from regard.data.image_files import read_images
from regard.models import CNN, CNNConfig, ViT, ViTConfig
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._compare import leads, parameters, percent
from studies._learn import learn, lines, verdict
from studies._strokes import alphabet, draw_letters

NUMBER = 10
WAYS = {"vit": "ViT", "cnn": "residual network"}
Accuracies = Mapping[str, Sequence[Mapping[str, Sequence[float]]]]
"""Accuracies by model, seed, start (from scratch or pretrained) and number of images."""


@dataclass(frozen=True)
class Settings:
    side: int = 12
    classes: int = 10
    """Number of classes to pretrain on, and of classes to learn. A folder is split in splits."""
    sizes: tuple[int, ...] = (100, 400, 1600, 6400)
    """Numbers of training images."""
    pretrained: int = 20_000
    """Number of pretraining images."""
    tested: int = 2000
    patch: int = 3
    width: int = 64
    layers: int = 3
    widths: tuple[int, ...] = (18, 36, 72)
    """Widths of the residual network's stages, which give about as many parameters as the ViT has."""
    steps: int = 800
    pretrain_steps: int = 1500
    finetune_steps: int = 300
    batch: int = 32
    rate: float = 2e-3
    finetune_rate: float = 1e-3


QUICK = Settings(6, 3, (10, 20), 40, 30, 3, 8, 1, (4, 8), steps=4, pretrain_steps=4, finetune_steps=4, batch=4)


class Labelled(NamedTuple):
    images: Tensor
    """(N, 1, side, side)"""
    labels: Tensor
    """(N,)"""


class World(NamedTuple):
    """The data of one seed."""

    before: Labelled
    """Pretraining data, with other classes."""
    learned: Labelled
    """Training data; smaller sets are its first images."""
    tested: Labelled


def generated(settings: Settings, seed: int) -> World:
    """Generate letters of a random alphabet."""
    draw = torch.Generator().manual_seed(seed)
    letters = alphabet(2 * settings.classes, draw)

    def some(number: int, first: int) -> Labelled:
        labels = torch.randint(settings.classes, (number,), generator=draw)
        return Labelled(draw_letters(letters[first + labels], settings.side, draw), labels)

    known = settings.classes
    return World(some(settings.pretrained, 0), some(max(settings.sizes), known), some(settings.tested, known))


def from_folder(folder: Path, settings: Settings, seed: int) -> World:
    """Read the images of a folder and split its classes at random."""
    draw = torch.Generator().manual_seed(seed)
    parts = read_images(folder, "train"), read_images(folder, "test")
    if parts[0] is None or parts[1] is None:
        raise ValueError(f"data: folder ({folder}) must have training and test images.")
    normal = Normal.of(parts[0])
    order = torch.randperm(len(parts[0].classes), generator=draw)
    splits = order[: len(order) // 2], order[len(order) // 2 :]

    def some(part: Any, classes: Tensor, number: int) -> Labelled:
        chosen = torch.isin(part.labels, classes).nonzero().squeeze(-1)
        chosen = chosen[torch.randperm(len(chosen), generator=draw)][:number]
        if len(chosen) < number:
            raise ValueError(f"data: folder ({folder}) must have {number} images of {len(classes)} classes.")
        pixels = normal(part.take(chosen)).mean(1, keepdim=True)  # (N, 1, H, W)
        labels = (part.labels[chosen][:, None] == classes).int().argmax(-1)
        return Labelled(F.adaptive_avg_pool2d(pixels, settings.side), labels)

    before, learned = (
        some(parts[0], half, number)
        for half, number in zip(splits, (settings.pretrained, max(settings.sizes)), strict=True)
    )
    return World(before, learned, some(parts[1], splits[1], settings.tested))


def model_of(way: str, classes: int, settings: Settings) -> Any:
    """Return a model whose classifier can be replaced."""
    if way == "cnn":
        return CNN(CNNConfig(classes=classes, widths=settings.widths, blocks=1))
    side, width = (settings.side, settings.side), settings.width
    return ViT(
        ViTConfig(classes, side, patch=settings.patch, width=width, heads=4, hidden=2 * width, layers=settings.layers)
    )


def fit(model: nn.Module, data: Labelled, settings: Settings, steps: int, rate: float, seed: int) -> None:
    """Train a model on batches drawn at random."""

    def loss(draw: torch.Generator) -> Tensor:
        indices = torch.randint(len(data.labels), (settings.batch,), generator=draw)
        return F.cross_entropy(model(data.images[indices]), data.labels[indices])

    learn(model, loss, steps=steps, rate=rate, seed=seed)


def measure(way: str, settings: Settings, folder: Path | None, seed: int) -> dict[str, list[float]]:
    """Return the accuracies for each number of images, from scratch and after pretraining."""
    world = generated(settings, seed) if folder is None else from_folder(folder, settings, seed)
    before, learned, tested = world
    classes, others = (int(part.labels.max()) + 1 for part in (learned, before))
    torch.manual_seed(seed)
    base = model_of(way, others, settings)
    fit(base, before, settings, settings.pretrain_steps, settings.rate, seed)
    kept = {name: tensor for name, tensor in base.state_dict().items() if not name.startswith("classifier")}
    accuracies: dict[str, list[float]] = {"scratch": [], "pretrained": []}
    for size in settings.sizes:
        few = Labelled(learned.images[:size], learned.labels[:size])
        for start, steps, rate in (
            ("scratch", settings.steps, settings.rate),
            ("pretrained", settings.finetune_steps, settings.finetune_rate),
        ):
            torch.manual_seed(seed)
            model = model_of(way, classes, settings)
            if start == "pretrained":
                model.load_state_dict(kept, strict=False)
            fit(model, few, settings, steps, rate, seed)
            with torch.inference_mode():
                right = model(tested.images).argmax(-1) == tested.labels
            accuracies[start].append(right.float().mean().item())
    return accuracies


def judge(accuracies: Accuracies, settings: Settings) -> str:
    """Return the verdict."""

    def shares(way: str, start: str, at: int) -> list[float]:
        return [run[start][at] for run in accuracies[way]]

    def compare(start: str, at: int) -> str:
        vit, cnn = (spread(shares(way, start, at))[0] for way in WAYS)
        return f"{vit:.0%} against {cnn:.0%}"

    least, most = settings.sizes[0], settings.sizes[-1]
    return verdict(
        [
            (
                leads(shares("cnn", "scratch", 0), shares("vit", "scratch", 0)),
                f"trained on {least} images, the accuracy of ViT and residual network was {compare('scratch', 0)} "
                f"(on {most:,}: {compare('scratch', -1)})",
            ),
            (
                leads(shares("vit", "pretrained", -1), shares("cnn", "pretrained", -1)),
                f"pretrained on {settings.pretrained:,} images of other classes and trained on {most:,}, it was "
                f"{compare('pretrained', -1)} (on {least}: {compare('pretrained', 0)})",
            ),
        ]
    )


def main(arguments: Sequence[str]) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--data", type=Path, help="folder of images with classes (default: generated letters)")
    options, rest = own.parse_known_args(arguments)
    claim = Claim.parse("data", __doc__, rest, parents=[own])
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, {**vars(settings), "data": str(options.data or "")})
    accuracies = {
        way: [
            store.measure(f"{name}, seed {seed}", partial(measure, way, settings, options.data, seed))
            for seed in claim.seeds
        ]
        for way, name in WAYS.items()
    }
    scores = {
        start: {
            name: [[run[start][at] for run in accuracies[way]] for at in range(len(settings.sizes))]
            for way, name in WAYS.items()
        }
        for start in ("scratch", "pretrained")
    }
    for way, name in WAYS.items():
        print(f"{name}: {parameters(model_of(way, settings.classes, settings)):,} parameters")
    for start, named in scores.items():
        print(f"{f'{start}, accuracy, %':<24}" + "".join(f"{size:>14,}" for size in settings.sizes))
        for name, values in named.items():
            print(f"{name:<24}" + "".join(f"{format_mean(at, times=100):>14}" for at in values))
    with figure(claim.out / "figure.png", 2, (5.6, 3.8)) as panels:
        for axes, (start, named) in zip(panels, scores.items(), strict=True):
            axes.set_xscale("log")
            axes.set(xlabel="training images", ylabel="accuracy, %", ylim=(0, 104))
            axes.set(title="from scratch" if start == "scratch" else f"pretrained on {settings.pretrained:,} others")
            axes.set_xlim(settings.sizes[0] / 1.3, settings.sizes[-1] * (settings.sizes[-1] / settings.sizes[0]) ** 0.5)
            axes.set_xticks(settings.sizes, [f"{size:,}" for size in settings.sizes])
            axes.minorticks_off()
            lines(axes, settings.sizes, {name: percent(values) for name, values in named.items()})
    print(judge(accuracies, settings))
    print(claim.out / "figure.png")
    return 0
