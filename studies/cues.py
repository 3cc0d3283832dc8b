"""Cues: average, max and fully connected pooling against attention, where the answer depends on a query and where not.

The claim, from the note on cues: with non-volitional cues alone, what stands out, "a fully connected layer, or even max
or average pooling" will do, but these "cannot adjust to the input"; what sets attention apart from them is the
volitional cue, the query. Its example is a desk with a newspaper, a paper, a red cup of coffee, a notebook and a book:
the cup draws the eye because it is red, the book because one wishes to read.

Things on a desk have a kind, a redness and something written on them. In one task the answer is what is written on the
red thing, in the other what is written on the thing that is wished for. The four pools read the same entries; all are
told the wish, but only attention before it pools: the others after. They are given as many parameters as attention at
least. Then the desk itself is looked at by the fully connected pool that learnt what stands out, and by the attention
that learnt to follow a wish.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers import AttentionPooling, AveragePooling, FullyConnectedPooling, MaxPooling
from studies._claim import Claim, Kept, figure, spread, told
from studies._learn import learn, lines, verdict

NUMBER = 6
POOLS = ("average", "max", "fully connected", "attention")
TASKS = ("salience", "wish")
DESK = ("newspaper", "paper", "coffee", "notebook", "book")
"""The first kinds of things."""
CUP, BOOK = DESK.index("coffee"), DESK.index("book")
MARGIN = 0.05
"""How far apart, in share of answers, counts as apart."""
Scores = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""By task, by pool, of each size of desk, of each seed."""


@dataclass(frozen=True)
class Settings:
    kinds: int = 40
    written: int = 8
    """Different things that can be written."""
    sizes: tuple[int, ...] = (5, 15, 40)
    """Things on a desk."""
    width: int = 32
    steps: int = 1000
    batch: int = 64
    rate: float = 5e-3
    tested: int = 2000


