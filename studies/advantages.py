"""Three advantages: parameters, speed and quality of self-attention against recurrence and convolution.

The claim, from the notes: attention has three advantages: "few parameters" (less complex than CNN and RNN, fewer
parameters, less computing), "fast" (no step waits for the one before, so that it runs in parallel as a CNN does) and
"works well" (what is far away is not weakened: it picks out what matters from a long text) (the note on the nature of
attention).

Parameters: of one layer of each way, at one width. Speed: seconds of one step of training, at as many parameters and
tokens, by length. Quality: three tasks at as many parameters and steps. Recall asks for values that stood far before;
neighbours asks for the sum of three symbols side by side, modulo 4; running asks for the sum of all symbols so far,
modulo 3. The three ways are those of `studies/_sequence_models.py`.
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
from studies._claim import Claim, Kept, figure, spread, told
from studies._compare import leads, parameters, percent
from studies._learn import in_turn, learn, lines, verdict
from studies._sequence_models import Convolution, Recurrent, SelfAttention

NUMBER = 11
WAYS = ("attention", "recurrence", "convolution")
KEYS = VALUES = 8
"""Of recall."""
UNASKED = -100
"""Marks places without an answer, as `cross_entropy` wants it."""


@dataclass(frozen=True)
class Settings:
    wide: int = 128
    """At which parameters are counted."""
    budget: int = 100_000
    """Parameters of each way, where speed and quality are compared."""
    layers: tuple[int, int, int] = (2, 2, 5)
    """Of attention, recurrence and convolution, which sees a row of 64 only from five layers on."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    tokens: int = 2048
    """Of a step that is timed: the longer the rows, the fewer."""
    rounds: int = 7
    length: int = 64
    """Of the rows of all three tasks."""
    steps: int = 400
    batch: int = 32
    rate: float = 3e-3
    tested: int = 200
    """Rows of each task."""


QUICK = Settings(16, 3000, lengths=(4, 8), tokens=32, rounds=1, length=20, steps=4, batch=4, tested=8)


def mixer(way: str, width: int, layers: int) -> Any:
    if way == "attention":
        return SelfAttention(width, layers)
    return Recurrent(width, layers) if way == "recurrence" else Convolution(width, layers)


def within(way: str, settings: Settings) -> Any:
    """The way at the width whose parameters are nearest to the budget.

    >>> [round(parameters(within(way, Settings())) / 1000) for way in WAYS]
    [100, 99, 103]
    """
    layers = settings.layers[WAYS.index(way)]

    def size(width: int) -> int:
        with torch.device("meta"):  # counted, not made
            return parameters(mixer(way, width, layers))

    widths = range(4, 1024, 4)  # attention has four heads
    first = max(1, bisect_left(widths, settings.budget, key=size))
    return mixer(way, min(widths[first - 1 : first + 1], key=lambda width: abs(size(width) - settings.budget)), layers)


