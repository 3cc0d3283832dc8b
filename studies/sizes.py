"""Sizes: the held-out loss of language models of growing size, trained on growing amounts of text.

Claim (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 1.2): the held-out loss of a Transformer
falls as a power of the number of its parameters without embeddings, and as a power of the amount of text, as long as
the other one does not limit it.

GPTs of three sizes, with rotary positions, read parts of "Romeo and Juliet" of four lengths, each 2.5 times the one
before, and predict the last tenth of the play. Steps, batches and learning rate are the same for all. A large model
learns a short text by heart and then predicts other text worse, so the lowest held-out loss during training counts, as
in the paper. Each seed has other initial weights and another part of the play.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from regard.data import Characters
from regard.data.romeo_and_juliet import read_play
from regard.data.token_windows import consecutive_windows, windows_at
from regard.models import GPT, GPTConfig
from regard.tasks.language_model import BATCH_TOKENS, LanguageModel
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._compare import leads, parameters
from studies._learn import learn, lines, verdict

NUMBER = 12
HELD_OUT = 0.1
STRAIGHT = 0.02
"""Largest relative deviation from a power law that counts as following it."""
LIMITED = 0.5
"""If the size gains less than this fraction of what it gains with all the text, the text limits it."""
Losses = Mapping[int, Mapping[int, Sequence[float]]]
"""Held-out losses of the seeds, in nats per character, by width and number of characters."""


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...] = (16, 32, 64)
    characters: tuple[int, ...] = (7680, 19_200, 48_000, 120_000)
    """Lengths of the training text."""
    layers: int = 3
    heads: int = 4
    context: int = 64
    batch: int = 16
    steps: int = 500
    rate: float = 4e-3


QUICK = Settings((8, 16), (500, 2000), layers=1, heads=2, context=16, batch=4, steps=20)


@cache
def play() -> tuple[Characters, np.ndarray, np.ndarray]:
    """Return the characters of the play, and the ids of its training and held-out parts."""
    text = read_play()
    letters = Characters.train([text])
    ids = np.array(letters.encode(text), np.int64)  # (N,)
    cut = int((1 - HELD_OUT) * len(ids))
    return letters, ids[:cut], ids[cut:]


def part_of_play(characters: int, seed: int) -> np.ndarray:
    """Return that many consecutive characters of the training part, from a random position."""
    train = play()[1]
    start = np.random.default_rng(seed).integers(len(train) - characters + 1)
    return train[start : start + characters]


def model_of(width: int, settings: Settings) -> GPT:
    config = GPTConfig(
        vocabulary=len(play()[0]),
        width=width,
        heads=settings.heads,
        layers=settings.layers,
        positions=settings.context,
        position="rotary",
    )
    return GPT(config)


def size_of(width: int, settings: Settings) -> int:
    """Return the number of parameters without embeddings, as the paper counts them."""
    model = model_of(width, settings)
    return parameters(model) - parameters(model.tokens)


def measure(width: int, characters: int, settings: Settings, seed: int) -> float:
    """Return the lowest held-out loss during training, in nats per character."""
    letters, _, held_out = play()
    text = part_of_play(characters, seed)
    torch.manual_seed(seed)
    language = LanguageModel(model_of(width, settings), letters)
    lowest, evaluated = math.inf, evaluation_steps(settings.steps)

    def loss(draw: torch.Generator) -> Tensor:
        starts = torch.randint(len(text) - settings.context, (settings.batch,), generator=draw)
        batch = windows_at(text, starts.numpy(), settings.context)
        return language.batch_loss(batch) / batch.ids.numel()

    @torch.inference_mode()
    def evaluate(step: int) -> None:
        nonlocal lowest
        if step in evaluated:
            windows = consecutive_windows(held_out, settings.context, BATCH_TOKENS // settings.context)
            total = sum(float(language.batch_loss(batch)) for batch in windows)
            lowest = min(lowest, total / (len(held_out) - 1))

    learn(language.model, loss, steps=settings.steps, rate=settings.rate, seed=seed, after=evaluate)
    return lowest


def evaluation_steps(steps: int) -> set[int]:
    """Return the steps after which the model is evaluated. A small text is learned by heart after a few.

    >>> sorted(evaluation_steps(100))
    [8, 11, 16, 23, 32, 45, 64, 91, 100]
    """
    return {step for half in range(6, 40) if (step := round(2 ** (half / 2))) < steps} | {steps}


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit y = a · x^−b and return b, and the largest relative deviation of a point from the fit.

    >>> exponent, deviation = power_law([1, 4, 16], [8.0, 4.0, 2.0])
    >>> round(exponent, 6), deviation < 1e-9
    (0.5, True)
    """
    slope, start = np.polyfit(np.log(x), np.log(y), 1)
    fitted = np.exp(start + slope * np.log(x))
    return -float(slope), float(np.abs(np.asarray(y) / fitted - 1).max())


