"""Cues: average, max and fully connected pooling against attention, with and without a query that decides the answer.

Claim ("Attention cues"): if only nonvolitional cues matter, a fully connected layer or even max or average pooling is
enough, but these cannot adapt to the input. The volitional cue, the query, is what distinguishes attention. Its example
is a desk with a newspaper, a paper, a red cup of coffee, a notebook and a book: the cup attracts attention because it
is red, the book because the person wants to read.

Objects on a desk have a kind, a redness and a text. In the salience task the answer is the text on the red object, in
the wish task the text on the requested object. All four models read the same entries and the wish, but only attention
uses it before pooling; the others use it after. They have at least as many parameters as attention. Finally, the
example desk is given to the fully connected pooling trained on salience, and to the attention trained on wishes.
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
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._learn import learn, lines, verdict

NUMBER = 6
POOLS = ("average", "max", "fully connected", "attention")
TASKS = ("salience", "wish")
DESK = ("newspaper", "paper", "coffee", "notebook", "book")
"""The first kinds of objects."""
CUP, BOOK = DESK.index("coffee"), DESK.index("book")
MARGIN = 0.05
"""Difference of accuracies that counts as different."""
Scores = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""Accuracies by task, pooling, number of objects and seed."""


@dataclass(frozen=True)
class Settings:
    kinds: int = 40
    written: int = 8
    """Number of different texts."""
    sizes: tuple[int, ...] = (5, 15, 40)
    """Number of objects on a desk."""
    width: int = 32
    steps: int = 1000
    batch: int = 64
    rate: float = 5e-3
    tested: int = 2000


