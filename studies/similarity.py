"""Similarity: accuracy and cost of dot, scaled dot, cosine, bilinear and additive scores on one task.

Claim ("What is the nature of attention?", the three stages of attention): the similarity of query and key can be a dot
product, a cosine or a small network. All are in common use and the rest of the mechanism is the same, so the choice
should not matter. ("Attention mechanism" also names "the cosine or other ways".)

The task is retrieval. Objects with a colour and a shape are described by noisy vectors, in one language for the query
and in another for the keys. Half of the other objects share the requested colour, half the shape. `AttentionPooling`
learns projections that make the languages comparable. All else is equal, except for the parameters of a similarity
itself (additive: a vector, bilinear: a matrix). The cosine is tested twice, plain and times 10, because plain cosines
limit the ratio of two weights to e^1 : e^−1. Each similarity uses the best of a few learning rates.

Cost is the time of a forward and backward pass of `regard.attend`, measured in turn. Additive attention is also timed
as written in the equation, which creates a tensor with a vector for every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import Additive, Bilinear, attend
from regard.layers import AttentionPooling
from regard.layers.learned_similarity import SimilarityKind
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._learn import interleaved_times, learn, verdict

NUMBER = 4
SHARPNESS = 10.0
WAYS: dict[str, tuple[SimilarityKind, float | None]] = {
    "dot": ("dot", None),
    "scaled dot": ("scaled_dot", None),
    "cosine": ("cosine", None),
    "cosine × 10": ("cosine", SHARPNESS),
    "bilinear": ("bilinear", None),
    "additive": ("additive", None),
}
"""Similarity and scale, as `attend` takes them."""
EXPLICIT = "additive, as written"
ACCURACY_TOLERANCE = 0.02
"""Largest difference to the best accuracy that counts as equal."""
TIME_TOLERANCE = 1.5
"""Largest ratio to the shortest time that counts as equal."""


@dataclass(frozen=True)
class Settings:
    colours: int = 8
    shapes: int = 8
    described: int = 32
    """Length of the vector that describes an object."""
    noise: float = 0.5
    width: int = 32
    """Width of projected queries and keys."""
    among: int = 16
    answers: int = 8
    steps: int = 500
    batch: int = 64
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    tested: int = 2000
    timed: tuple[int, int, int] = (4, 256, 64)
    """Batch, length and width of the timed passes."""
    rounds: int = 31


QUICK = Settings(steps=20, batch=8, rates=(1e-2,), tested=50, timed=(1, 32, 16), rounds=2)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("similarity", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    right: dict[str, list[float]] = {}
    for way in WAYS:
        tried = [
            [store.measure(f"{way}, rate {r}, seed {s}", partial(accuracy, way, r, settings, s)) for s in claim.seeds]
            for r in settings.rates
        ]
        right[way] = max(tried, key=lambda seeds: spread(seeds)[0])
    seconds = store.measure("seconds", lambda: cost(settings))
    print(f"{'':<22}{'accuracy, %':>14}{'own params':>12}{'ms, forward and backward':>28}")
    for way in (*WAYS, EXPLICIT):
        score = format_mean(right[way], times=100) if way in right else "as above"
        own = f"{own_parameters(way, settings):,}"
        print(f"{way:<22}{score:>14}{own:>12}{1e3 * seconds[way]:>28.2f}")
    _draw(claim, right, seconds)
    print(judge(right, seconds))
    print(claim.out / "figure.png")
    return 0


class Objects:
    """The two languages: vectors that a colour and a shape add to the description of an object, drawn for each seed."""

    def __init__(self, settings: Settings, seed: int) -> None:
        draw = torch.Generator().manual_seed(20_000 + seed)
        self.settings = settings
        sizes = (settings.colours, settings.shapes) * 2
        self.tables = [torch.randn(n, settings.described, generator=draw) for n in sizes]

    def draw(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return query (count, 1, E), keys (count, among, E), answers (count, among), the right one and its index.

        The last two have shape (count,). Models do not see the index.
        """
        s = self.settings
        colour = torch.randint(s.colours, (count, 1), generator=draw)
        shape = torch.randint(s.shapes, (count, 1), generator=draw)
        same_colour = torch.rand(count, s.among, generator=draw) < 0.5
        # another colour or another shape, but not both
        colours = colour + torch.where(same_colour, 0, torch.randint(1, s.colours, (count, s.among), generator=draw))
        shapes = shape + torch.where(same_colour, torch.randint(1, s.shapes, (count, s.among), generator=draw), 0)
        index = torch.randint(s.among, (count, 1), generator=draw)
        colours, shapes = (x.scatter(1, index, first) for x, first in ((colours, colour), (shapes, shape)))
        answers = torch.randint(s.answers, (count, s.among), generator=draw)
        query = self._described(0, colour, shape, draw)
        keys = self._described(2, colours % s.colours, shapes % s.shapes, draw)
        return query, keys, answers, answers.gather(1, index)[:, 0], index[:, 0]

    def _described(self, language: int, colour: Tensor, shape: Tensor, draw: torch.Generator) -> Tensor:
        plain = self.tables[language][colour] + self.tables[language + 1][shape]
        return plain + self.settings.noise * torch.randn(plain.shape, generator=draw)