def judge(losses: Losses, sizes: Mapping[int, int]) -> str:
    """Return the verdict."""
    widths, amounts = list(losses), list(next(iter(losses.values())))

    def mean(width: int, amount: int) -> float:
        return spread(losses[width][amount])[0]

    def falls(values: Sequence[Sequence[float]]) -> bool:
        return all(leads(before, after) for before, after in pairwise(values))

    def row(name: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> tuple[bool, str]:
        means = [spread(at)[0] for at in values]
        exponent, deviation = power_law(x, means)
        return falls(values) and deviation <= STRAIGHT, (
            f"{name}, the loss fell from {means[0]:.2f} to {means[-1]:.2f}, as a power of {exponent:.3f} within "
            f"{deviation:.1%}"
        )

    gains = [mean(widths[0], amount) - mean(widths[-1], amount) for amount in (amounts[0], amounts[-1])]
    return verdict(
        [
            row("with more text for the largest model", amounts, list(losses[widths[-1]].values())),
            row(
                "with more parameters and all the text",
                [sizes[width] for width in widths],
                [losses[width][amounts[-1]] for width in widths],
            ),
            (
                gains[0] < LIMITED * gains[1],
                f"the largest model gained {gains[0]:.2f} over the smallest with {amounts[0]:,} characters and "
                f"{gains[1]:.2f} with {amounts[-1]:,}",
            ),
        ]
    )


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("sizes", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    losses = {
        width: {
            amount: [
                store.measure(
                    f"width {width}, {amount:,} characters, seed {seed}",
                    partial(measure, width, amount, settings, seed),
                )
                for seed in claim.seeds
            ]
            for amount in settings.characters
        }
        for width in settings.widths
    }
    sizes = {width: size_of(width, settings) for width in settings.widths}
    print(f"{'nats per character':<22}" + "".join(f"{amount:>16,}" for amount in settings.characters))
    for width, values in losses.items():
        name = f"{sizes[width]:,} parameters"
        print(f"{name:<22}" + "".join(f"{format_mean(at, 3):>16}" for at in values.values()))
    _draw(claim, losses, sizes, settings)
    print(judge(losses, sizes))
    print(claim.out / "figure.png")
    return 0


def _draw(claim: Claim, losses: Losses, sizes: Mapping[int, int], settings: Settings) -> None:
    by_text = {f"{sizes[width]:,} parameters": list(values.values()) for width, values in losses.items()}
    by_size = {
        f"{amount:,} characters": [losses[width][amount] for width in settings.widths] for amount in settings.characters
    }
    low = min(min(map(min, values.values())) for values in losses.values())
    high = max(max(map(max, values.values())) for values in losses.values())
    with figure(claim.out / "figure.png", 2, (5.6, 3.8)) as panels:
        for axes, x, name, named in zip(
            panels,
            (settings.characters, list(sizes.values())),
            ("characters of training text", "parameters without embeddings"),
            (by_text, by_size),
            strict=True,
        ):
            axes.set(xscale="log", yscale="log", xlabel=name, ylabel="held-out loss, nats per character")
            axes.set(xlim=(x[0] / 1.3, x[-1] * (x[-1] / x[0]) ** 0.6), ylim=(0.97 * low, 1.03 * high))
            axes.set_xticks(x, [f"{value:,}" for value in x])
            ticks = [tick / 10 for tick in range(10, 41, 2) if 0.97 * low < tick / 10 < 1.03 * high]
            axes.set_yticks(ticks, [f"{tick:.1f}" for tick in ticks])
            axes.minorticks_off()
            lines(axes, x, named)
