"""Three advantages: parameters, speed and quality of self-attention against recurrence and convolution.

Claim ("What is the nature of attention?"): attention has fewer parameters than CNNs and RNNs, is fast because no step
waits for the previous one, and works well because distant information in a long text is not weakened.

Parameters are those of one layer at equal width. Speed is the time of a training step for several lengths, at an equal
number of parameters and tokens. Quality is the accuracy on three tasks at an equal number of parameters and steps:
"recall" asks for values that occurred far before, "neighbours" for the sum of three adjacent symbols modulo 4, and
"running" for the sum of all symbols so far modulo 3. The models are those of `studies/_sequence_models.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers import MultiHeadAttention
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._compare import leads, parameters, percent
from studies._learn import interleaved_times, learn, lines, verdict
from studies._sequence_models import Convolution, Recurrent, SelfAttention

NUMBER = 11
WAYS = ("attention", "recurrence", "convolution")
KEYS = VALUES = 8
"""Number of keys and of values in the recall task."""
UNASKED = -100
"""Label of positions without an answer: the default ignore_index of `cross_entropy`."""


@dataclass(frozen=True)
class Settings:
    wide: int = 128
    """Width at which parameters are counted."""
    budget: int = 100_000
    """Number of parameters of each model for the comparison of speed and quality."""
    layers: tuple[int, int, int] = (2, 2, 5)
    """Layers of attention, recurrence and convolution. Convolution covers 64 entries only with five layers."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    tokens: int = 2048
    """Tokens of a timed step. Longer rows mean fewer rows."""
    rounds: int = 7
    length: int = 64
    """Length of the rows of all three tasks."""
    steps: int = 400
    batch: int = 32
    rate: float = 3e-3
    tested: int = 200
    """Number of test rows per task."""


QUICK = Settings(16, 3000, lengths=(4, 8), tokens=32, rounds=1, length=20, steps=4, batch=4, tested=8)


def mixer(way: str, width: int, layers: int) -> Any:
    if way == "attention":
        return SelfAttention(width, layers)
    return Recurrent(width, layers) if way == "recurrence" else Convolution(width, layers)


def within(way: str, settings: Settings) -> Any:
    """Return the model at the width whose number of parameters is closest to the budget.

    >>> [round(parameters(within(way, Settings())) / 1000) for way in WAYS]
    [100, 99, 103]
    """
    layers = settings.layers[WAYS.index(way)]

    def size(width: int) -> int:
        with torch.device("meta"):  # count without allocating
            return parameters(mixer(way, width, layers))

    widths = range(4, 1024, 4)  # attention has four heads
    first = max(1, bisect_left(widths, settings.budget, key=size))
    return mixer(way, min(widths[first - 1 : first + 1], key=lambda width: abs(size(width) - settings.budget)), layers)


