"""Soft and hard attention: softmax weights against only the best key, with and without a gradient.

Claim ("Attention mechanism in flowcharts"): softmax attention is soft. With max, the context would be the vector of the
most relevant word alone. That may be worse, because some words are aligned with several words. More importantly, max
cannot be back-propagated through, while softmax can.

The input is a list of words with a number each, and a requested word. In the first task the word occurs once and its
number is the answer. In the second it occurs twice and the answer is the sum of both. Three models differ only in the
weighting: soft; hard with the true gradient of max, which is zero, so that queries and keys are not trained; and hard
with the gradient of the soft weights (straight-through, Bengio et al. 2013), as `weighting="hard"` implements it. The
study also reports how many contexts change when the query is moved by a thousandth of its length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend
from regard.layers import AttentionPooling
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._learn import learn, verdict

NUMBER = 5
MARGIN = 0.1
"""Difference of accuracies that counts as worse."""
FLAT = 0.1
"""Fraction of changed contexts below which an output is called flat."""
STEP = 1e-3
"""Length of the step of a query, relative to its length."""


def _cut(query: Tensor, key: Tensor, *rest: Any, **options: Any) -> Any:
    """Hard attention with the true gradient of max: none for queries and keys."""
    return attend(query.detach(), key.detach(), *rest, weighting="hard", **options)


WAYS: dict[str, Callable[..., Any]] = {
    "soft": attend,
    "hard, no gradient": _cut,
    "hard, straight-through": partial(attend, weighting="hard"),
}
TASKS = {"one": 1, "two": 2}
"""Number of occurrences of the requested word."""


@dataclass(frozen=True)
class Settings:
    words: int = 16
    among: int = 12
    numbers: int = 10
    width: int = 32
    steps: int = 2000
    batch: int = 64
    rate: float = 3e-3
    tested: int = 2000


QUICK = Settings(width=8, steps=20, batch=8, tested=50)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("soft_hard", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    results = {
        task: {
            way: [
                store.measure(f"{way}, {task}, seed {s}", partial(measure, way, task, settings, s)) for s in claim.seeds
            ]
            for way in WAYS
        }
        for task in TASKS
    }
    right = {task: {way: [seed["right"] for seed in of[way]] for way in WAYS} for task, of in results.items()}
    moved = {way: [seed["moved"] for seed in results["one"][way]] for way in WAYS}
    print(f"{'':<26}{'one key, %':>14}{'two keys, %':>14}{'changed contexts, %':>24}")
    for way in WAYS:
        print(
            f"{way:<26}{format_mean(right['one'][way], times=100):>14}{format_mean(right['two'][way], times=100):>14}"
            f"{format_mean(moved[way], times=100):>24}"
        )
    _draw(claim, right, settings)
    print(judge(right, moved))
    print(claim.out / "figure.png")
    return 0


def lists(count: int, times: int, settings: Settings, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the requested word (count,), words and numbers (count, among), and the sum of its numbers (count,).

    >>> asked, words, numbers, answer = lists(5, 2, Settings(), torch.Generator().manual_seed(0))
    >>> requested = words == asked[:, None]
    >>> bool(((numbers * requested).sum(-1) == answer).all()), requested.sum(-1).tolist()
    (True, [2, 2, 2, 2, 2])
    """
    asked = torch.randint(settings.words, (count, 1), generator=draw)
    others = torch.randint(1, settings.words, (count, settings.among), generator=draw)
    indices = torch.rand(count, settings.among, generator=draw).argsort(-1)[:, :times]
    words = ((asked + others) % settings.words).scatter(1, indices, asked.expand(-1, times))
    numbers = torch.randint(settings.numbers, words.shape, generator=draw)
    return asked[:, 0], words, numbers, numbers.gather(1, indices).sum(-1)