QUICK = Settings(sizes=(5, 8), width=8, steps=10, batch=8, tested=50)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.of("cues", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    kept = Kept(claim.out, vars(settings))
    scores: dict[str, dict[str, list[list[float]]]] = {task: {pool: [] for pool in POOLS} for task in TASKS}
    looks: dict[str, list[list[float]]] = {}
    for task, pool, size in itertools.product(TASKS, POOLS, settings.sizes):
        seen = partial(measure, task, pool, size, settings)
        runs = [kept.of(f"{task}, {pool}, {size} things, seed {s}", partial(seen, s)) for s in claim.seeds]
        scores[task][pool].append([run["right"] for run in runs])
        if size == settings.sizes[0] and runs[0]["looks"]:
            looks[f"{task}, {pool}"] = [run["looks"] for run in runs]
    _print(scores, looks, settings)
    _draw(claim, scores, looks, settings)
    print(judge(scores, looks, settings.sizes))
    print(claim.out / "figure.png")
    return 0


def desks(count: int, size: int, task: str, settings: Settings, draw: torch.Generator) -> tuple[Tensor, ...]:
    """Kinds, redness, what is written, (count, size) each, the kind that is wished for, and the answer, (count,) each.

    Kinds differ from each other. One thing is red (0.8 to 1), the others are not (0 to 0.2).
    """
    kinds = torch.rand(count, settings.kinds, generator=draw).argsort(-1)[:, :size]
    written = torch.randint(settings.written, (count, size), generator=draw)
    red, wished = (torch.randint(size, (count, 1), generator=draw) for _ in range(2))
    redness = 0.2 * torch.rand(count, size, generator=draw)
    redness = redness.scatter_add(1, red, torch.full((count, 1), 0.8))
    place = red if task == "salience" else wished
    return kinds, redness, written, kinds.gather(1, wished)[:, 0], written.gather(1, place)[:, 0]


class Onlooker(nn.Module):
    """A desk and a wish → logits (B, written).

    entries = perceptron(kind + redness · r + written),   pooled = pool(entries),   logits = perceptron([pooled; wish])
    """

    def __init__(self, pool: str, settings: Settings, hidden: int) -> None:
        super().__init__()
        width = settings.width
        self.kind, self.wish = (nn.Embedding(settings.kinds, width) for _ in range(2))
        self.red = nn.Parameter(torch.randn(width))
        self.written = nn.Embedding(settings.written, width)
        self.entry = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        pools: dict[str, Callable[[], nn.Module]] = {
            "average": AveragePooling,
            "max": MaxPooling,
            "fully connected": lambda: FullyConnectedPooling(width),
            "attention": lambda: AttentionPooling(width, width, width, bias=True),
        }
        self.pool = pools[pool]()
        self.answer = nn.Sequential(nn.Linear(2 * width, hidden), nn.ReLU(), nn.Linear(hidden, settings.written))

    def forward(self, kinds: Tensor, redness: Tensor, written: Tensor, wished: Tensor) -> Tensor:
        entries, wish = self.entries(kinds, redness, written), self.wish(wished)  # (B, T, W), (B, W)
        if isinstance(self.pool, AttentionPooling):
            pooled = self.pool(wish.unsqueeze(1), entries).squeeze(1)  # (B, W)
        else:
            pooled = self.pool(entries)  # (B, W)
        return self.answer(torch.cat((pooled, wish), -1))

    def entries(self, kinds: Tensor, redness: Tensor, written: Tensor) -> Tensor:
        return self.entry(self.kind(kinds) + redness.unsqueeze(-1) * self.red + self.written(written))

    def looks(self, kinds: Tensor, redness: Tensor, written: Tensor, wished: Tensor) -> list[float]:
        """The mean weight of each thing; of a pool without weights that depend on anything, nothing."""
        entries = self.entries(kinds, redness, written)
        if isinstance(self.pool, AttentionPooling):
            _, weights = self.pool(self.wish(wished).unsqueeze(1), entries, return_map=True)
        elif isinstance(self.pool, FullyConnectedPooling):
            _, weights = self.pool(entries, return_map=True)
        else:
            return []
        return weights.dense()[:, 0].mean(0).tolist()


def onlooker(pool: str, settings: Settings) -> Onlooker:
    """With as many parameters as attention at least: the last perceptron is widened until it has."""
    hidden = 2 * settings.width
    budget = size_of(Onlooker("attention", settings, hidden))
    while size_of(model := Onlooker(pool, settings, hidden)) < budget:
        hidden += 1
    return model


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure(task: str, pool: str, size: int, settings: Settings, seed: int) -> dict[str, Any]:
    """The share of right answers after training, and the weights of the things on the desk."""
    torch.manual_seed(seed)
    model = onlooker(pool, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *given, answer = desks(settings.batch, size, task, settings, draw)
        return F.cross_entropy(model(*given), answer)

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    *given, answer = desks(settings.tested, size, task, settings, draw)
    with torch.no_grad():
        right = (model(*given).argmax(-1) == answer).float().mean().item()
        return {"right": right, "looks": model.looks(*the_desk(settings, draw))}


def the_desk(settings: Settings, draw: torch.Generator, count: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The desk of the note, with anything written on its things, in the eyes of who wishes to read."""
    kinds = torch.arange(len(DESK)).expand(count, -1)
    redness = torch.where(kinds == CUP, 0.9, 0.1)
    return kinds, redness, torch.randint(settings.written, kinds.shape, generator=draw), torch.full((count,), BOOK)


def judge(scores: Scores, looks: Mapping[str, Sequence[Sequence[float]]], sizes: Sequence[int]) -> str:
    """Whether a query is what sets attention apart, and where the eye goes on the desk."""
    parts = []
    last = {task: {pool: spread(scores[task][pool][-1])[0] for pool in POOLS} for task in TASKS}
    low, high = (pick(last["salience"], key=lambda p: last["salience"][p]) for pick in (min, max))
    apart = last["salience"][high] - last["salience"][low]
    ends = f"{low} {100 * last['salience'][low]:.0f} %, {high} {100 * last['salience'][high]:.0f} %"
    alike = (
        f"for what stands out among {sizes[-1]} things the pools {'are alike' if apart < MARGIN else 'differ'} ({ends})"
    )
    parts.append((apart < MARGIN, alike))
    for place in dict.fromkeys((0, len(sizes) - 1)):
        means = {pool: spread(scores["wish"][pool][place])[0] for pool in POOLS}
        other = max(POOLS[:-1], key=lambda pool: means[pool])
        ahead = means["attention"] - means[other] >= MARGIN
        parts.append(
            (
                ahead,
                f"for what is wished for among {sizes[place]} attention is {'ahead' if ahead else 'not ahead'} "
                f"({100 * means['attention']:.0f} %, {other} {100 * means[other]:.0f} %)",
            )
        )
    for key, thing, name in (
        ("salience, fully connected", CUP, "salience"),
        ("wish, attention", BOOK, "the wish to read"),
    ):
        weights = [spread(of)[0] for of in zip(*looks[key], strict=True)]
        first = max(range(len(DESK)), key=lambda index: weights[index])
        parts.append((first == thing, f"{name} picks the {DESK[first]} ({100 * weights[first]:.0f} % of the weight)"))
    return verdict(parts)


def _print(scores: Scores, looks: Mapping[str, Sequence[Sequence[float]]], settings: Settings) -> None:
    for task in TASKS:
        print(f"{task + ': right, %, of things':<34}" + "".join(f"{size:>14}" for size in settings.sizes))
        for pool in POOLS:
            row = "".join(f"{told(at, times=100):>14}" for at in scores[task][pool])
            print(f"{pool:<34}{row}   {size_of(onlooker(pool, settings)):,} parameters")
    print(f"{'weights on the desk, %':<34}" + "".join(f"{thing:>14}" for thing in DESK))
    for name, seeds in looks.items():
        print(f"{name:<34}" + "".join(f"{told(of, times=100):>14}" for of in zip(*seeds, strict=True)))


def _draw(claim: Claim, scores: Scores, looks: Mapping[str, Sequence[Sequence[float]]], settings: Settings) -> None:
    titles = {"salience": "what stands out", "wish": "what is wished for"}
    with figure(claim.out / "figure.png", 3, (4.4, 3.4)) as (*panels, desk):
        for axes, task in zip(panels, TASKS, strict=True):
            axes.set(title=titles[task], xlabel="things on the desk", ylabel="right answers, %", ylim=(0, 104))
            axes.set_xlim(0, settings.sizes[-1] * 1.6)
            lines(axes, settings.sizes, {p: [[100 * v for v in at] for at in scores[task][p]] for p in POOLS})
            axes.set_xticks(settings.sizes)
        shown = {
            "salience, fully connected": "salience\n(fully connected)",
            "wish, attention": "the wish to read\n(attention)",
        }
        for number, (key, label) in enumerate(shown.items()):
            for place, weights in enumerate(zip(*looks[key], strict=True)):
                mean, deviation = spread([100 * weight for weight in weights])
                at = place + 0.4 * number - 0.2
                desk.bar(at, mean, yerr=deviation, width=0.38, color=("C3", "C0")[number], alpha=0.6)
                if place == (CUP, BOOK)[number]:
                    desk.annotate(
                        label,
                        (at, mean + deviation),
                        (0, 4),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        color=("C3", "C0")[number],
                    )
        desk.set_xticks(range(len(DESK)), DESK, rotation=20)
        desk.set(title="the desk", ylabel="weight, %", ylim=(0, 130), yticks=(0, 25, 50, 75, 100))