QUICK = Settings(sizes=(5, 8), width=8, steps=10, batch=8, tested=50)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("cues", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    scores: dict[str, dict[str, list[list[float]]]] = {task: {pool: [] for pool in POOLS} for task in TASKS}
    weights_by_model: dict[str, list[list[float]]] = {}
    for task, pool, size in itertools.product(TASKS, POOLS, settings.sizes):
        seen = partial(measure, task, pool, size, settings)
        runs = [store.measure(f"{task}, {pool}, {size} things, seed {s}", partial(seen, s)) for s in claim.seeds]
        scores[task][pool].append([run["right"] for run in runs])
        if size == settings.sizes[0] and runs[0]["looks"]:
            weights_by_model[f"{task}, {pool}"] = [run["looks"] for run in runs]
    _print(scores, weights_by_model, settings)
    _draw(claim, scores, weights_by_model, settings)
    print(judge(scores, weights_by_model, settings.sizes))
    print(claim.out / "figure.png")
    return 0


def desks(count: int, size: int, task: str, settings: Settings, draw: torch.Generator) -> tuple[Tensor, ...]:
    """Return kinds, redness and texts, (count, size) each, and the requested kind and the answer, (count,) each.

    Kinds are distinct. One object is red (0.8 to 1), the others are not (0 to 0.2).
    """
    kinds = torch.rand(count, settings.kinds, generator=draw).argsort(-1)[:, :size]
    written = torch.randint(settings.written, (count, size), generator=draw)
    red, wished = (torch.randint(size, (count, 1), generator=draw) for _ in range(2))
    redness = 0.2 * torch.rand(count, size, generator=draw)
    redness = redness.scatter_add(1, red, torch.full((count, 1), 0.8))
    index = red if task == "salience" else wished
    return kinds, redness, written, kinds.gather(1, wished)[:, 0], written.gather(1, index)[:, 0]


class DeskReader(nn.Module):
    """Maps a desk and a wish to logits (B, written).

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

    def object_weights(self, kinds: Tensor, redness: Tensor, written: Tensor, wished: Tensor) -> list[float]:
        """Return the mean weight of each object, or an empty list for pooling without weights."""
        entries = self.entries(kinds, redness, written)
        if isinstance(self.pool, AttentionPooling):
            _, weights = self.pool(self.wish(wished).unsqueeze(1), entries, return_map=True)
        elif isinstance(self.pool, FullyConnectedPooling):
            _, weights = self.pool(entries, return_map=True)
        else:
            return []
        return weights.dense()[:, 0].mean(0).tolist()


def build_model(pool: str, settings: Settings) -> DeskReader:
    """Return a model with at least as many parameters as attention. The width of its last layers is increased."""
    hidden = 2 * settings.width
    budget = size_of(DeskReader("attention", settings, hidden))
    while size_of(model := DeskReader(pool, settings, hidden)) < budget:
        hidden += 1
    return model


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure(task: str, pool: str, size: int, settings: Settings, seed: int) -> dict[str, Any]:
    """Train a model and return its accuracy and its weights of the objects on the example desk."""
    torch.manual_seed(seed)
    model = build_model(pool, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *inputs, answer = desks(settings.batch, size, task, settings, draw)
        return F.cross_entropy(model(*inputs), answer)

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    *inputs, answer = desks(settings.tested, size, task, settings, draw)
    with torch.no_grad():
        right = (model(*inputs).argmax(-1) == answer).float().mean().item()
        return {"right": right, "looks": model.object_weights(*the_desk(settings, draw))}


def the_desk(settings: Settings, draw: torch.Generator, count: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the example desk with random texts and the wish to read a book."""
    kinds = torch.arange(len(DESK)).expand(count, -1)
    redness = torch.where(kinds == CUP, 0.9, 0.1)
    return kinds, redness, torch.randint(settings.written, kinds.shape, generator=draw), torch.full((count,), BOOK)


def judge(scores: Scores, weights_by_model: Mapping[str, Sequence[Sequence[float]]], sizes: Sequence[int]) -> str:
    """Return the verdict: whether queries distinguish attention, and which object on the desk gets most weight."""
    parts = []
    last = {task: {pool: spread(scores[task][pool][-1])[0] for pool in POOLS} for task in TASKS}
    low, high = (pick(last["salience"], key=lambda p: last["salience"][p]) for pick in (min, max))
    apart = last["salience"][high] - last["salience"][low]
    ends = f"{low} {100 * last['salience'][low]:.0f} %, {high} {100 * last['salience'][high]:.0f} %"
    similar = (
        f"for salience among {sizes[-1]} objects, the poolings {'are similar' if apart < MARGIN else 'differ'} ({ends})"
    )
    parts.append((apart < MARGIN, similar))
    for index in dict.fromkeys((0, len(sizes) - 1)):
        means = {pool: spread(scores["wish"][pool][index])[0] for pool in POOLS}
        other = max(POOLS[:-1], key=lambda pool: means[pool])
        ahead = means["attention"] - means[other] >= MARGIN
        parts.append(
            (
                ahead,
                f"for a wish among {sizes[index]} objects, attention is {'ahead' if ahead else 'not ahead'} "
                f"({100 * means['attention']:.0f} %, {other} {100 * means[other]:.0f} %)",
            )
        )
    for key, target, name in (
        ("salience, fully connected", CUP, "salience"),
        ("wish, attention", BOOK, "the wish to read"),
    ):
        weights = [spread(seeds)[0] for seeds in zip(*weights_by_model[key], strict=True)]
        first = max(range(len(DESK)), key=lambda index: weights[index])
        parts.append((first == target, f"{name} selects the {DESK[first]} ({100 * weights[first]:.0f} % of weight)"))
    return verdict(parts)


def _print(scores: Scores, weights_by_model: Mapping[str, Sequence[Sequence[float]]], settings: Settings) -> None:
    for task in TASKS:
        print(f"{task + ': accuracy, %, of objects':<34}" + "".join(f"{size:>14}" for size in settings.sizes))
        for pool in POOLS:
            row = "".join(f"{format_mean(at, times=100):>14}" for at in scores[task][pool])
            print(f"{pool:<34}{row}   {size_of(build_model(pool, settings)):,} parameters")
    print(f"{'weights on the desk, %':<34}" + "".join(f"{name:>14}" for name in DESK))
    for name, seeds in weights_by_model.items():
        print(f"{name:<34}" + "".join(f"{format_mean(of, times=100):>14}" for of in zip(*seeds, strict=True)))


def _draw(
    claim: Claim, scores: Scores, weights_by_model: Mapping[str, Sequence[Sequence[float]]], settings: Settings
) -> None:
    titles = {"salience": "answer: the salient object", "wish": "answer: the requested object"}
    with figure(claim.out / "figure.png", 3, (4.4, 3.4)) as (*panels, desk):
        for axes, task in zip(panels, TASKS, strict=True):
            axes.set(title=titles[task], xlabel="objects on the desk", ylabel="accuracy, %", ylim=(0, 104))
            axes.set_xlim(0, settings.sizes[-1] * 1.6)
            lines(axes, settings.sizes, {p: [[100 * v for v in at] for at in scores[task][p]] for p in POOLS})
            axes.set_xticks(settings.sizes)
        labels = {
            "salience, fully connected": "salience\n(fully connected)",
            "wish, attention": "the wish to read\n(attention)",
        }
        for number, (key, label) in enumerate(labels.items()):
            for index, weights in enumerate(zip(*weights_by_model[key], strict=True)):
                mean, deviation = spread([100 * weight for weight in weights])
                at = index + 0.4 * number - 0.2
                desk.bar(at, mean, yerr=deviation, width=0.38, color=("C3", "C0")[number], alpha=0.6)
                if index == (CUP, BOOK)[number]:
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
        desk.set(title="the example desk", ylabel="weight, %", ylim=(0, 130), yticks=(0, 25, 50, 75, 100))
