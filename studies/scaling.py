"""Scaling: dot products, scaled ones and cosines as queries and keys grow wider: weights, gradients, learning.

The claim, from the note on attention layers: with the plain dot product, "if one value is very large, the others will
be close to 0 after softmax, and gradients vanish; therefore scaled dot products are used" (another note: √d "is said to
keep gradients steady"). Vaswani et al. 2017, section 3.2.1, suspect the same: the sum of D products of unit variance
has variance D.

Two measurements. At the start: queries and keys of unit variance, many keys, the largest weight, and the size of the
gradient that arrives at a query's scores. Its median over queries says how a common query fares; the mean is carried by
the few whose best keys nearly tie, and is told beside it. In learning: embeddings of unit variance have to find the one
key among others that belongs to a query, with the best of a few learning rates for each similarity and width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend
from studies._claim import Claim, Kept, figure, spread, told
from studies._learn import learn, lines, verdict

NUMBER = 3
SIMILARITIES = ("dot", "scaled_dot", "cosine")
STARVED = 0.1
"""The share of the narrowest width's gradient below which the widest's is called starved."""
SATURATED = 0.9
"""The mean of the largest weights from which on a softmax is called saturated."""
Found = Mapping[str, Sequence[Sequence[float]]]
"""By similarity, of each width, of each seed."""


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...] = (4, 16, 64, 256, 1024)
    keys: int = 64
    rows: int = 256
    """Queries that are measured at the start."""
    words: int = 64
    """Of the pairs that are learnt."""
    among: int = 16
    """Pairs that a query chooses from."""
    answers: int = 8
    steps: int = 300
    batch: int = 64
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    tested: int = 2000


QUICK = Settings(widths=(4, 64), keys=16, rows=16, steps=20, batch=8, rates=(1e-2,), tested=50)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.of("scaling", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    kept = Kept(claim.out, vars(settings))
    start: dict[str, dict[str, list[list[float]]]] = {what: {} for what in ("weight", "median", "mean")}
    learnt: dict[str, list[list[float]]] = {}
    for name in SIMILARITIES:
        found = [
            [kept.of(f"{name}, {w} wide, seed {s}", partial(at_start, name, w, settings, s)) for s in claim.seeds]
            for w in settings.widths
        ]
        for place, what in enumerate(start):
            start[what][name] = [[seed[place] for seed in at] for at in found]
        learnt[name] = [_best(name, width, settings, claim, kept) for width in settings.widths]
    _print(start, learnt, settings)
    _draw(claim, start, learnt, settings)
    print(judge(start, learnt, settings.widths))
    print(claim.out / "figure.png")
    return 0


def at_start(name: str, width: int, settings: Settings, seed: int) -> tuple[float, float, float]:
    """The mean over queries of the largest weight; median and mean of the norm of the gradient at a query's scores.

    A float mask of zeros is added to the scores, so its gradient is theirs. The loss is a random direction of the
    context, so that each value matters by a number of unit variance: the same for every similarity and width.
    """
    draw = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(n, width, generator=draw) for n in (settings.rows, settings.keys))
    value, direction = (
        torch.randn(n, 16, generator=draw) / 2 for n in (settings.keys, settings.rows)
    )  # v·d: variance 1
    added = torch.zeros(settings.rows, settings.keys, requires_grad=True)
    context, weights = attend(query, key, value, added, similarity=name, return_map=True)
    (context * direction).sum().backward()
    assert added.grad is not None
    norms = added.grad.norm(dim=-1)  # (rows,)
    return weights.dense().amax(-1).mean().item(), norms.median().item(), norms.mean().item()


class Finder(nn.Module):
    """Pairs of a word and an answer, and the word that is asked for → logits of its answer.

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
        context = attend(query, self.key(words), self.value(answers), similarity=self.name)  # (B, 1, 32)
        return self.answer(context.squeeze(1))