def recall(length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return keys with values in the first half, blanks, and the keys again at the end, which ask for their values.

    Ids: key · 8 + value for an item, 64 for a blank, 65 + key for a question.
    """
    items = torch.rand(size, KEYS, generator=draw).argsort(-1)  # (B, 8): keys, in the order of their positions
    values = torch.randint(VALUES, (size, KEYS), generator=draw)  # of key 0, 1, …
    ids = torch.full((size, length), KEYS * VALUES)
    half = max(length // 2, KEYS)
    indices = torch.rand(size, half, generator=draw).argsort(-1)[:, :KEYS]
    ids.scatter_(1, indices, items * VALUES + values.gather(1, items))
    questions = torch.rand(size, KEYS, generator=draw).argsort(-1)
    ids[:, -KEYS:] = KEYS * VALUES + 1 + questions
    wanted = torch.full((size, length), UNASKED)
    wanted[:, -KEYS:] = values.gather(1, questions)
    return ids, wanted


def neighbours(length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows and the sum of the previous, current and next symbol modulo 4. Both ends have no answer."""
    ids = torch.randint(4, (size, length), generator=draw)
    wanted = (ids.roll(1, 1) + ids + ids.roll(-1, 1)) % 4
    wanted[:, 0] = wanted[:, -1] = UNASKED
    return ids, wanted


def running(length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows and the sum of all symbols so far modulo 3."""
    ids = torch.randint(3, (size, length), generator=draw)
    return ids, ids.cumsum(1) % 3


Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
TASKS: dict[str, tuple[Draw, int, int]] = {
    "recall": (recall, KEYS * VALUES + 1 + KEYS, VALUES),
    "neighbours": (neighbours, 4, 4),
    "running": (running, 3, 3),
}
"""Generator of rows and answers, number of ids, number of answers."""


def quality(way: str, task: str, settings: Settings, seed: int) -> float:
    """Train a model and return its accuracy."""
    rows, ids, answers = TASKS[task]
    torch.manual_seed(seed)
    mixed = within(way, settings)
    model = nn.Sequential(nn.Embedding(ids, mixed.width), mixed, nn.Linear(mixed.width, answers))

    def loss(draw: torch.Generator) -> Tensor:
        inputs, wanted = rows(settings.length, settings.batch, draw)
        return F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten(), ignore_index=UNASKED)

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    inputs, wanted = rows(settings.length, settings.tested, torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return (model(inputs).argmax(-1) == wanted)[wanted != UNASKED].float().mean().item()


def seconds(length: int, settings: Settings) -> dict[str, float]:
    """Return the seconds of a training step (forward and backward) of each model: the median of interleaved rounds."""
    models = {way: within(way, settings) for way in WAYS}
    rows = {way: torch.randn(max(1, settings.tokens // length), length, models[way].width) for way in WAYS}

    def step(way: str) -> None:
        models[way](rows[way]).square().mean().backward()
        models[way].zero_grad()

    return interleaved_times({way: partial(step, way) for way in WAYS}, settings.rounds)


def sizes(width: int) -> dict[str, int]:
    """Return the number of parameters of one layer."""
    return {
        "attention, with feed-forward": parameters(SelfAttention(width, 1)),
        "attention alone": parameters(MultiHeadAttention(width, 4)),
        "recurrence, LSTM": parameters(Recurrent(width, 1, cell="lstm")),
        "recurrence, GRU": parameters(Recurrent(width, 1)),
        "convolution of 5": parameters(Convolution(width, 1)),
        "convolution of 3": parameters(Convolution(width, 1, kernel=3)),
    }


def judge(
    layer: Mapping[str, int],
    times: Mapping[int, Sequence[Mapping[str, float]]],
    shares: Mapping[str, Mapping[str, Sequence[float]]],
) -> str:
    """Return the verdict from parameters per model, seconds by length, and accuracies by task, model and seed."""
    block, alone = layer["attention, with feed-forward"], layer["attention alone"]
    others = {name: size for name, size in layer.items() if not name.startswith("attention")}
    low, high = min(others.values()), max(others.values())
    ratios = {
        other: {length: spread([one["attention"] / one[other] for one in runs])[0] for length, runs in times.items()}
        for other in WAYS[1:]
    }
    short, long = min(times), max(times)
    parts = [
        (
            block <= low,
            f"a layer has {block:,} parameters ({alone:,} of them attention), one of the others {low:,} to {high:,}",
        ),
        (
            max(ratios["recurrence"].values()) < 1,
            "its step took "
            + " and ".join(f"{ratios[other][short]:.2g} of the time of {other}" for other in ratios)
            + f" at length {short}, "
            + " and ".join(f"{ratios[other][long]:.2g}" for other in ratios)
            + f" at {long}",
        ),
    ]
    for task, ways in shares.items():
        best = not any(leads(ways[other], ways["attention"]) for other in WAYS[1:])
        accuracies = ", ".join(f"{way} {spread(ways[way])[0]:.0%}" for way in WAYS)
        parts.append((best, f"{task}: {accuracies}"))
    return verdict(parts)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("advantages", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    layer = sizes(settings.wide)
    times = {
        length: [
            store.measure(f"seconds, length {length}, {seed}", partial(seconds, length, settings))
            for seed in claim.seeds
        ]
        for length in settings.lengths
    }
    shares = {
        task: {
            way: [
                store.measure(f"{task}, {way}, seed {seed}", partial(quality, way, task, settings, seed))
                for seed in claim.seeds
            ]
            for way in WAYS
        }
        for task in TASKS
    }
    print(f"parameters of a layer of width {settings.wide}")
    for name, size in layer.items():
        print(f"  {name:<30}{size:>10,}")
    budgets = {way: within(way, settings) for way in WAYS}
    print(f"{'ms per step at length':<24}" + "".join(f"{length:>14}" for length in settings.lengths) + "    parameters")
    for way in WAYS:
        runs = [format_mean([one[way] for one in times[length]], times=1000) for length in settings.lengths]
        print(f"{way:<24}" + "".join(f"{run:>14}" for run in runs) + f"{parameters(budgets[way]):>14,}")
    print(f"{'accuracy, %':<24}" + "".join(f"{task:>14}" for task in TASKS))
    for way in WAYS:
        print(f"{way:<24}" + "".join(f"{format_mean(shares[task][way], times=100):>14}" for task in TASKS))
    _draw(claim, settings, layer, times, shares)
    print(judge(layer, times, shares))
    print(claim.out / "figure.png")
    return 0


def _draw(claim: Claim, settings: Settings, layer: Mapping[str, int], times: Any, shares: Any) -> None:
    with figure(claim.out / "figure.png", 3, (5.0, 3.8)) as (left, middle, right):
        names = list(layer)[::-1]
        left.barh(names, [layer[name] / 1000 for name in names], color=[_colour(name) for name in names])
        left.set(xlabel="parameters, thousands", title=f"one layer of width {settings.wide}")
        middle.set_xscale("log", base=2)
        middle.set_yscale("log")
        middle.set(xlabel="sequence length", ylabel="ms per training step", title="equal parameters and tokens")
        taken = {way: [[1000 * one[way] for one in times[at]] for at in settings.lengths] for way in WAYS}
        values = [value for runs in taken.values() for at in runs for value in at]
        middle.set_ylim(min(values) / 2, max(values) * 2)
        middle.set_xlim(settings.lengths[0] / 1.2, settings.lengths[-1] * 12)
        middle.set_xticks(settings.lengths, [str(length) for length in settings.lengths])
        lines(middle, settings.lengths, taken)
        bars = [(f"{task}: {way}", percent([shares[task][way]])[0]) for task in TASKS for way in WAYS][::-1]
        means, deviations = zip(*(spread(run) for _, run in bars), strict=True)
        right.barh([name for name, _ in bars], means, xerr=deviations, color=[_colour(name) for name, _ in bars])
        right.set(xlabel="accuracy, %", xlim=(0, 104), title="equal parameters and steps")


def _colour(name: str) -> str:
    """Return the colour that `lines` gives to the model of that name."""
    return next(f"C{number}" for number, way in enumerate(WAYS) if way in name)