class Reader(nn.Module):
    """Maps the requested word (B,), words and numbers (B, T) to logits (B, sums).

    context = attention(query[asked], key[words], value[numbers]),   logits = perceptron(context)
    """

    def __init__(self, way: str, times: int, settings: Settings) -> None:
        super().__init__()
        width, sums = settings.width, times * (settings.numbers - 1) + 1
        self.query, self.key = (nn.Embedding(settings.words, width) for _ in range(2))
        self.value = nn.Embedding(settings.numbers, width)
        self.pool = AttentionPooling(width, width, width, attend=WAYS[way])
        self.answer = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, sums))

    def forward(self, asked: Tensor, words: Tensor, numbers: Tensor) -> Tensor:
        return self.answer(self.context(self.query(asked), words, numbers))

    def context(self, query: Tensor, words: Tensor, numbers: Tensor) -> Tensor:
        """Return contexts (B, width) for queries (B, width)."""
        return self.pool(query.unsqueeze(1), self.key(words), self.value(numbers)).squeeze(1)


def measure(way: str, task: str, settings: Settings, seed: int) -> dict[str, float]:
    """Train a model; return its accuracy and the fraction of contexts that change with a small step of the query."""
    torch.manual_seed(seed)
    times = TASKS[task]
    model = Reader(way, times, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *inputs, answer = lists(settings.batch, times, settings, draw)
        return F.cross_entropy(model(*inputs), answer)

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    asked, words, numbers, answer = lists(settings.tested, times, settings, draw)
    with torch.no_grad():
        right = model(asked, words, numbers).argmax(-1) == answer
        query = model.query(asked)
        step = torch.randn(query.shape, generator=draw)
        step *= STEP * query.norm(dim=-1, keepdim=True) / step.norm(dim=-1, keepdim=True)
        before, after = (model.context(q, words, numbers) for q in (query, query + step))
    return {"right": right.float().mean().item(), "moved": (before != after).any(-1).float().mean().item()}


def judge(right: Mapping[str, Mapping[str, Sequence[float]]], moved: Mapping[str, Sequence[float]]) -> str:
    """Return the verdict: whether hard attention is worse, and whether the missing gradient is the reason."""
    one, two = ({way: spread(right[task][way])[0] for way in WAYS} for task in TASKS)
    plain, through = "hard, no gradient", "hard, straight-through"
    if one["soft"] < 0.5:
        return verdict([(False, f"soft attention did not learn the task of one key ({100 * one['soft']:.0f} %)")])
    flat = max(spread(moved[way])[0] for way in (plain, through))
    without_gradient, straight_through = one["soft"] - one[plain], one["soft"] - one[through]
    worse = two["soft"] - two[through] >= MARGIN
    return verdict(
        [
            (flat < FLAT, f"a small step of the query changes {100 * flat:.1f} % of hard contexts"),
            (
                without_gradient >= MARGIN,
                f"without a gradient hard attention reaches {100 * one[plain]:.0f} % and soft "
                f"{100 * one['soft']:.0f} %",
            ),
            (
                worse,
                f"if two keys matter, hard reaches {100 * two[through]:.0f} % and soft {100 * two['soft']:.0f} %",
            ),
            (
                straight_through >= MARGIN,
                f"a straight-through gradient {'does not train' if straight_through >= MARGIN else 'trains'} it "
                f"({100 * one[through]:.0f} % if one key matters)",
            ),
        ]
    )


def _draw(claim: Claim, right: Mapping[str, Mapping[str, Sequence[float]]], settings: Settings) -> None:
    titles = {"one": "one key has the answer", "two": "two keys have the answer"}
    with figure(claim.out / "figure.png", 2, (4.2, 3.4)) as panels:
        for axes, task in zip(panels, TASKS, strict=True):
            for x, way in enumerate(WAYS):
                values = [100 * score for score in right[task][way]]
                mean, deviation = spread(values)
                axes.bar(x, mean, yerr=deviation, width=0.6, alpha=0.45, color=f"C{x}")
                axes.plot([x] * len(values), values, "o", color=f"C{x}", markersize=4)
            sums = TASKS[task] * (settings.numbers - 1) + 1
            axes.set_xticks(range(len(WAYS)), [way.replace(", ", ",\n") for way in WAYS])
            axes.set(title=titles[task], ylabel=f"accuracy, {sums} answers, % (dots: seeds)", ylim=(0, 104))