def pairs(count: int, settings: Settings, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Asked (count,), words and answers (count, among), and the answer that is right (count,).

    >>> asked, words, answers, right = pairs(5, Settings(), torch.Generator().manual_seed(0))
    >>> bool((answers[words == asked[:, None]] == right).all())
    True
    """
    words = torch.rand(count, settings.words, generator=draw).argsort(-1)[:, : settings.among]
    answers = torch.randint(settings.answers, words.shape, generator=draw)
    place = torch.randint(settings.among, (count, 1), generator=draw)
    return words.gather(1, place)[:, 0], words, answers, answers.gather(1, place)[:, 0]


def found_right(name: str, width: int, rate: float, settings: Settings, seed: int) -> float:
    """The share of answers that are right after training."""
    torch.manual_seed(seed)
    model = Finder(name, width, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *given, right = pairs(settings.batch, settings, draw)
        return F.cross_entropy(model(*given), right)

    learn(model, loss, steps=settings.steps, rate=rate, seed=seed)
    *given, right = pairs(settings.tested, settings, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return (model(*given).argmax(-1) == right).float().mean().item()


def _best(name: str, width: int, settings: Settings, claim: Claim, kept: Kept) -> list[float]:
    """Of each seed, at the rate that is best on average."""
    tried = [
        [
            kept.of(f"{name}, {width} wide, rate {r}, seed {s}", partial(found_right, name, width, r, settings, s))
            for s in claim.seeds
        ]
        for r in settings.rates
    ]
    return max(tried, key=lambda seeds: spread(seeds)[0])


def judge(start: Mapping[str, Found], learnt: Found, widths: Sequence[int]) -> str:
    """Whether the plain dot product saturates and starves as width grows and the others do not."""
    largest = {name: spread(start["weight"][name][-1])[0] for name in SIMILARITIES}
    left, mean = (
        {name: spread(start[what][name][-1])[0] / spread(start[what][name][0])[0] for name in SIMILARITIES}
        for what in ("median", "mean")
    )
    right = {name: spread(learnt[name][-1]) for name in SIMILARITIES}

    def said(name: str, label: str) -> str:
        return (
            f"{label} leave {left[name]:.2g} of a common query's gradient ({mean[name]:.2g} of the mean; largest "
            f"weight {largest[name]:.2f})"
        )

    behind = right["scaled_dot"][0] - right["dot"][0]
    slow = behind > right["scaled_dot"][1] + right["dot"][1]
    word = "less" if slow else "no less"
    scores = f"{100 * right['dot'][0]:.0f} % against {100 * right['scaled_dot'][0]:.0f} %"
    return verdict(
        [
            (
                left["dot"] < STARVED and largest["dot"] > SATURATED,
                f"from {widths[0]} to {widths[-1]} wide, " + said("dot", "plain dot products"),
            ),
            (left["scaled_dot"] >= STARVED, said("scaled_dot", "scaled ones")),
            (left["cosine"] >= STARVED, said("cosine", "cosines")),
            (
                slow,
                f"{widths[-1]} wide, plain dot products learn {word} than scaled ones ({scores})",
            ),
        ]
    )


def _print(start: Mapping[str, Found], learnt: Found, settings: Settings) -> None:
    tables = (
        ("largest weight", start["weight"], 1),
        ("gradient, median", start["median"], 1),
        ("gradient, mean", start["mean"], 1),
        ("right, %", learnt, 100),
    )
    for title, found, times in tables:
        print(f"{title + ', width':<26}" + "".join(f"{width:>16}" for width in settings.widths))
        for name in SIMILARITIES:
            digits = 1 if times > 1 else 3
            print(f"{name:<26}" + "".join(f"{told(at, digits, times):>16}" for at in found[name]))


def _draw(claim: Claim, start: Mapping[str, Found], learnt: Found, settings: Settings) -> None:
    names = {"dot": "dot", "scaled_dot": "scaled dot", "cosine": "cosine"}
    with figure(claim.out / "figure.png", 3, (4.2, 3.4)) as panels:
        shown = (
            (start["weight"], 1, "largest weight, mean over queries", (0, 1.04)),
            (start["median"], 1, "gradient at the scores of a query,\nmedian of the norm", (0, None)),
            (learnt, 100, "right answers after training, %", (0, 104)),
        )
        for axes, (found, times, label, limits) in zip(panels, shown, strict=True):
            top = limits[1] or 1.25 * max(spread(at)[0] for of in found.values() for at in of)
            axes.set(xscale="log", xlabel="width of queries and keys", ylabel=label, ylim=(0, top))
            axes.set_xlim(settings.widths[0] * 0.8, settings.widths[-1] * 8)
            lines(axes, settings.widths, {names[n]: [[times * v for v in at] for at in found[n]] for n in SIMILARITIES})
            axes.set_xticks(settings.widths, [str(width) for width in settings.widths])
            axes.minorticks_off()