class Finder(nn.Module):
    """Maps query (B, 1, E), keys (B, T, E) and answers (B, T) to logits (B, answers)."""

    def __init__(self, way: str, settings: Settings) -> None:
        super().__init__()
        similarity, scale = WAYS[way]
        described, width = settings.described, settings.width
        operator = attend if scale is None else partial(attend, scale=scale)
        self.pool = AttentionPooling(described, described, width, similarity=similarity, attend=operator)
        self.value = nn.Embedding(settings.answers, width)
        self.answer = nn.Linear(width, settings.answers)

    def forward(self, query: Tensor, keys: Tensor, answers: Tensor) -> Tensor:
        return self.answer(self.pool(query, keys, self.value(answers)).squeeze(1))


def own_parameters(way: str, settings: Settings) -> int:
    """Return the number of parameters of a similarity itself."""
    if way == EXPLICIT:
        way = "additive"
    sizes = [sum(p.numel() for p in Finder(name, settings).parameters()) for name in (way, "dot")]
    return sizes[0] - sizes[1]


def accuracy(way: str, rate: float, settings: Settings, seed: int) -> float:
    """Return the accuracy after training."""
    torch.manual_seed(seed)
    model, objects = Finder(way, settings), Objects(settings, seed)

    def loss(draw: torch.Generator) -> Tensor:
        *inputs, right, _ = objects.draw(settings.batch, draw)
        return F.cross_entropy(model(*inputs), right)

    learn(model, loss, steps=settings.steps, rate=rate, seed=seed)
    *inputs, right, _ = objects.draw(settings.tested, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return (model(*inputs).argmax(-1) == right).float().mean().item()


def cost(settings: Settings) -> dict[str, float]:
    """Return the median seconds of a forward and backward pass."""
    draw = torch.Generator().manual_seed(0)
    batch, length, width = settings.timed
    q, k, v = (torch.randn(batch, length, width, generator=draw, requires_grad=True) for _ in range(3))
    w = torch.randn(width, generator=draw, requires_grad=True)
    matrix = torch.randn(width, width, generator=draw, requires_grad=True)
    similarities: dict[str, Any] = {"additive": Additive(w), "bilinear": Bilinear(matrix)}
    passes: dict[str, Callable[[], Tensor]] = {
        way: partial(attend, q, k, v, similarity=similarities.get(name, name), scale=scale)
        for way, (name, scale) in WAYS.items()
    }
    passes[EXPLICIT] = lambda: ((torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) @ w).softmax(-1)) @ v
    if not torch.allclose(passes["additive"](), passes[EXPLICIT](), atol=1e-4):
        raise ValueError("similarity: additive scores differ from the equation. Nothing was timed.")

    def both(make: Callable[[], Tensor]) -> None:
        make().sum().backward()

    return interleaved_times({name: partial(both, make) for name, make in passes.items()}, settings.rounds)


def judge(right: Mapping[str, Sequence[float]], seconds: Mapping[str, float]) -> str:
    """Return the verdict: whether the choice of similarity matters."""
    means = {way: spread(seeds)[0] for way, seeds in right.items()}
    best = max(means, key=lambda way: means[way])
    behind = [way for way in means if means[best] - means[way] > ACCURACY_TOLERANCE]
    named = ", ".join(f"{way} {100 * means[way]:.1f} %" for way in behind)
    if behind:
        quality = f"{named} accuracy against {100 * means[best]:.1f} % for the best ({best})"
    else:
        quality = (
            f"all are within {100 * ACCURACY_TOLERANCE:.0f} points of the best ({best}, {100 * means[best]:.1f} %)"
        )
    ours = {way: seconds[way] for way in right}
    low, high = min(ours, key=lambda way: ours[way]), max(ours, key=lambda way: ours[way])
    ratio = ours[high] / ours[low]
    price = f"{high} takes {ratio:.1f} times as long as {low}, and {seconds[EXPLICIT] / ours[low]:.0f} times as written"
    return verdict([(not behind, quality), (ratio <= TIME_TOLERANCE, price)])


def _draw(claim: Claim, right: Mapping[str, Sequence[float]], seconds: Mapping[str, float]) -> None:
    with figure(claim.out / "figure.png", 2, (5.0, 3.2)) as (quality, price):
        for row, seeds in enumerate(right.values()):
            mean, deviation = spread([100 * seed for seed in seeds])
            quality.barh(row, mean, xerr=deviation, color=f"C{row}", alpha=0.5, height=0.6)
            quality.plot([100 * seed for seed in seeds], [row] * len(seeds), "o", color=f"C{row}", markersize=4)
        for row, taken in enumerate(seconds.values()):
            price.barh(row, 1e3 * taken, color=f"C{row}", alpha=0.5, height=0.6)
            price.annotate(f" {1e3 * taken:.1f}", (1e3 * taken, row), va="center", fontsize=9)
        for axes, names in ((quality, list(right)), (price, list(seconds))):
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
        quality.set(xlabel="accuracy, % (dots: seeds)", xlim=(0, 104))
        price.set(xlabel="forward and backward pass, ms", xscale="log")
        price.margins(x=0.15)
