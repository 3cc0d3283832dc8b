"""Scaling: weights, gradients and learning with dot products, scaled ones and cosines, as queries and keys get wider.

Claim ("Attention"): with the plain dot product, one very large score makes all other weights close to 0 after softmax,
and gradients vanish; therefore scaled dot products are used ("Attention mechanism": √d keeps gradients stable). Vaswani
et al. 2017, section 3.2.1, suspect the same: a sum of D products of unit variance has variance D.

The study has two parts. At initialization, queries and keys have unit variance; it measures the largest weight and the
norm of the gradient at a query's scores. The median over queries describes a typical query. The mean, reported as well,
is dominated by the few queries whose best keys are nearly tied. In training, embeddings of unit variance have to find
the key that belongs to a query, with the best of a few learning rates for each similarity and width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend
from regard.attention.similarity import SimilarityName
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._learn import learn, lines, verdict

NUMBER = 3
SIMILARITIES = ("dot", "scaled_dot", "cosine")
VANISHED = 0.1
"""Fraction of the narrowest width's gradient below which the widest's counts as vanished."""
SATURATED = 0.9
"""Mean largest weight from which a softmax counts as saturated."""
Values = Mapping[str, Sequence[Sequence[float]]]
"""Values by similarity, width and seed."""


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...] = (4, 16, 64, 256, 1024)
    keys: int = 64
    rows: int = 256
    """Number of queries that are measured at initialization."""
    words: int = 64
    """Number of different words in the training task."""
    among: int = 16
    """Number of pairs that a query chooses from."""
    answers: int = 8
    steps: int = 300
    batch: int = 64
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    tested: int = 2000


QUICK = Settings(widths=(4, 64), keys=16, rows=16, steps=20, batch=8, rates=(1e-2,), tested=50)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("scaling", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    start: dict[str, dict[str, list[list[float]]]] = {what: {} for what in ("weight", "median", "mean")}
    trained: dict[str, list[list[float]]] = {}
    for name in SIMILARITIES:
        values = [
            [store.measure(f"{name}, {w} wide, seed {s}", partial(at_start, name, w, settings, s)) for s in claim.seeds]
            for w in settings.widths
        ]
        for index, what in enumerate(start):
            start[what][name] = [[seed[index] for seed in at] for at in values]
        trained[name] = [_best(name, width, settings, claim, store) for width in settings.widths]
    _print(start, trained, settings)
    _draw(claim, start, trained, settings)
    print(judge(start, trained, settings.widths))
    print(claim.out / "figure.png")
    return 0


def at_start(name: str, width: int, settings: Settings, seed: int) -> tuple[float, float, float]:
    """Return the mean largest weight of a query, and the median and mean norm of the gradient at a query's scores.

    A float mask of zeros is added to the scores, so its gradient is theirs. The loss is a random direction of the
    context, so that the influence of each value has unit variance for every similarity and width.
    """
    draw = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(n, width, generator=draw) for n in (settings.rows, settings.keys))
    value, direction = (
        torch.randn(n, 16, generator=draw) / 2 for n in (settings.keys, settings.rows)
    )  # v·d: variance 1
    added = torch.zeros(settings.rows, settings.keys, requires_grad=True)
    context, weights = attend(query, key, value, added, similarity=cast(SimilarityName, name), return_map=True)
    (context * direction).sum().backward()
    assert added.grad is not None
    norms = added.grad.norm(dim=-1)  # (rows,)
    return weights.dense().amax(-1).mean().item(), norms.median().item(), norms.mean().item()


class Finder(nn.Module):
    """Maps pairs of a word and an answer, and the requested word, to logits of its answer.

    context = attend(query[asked], key[words], value[answers]),   logits = W · context
    """

    def __init__(self, name: str, width: int, settings: Settings) -> None:
        super().__init__()
        self.name = name
        self.query, self.key = (nn.Embedding(settings.words, width) for _ in range(2))  # unit variance
        self.value = nn.Embedding(settings.answers, 32)
        self.answer = nn.Linear(32, settings.answers)

    def forward(self, asked: Tensor, words: Tensor, answers: Tensor) -> Tensor:
        query = self.query(asked).unsqueeze(1)  # (B, 1, D)
        context = attend(
            query, self.key(words), self.value(answers), similarity=cast(SimilarityName, self.name)
        )  # (B, 1, 32)
        return self.answer(context.squeeze(1))


def pairs(count: int, settings: Settings, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the requested word (count,), words and answers (count, among), and the right answer (count,).

    >>> asked, words, answers, right = pairs(5, Settings(), torch.Generator().manual_seed(0))
    >>> bool((answers[words == asked[:, None]] == right).all())
    True
    """
    words = torch.rand(count, settings.words, generator=draw).argsort(-1)[:, : settings.among]
    answers = torch.randint(settings.answers, words.shape, generator=draw)
    index = torch.randint(settings.among, (count, 1), generator=draw)
    return words.gather(1, index)[:, 0], words, answers, answers.gather(1, index)[:, 0]