def recall(length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Keys with values in the first half, nothing, and at the end the keys again: which value had each?

    ids: key · 8 + value of an item, 64 for nothing, 65 + key of a question.
    """
    items = torch.rand(size, KEYS, generator=draw).argsort(-1)  # (B, 8): keys, in the order of their places
    values = torch.randint(VALUES, (size, KEYS), generator=draw)  # of key 0, 1, …
    ids = torch.full((size, length), KEYS * VALUES)
    half = max(length // 2, KEYS)
    places = torch.rand(size, half, generator=draw).argsort(-1)[:, :KEYS]
    ids.scatter_(1, places, items * VALUES + values.gather(1, items))
    asked = torch.rand(size, KEYS, generator=draw).argsort(-1)
    ids[:, -KEYS:] = KEYS * VALUES + 1 + asked
    wanted = torch.full((size, length), UNASKED)
    wanted[:, -KEYS:] = values.gather(1, asked)
    return ids, wanted


def neighbours(length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """The sum of the symbol before, here and after, modulo 4; nothing at both ends."""
    ids = torch.randint(4, (size, length), generator=draw)
    wanted = (ids.roll(1, 1) + ids + ids.roll(-1, 1)) % 4
    wanted[:, 0] = wanted[:, -1] = UNASKED
    return ids, wanted


def running(length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """The sum of all symbols up to here, modulo 3."""
    ids = torch.randint(3, (size, length), generator=draw)
    return ids, ids.cumsum(1) % 3


Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
TASKS: dict[str, tuple[Draw, int, int]] = {
    "recall": (recall, KEYS * VALUES + 1 + KEYS, VALUES),
    "neighbours": (neighbours, 4, 4),
    "running": (running, 3, 3),
}
"""Rows and answers, number of ids, number of answers."""


def quality(way: str, task: str, settings: Settings, seed: int) -> float:
    """Train, and the share of right answers."""
    rows, ids, answers = TASKS[task]
    torch.manual_seed(seed)
    mixed = within(way, settings)
    model = nn.Sequential(nn.Embedding(ids, mixed.width), mixed, nn.Linear(mixed.width, answers))

    def loss(draw: torch.Generator) -> Tensor:
        given, wanted = rows(settings.length, settings.batch, draw)
        return F.cross_entropy(model(given).flatten(0, 1), wanted.flatten(), ignore_index=UNASKED)

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    given, wanted = rows(settings.length, settings.tested, torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return (model(given).argmax(-1) == wanted)[wanted != UNASKED].float().mean().item()


def seconds(length: int, settings: Settings) -> dict[str, float]:
    """Of one step of training, forwards and backwards: median of several rounds, the ways in turn."""
    models = {way: within(way, settings) for way in WAYS}
    rows = {way: torch.randn(max(1, settings.tokens // length), length, models[way].width) for way in WAYS}

    def step(way: str) -> None:
        models[way](rows[way]).square().mean().backward()
        models[way].zero_grad()

    return in_turn({way: partial(step, way) for way in WAYS}, settings.rounds)


def sizes(width: int) -> dict[str, int]:
    """Parameters of one layer of a width."""
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
    """The sentence: parameters by way, seconds by length, repetition and way, right answers by task, way and seed."""
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
        found = ", ".join(f"{way} {spread(ways[way])[0]:.0%}" for way in WAYS)
        parts.append((best, f"{task}: {found}"))
    return verdict(parts)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.of("advantages", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    kept = Kept(claim.out, vars(settings))
    layer = sizes(settings.wide)
    times = {
        length: [
            kept.of(f"seconds, length {length}, {seed}", partial(seconds, length, settings)) for seed in claim.seeds
        ]
        for length in settings.lengths
    }
    shares = {
        task: {
            way: [
                kept.of(f"{task}, {way}, seed {seed}", partial(quality, way, task, settings, seed))
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
    print(
        f"{'ms of a step at length':<24}" + "".join(f"{length:>14}" for length in settings.lengths) + "    parameters"
    )
    for way in WAYS:
        runs = [told([one[way] for one in times[length]], times=1000) for length in settings.lengths]
        print(f"{way:<24}" + "".join(f"{run:>14}" for run in runs) + f"{parameters(budgets[way]):>14,}")
    print(f"{'right answers, %':<24}" + "".join(f"{task:>14}" for task in TASKS))
    for way in WAYS:
        print(f"{way:<24}" + "".join(f"{told(shares[task][way], times=100):>14}" for task in TASKS))
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
        middle.set(xlabel="length of a row", ylabel="ms of a step of training", title="as many parameters and tokens")
        taken = {way: [[1000 * one[way] for one in times[at]] for at in settings.lengths] for way in WAYS}
        values = [value for runs in taken.values() for at in runs for value in at]
        middle.set_ylim(min(values) / 2, max(values) * 2)
        middle.set_xlim(settings.lengths[0] / 1.2, settings.lengths[-1] * 12)
        middle.set_xticks(settings.lengths, [str(length) for length in settings.lengths])
        lines(middle, settings.lengths, taken)
        bars = [(f"{task}: {way}", percent([shares[task][way]])[0]) for task in TASKS for way in WAYS][::-1]
        means, deviations = zip(*(spread(run) for _, run in bars), strict=True)
        right.barh([name for name, _ in bars], means, xerr=deviations, color=[_colour(name) for name, _ in bars])
        right.set(xlabel="right answers, %", xlim=(0, 104), title="as many parameters and steps")


def _colour(name: str) -> str:
    """That which `lines` gives to the way of that name."""
    return next(f"C{number}" for number, way in enumerate(WAYS) if way in name)