def trained_accuracy(name: str, width: int, rate: float, settings: Settings, seed: int) -> float:
    """Return the accuracy after training."""
    torch.manual_seed(seed)
    model = Finder(name, width, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *inputs, right = pairs(settings.batch, settings, draw)
        return F.cross_entropy(model(*inputs), right)

    learn(model, loss, steps=settings.steps, rate=rate, seed=seed)
    *inputs, right = pairs(settings.tested, settings, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return (model(*inputs).argmax(-1) == right).float().mean().item()


def _best(name: str, width: int, settings: Settings, claim: Claim, store: ResultStore) -> list[float]:
    """Return the accuracies of all seeds at the learning rate with the best mean."""
    tried = [
        [
            store.measure(
                f"{name}, {width} wide, rate {r}, seed {s}", partial(trained_accuracy, name, width, r, settings, s)
            )
            for s in claim.seeds
        ]
        for r in settings.rates
    ]
    return max(tried, key=lambda seeds: spread(seeds)[0])


def judge(start: Mapping[str, Values], trained: Values, widths: Sequence[int]) -> str:
    """Return the verdict: whether the plain dot product saturates and its gradient vanishes, and the others do not."""
    largest = {name: spread(start["weight"][name][-1])[0] for name in SIMILARITIES}
    left, mean = (
        {name: spread(start[what][name][-1])[0] / spread(start[what][name][0])[0] for name in SIMILARITIES}
        for what in ("median", "mean")
    )
    right = {name: spread(trained[name][-1]) for name in SIMILARITIES}

    def describe(name: str, label: str) -> str:
        return (
            f"{label} keep {left[name]:.2g} of a typical query's gradient ({mean[name]:.2g} of the mean; largest "
            f"weight {largest[name]:.2f})"
        )

    behind = right["scaled_dot"][0] - right["dot"][0]
    slow = behind > right["scaled_dot"][1] + right["dot"][1]
    word = "less" if slow else "no less"
    scores = f"{100 * right['dot'][0]:.0f} % against {100 * right['scaled_dot'][0]:.0f} %"
    return verdict(
        [
            (
                left["dot"] < VANISHED and largest["dot"] > SATURATED,
                f"from width {widths[0]} to {widths[-1]}, " + describe("dot", "plain dot products"),
            ),
            (left["scaled_dot"] >= VANISHED, describe("scaled_dot", "scaled ones")),
            (left["cosine"] >= VANISHED, describe("cosine", "cosines")),
            (
                slow,
                f"at width {widths[-1]}, plain dot products learn {word} than scaled ones ({scores})",
            ),
        ]
    )


def _print(start: Mapping[str, Values], trained: Values, settings: Settings) -> None:
    tables = (
        ("largest weight", start["weight"], 1),
        ("gradient, median", start["median"], 1),
        ("gradient, mean", start["mean"], 1),
        ("accuracy, %", trained, 100),
    )
    for title, values, times in tables:
        print(f"{title + ', width':<26}" + "".join(f"{width:>16}" for width in settings.widths))
        for name in SIMILARITIES:
            digits = 1 if times > 1 else 3
            print(f"{name:<26}" + "".join(f"{format_mean(at, digits, times):>16}" for at in values[name]))


def _draw(claim: Claim, start: Mapping[str, Values], trained: Values, settings: Settings) -> None:
    names = {"dot": "dot", "scaled_dot": "scaled dot", "cosine": "cosine"}
    with figure(claim.out / "figure.png", 3, (4.2, 3.4)) as panels:
        shown = (
            (start["weight"], 1, "largest weight, mean over queries", (0, 1.04)),
            (start["median"], 1, "gradient at the scores of a query,\nmedian norm", (0, None)),
            (trained, 100, "accuracy after training, %", (0, 104)),
        )
        for axes, (values, times, label, limits) in zip(panels, shown, strict=True):
            top = limits[1] or 1.25 * max(spread(at)[0] for of in values.values() for at in of)
            axes.set(xscale="log", xlabel="width of queries and keys", ylabel=label, ylim=(0, top))
            axes.set_xlim(settings.widths[0] * 0.8, settings.widths[-1] * 8)
            lines(
                axes, settings.widths, {names[n]: [[times * v for v in at] for at in values[n]] for n in SIMILARITIES}
            )
            axes.set_xticks(settings.widths, [str(width) for width in settings.widths])
            axes.minorticks_off()
