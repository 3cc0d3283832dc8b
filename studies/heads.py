"""Heads: one attention head against several narrower ones, at the same width and number of parameters.

Claim ("Attention", section 5): splitting the input into parts that several self-attentions process in parallel lets the
model represent more. "What is the nature of attention?" adds that heads make attention more diverse, each in its own
semantic space.

The input is a shelf of items, each with a unique key and a value, and a question that names some of the keys. The model
has to return their values. One block of our encoder reads the question and the shelf. Its width, and therefore its
number of parameters, does not depend on the number of heads. A question with one key needs one position; a question
with four keys needs four at once. A head of width D distinguishes keys by D numbers only, so many heads gain positions
but lose precision, as the narrowest ones show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers import EncoderBlock, FeedForward, MultiHeadAttention
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._compare import leads, parameters, percent
from studies._learn import learn, lines, verdict

NUMBER = 8


@dataclass(frozen=True)
class Settings:
    keys: int = 32
    """Number of different keys; a shelf has some of them."""
    values: int = 8
    items: int = 16
    asked: tuple[int, ...] = (1, 4)
    """Numbers of keys in a question."""
    width: int = 64
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    steps: int = 800
    batch: int = 64
    rate: float = 3e-3
    tested: int = 1000
    """Number of test questions."""


QUICK = Settings(keys=6, values=2, items=4, asked=(1, 2), width=16, heads=(1, 4), steps=12, batch=8, tested=20)


class Finder(nn.Module):
    """Maps keys (B, N) and values (B, N) of a shelf and the requested keys (B, A) to logits (B, A, values)."""

    def __init__(self, heads: int, asked: int, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.values = settings.values
        self.key, self.value = nn.Embedding(settings.keys, width), nn.Embedding(settings.values, width)
        # One embedding table for each position in the question; otherwise the order of the keys would be lost.
        self.questions = nn.ModuleList(nn.Embedding(settings.keys, width) for _ in range(asked))
        self.block = EncoderBlock(MultiHeadAttention(width, heads), FeedForward(width, 4 * width), norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.answers = nn.Linear(width, asked * settings.values)

    def forward(self, keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
        question = sum(embed(key) for embed, key in zip(self.questions, wanted.T, strict=True))  # (B, W)
        shelf = self.key(keys) + self.value(values)  # (B, N, W)
        x = self.block(torch.cat((question[:, None], shelf), 1))  # (B, 1 + N, W)
        return self.answers(self.norm(x[:, 0])).unflatten(-1, (-1, self.values))


def shelves(settings: Settings, asked: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return keys (B, N) and values (B, N) of the items, the requested keys (B, A), and their values (B, A)."""
    keys = torch.rand(size, settings.keys, generator=draw).argsort(-1)[:, : settings.items]
    values = torch.randint(settings.values, keys.shape, generator=draw)
    indices = torch.rand(keys.shape, generator=draw).argsort(-1)[:, :asked]  # (B, A)
    return keys, values, keys.gather(1, indices), values.gather(1, indices)


def measure(heads: int, asked: int, settings: Settings, seed: int) -> float:
    """Train a model and return the fraction of correct values."""
    torch.manual_seed(seed)
    model = Finder(heads, asked, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *shelf, wanted = shelves(settings, asked, settings.batch, draw)
        return F.cross_entropy(model(*shelf).flatten(0, 1), wanted.flatten())

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    *shelf, wanted = shelves(settings, asked, settings.tested, torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return (model(*shelf).argmax(-1) == wanted).float().mean().item()


def judge(accuracies: Mapping[int, Mapping[int, Sequence[float]]]) -> str:
    """Return the verdict from accuracies by number of requested keys, number of heads and seed.

    Several heads are better if the best number of them exceeds one head by more than both standard deviations.
    """
    parts = []
    for asked, shares in accuracies.items():
        means = {heads: spread(at)[0] for heads, at in shares.items()}
        best = max((heads for heads in means if heads > 1), key=lambda heads: means[heads])
        narrow = max(means)
        keys = "one key" if asked == 1 else f"{asked} keys at once"
        text = f"for {keys}, one head returned {means[1]:.0%} of the values and {best}, the best number of several, "
        text += f"{means[best]:.0%}" + (f" ({narrow}: {means[narrow]:.0%})" if narrow != best else "")
        parts.append((leads(shares[best], shares[1]), text))
    return verdict(parts)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("heads", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    accuracies = {
        asked: {
            heads: [
                store.measure(
                    f"{asked} asked, {heads} heads, seed {seed}", partial(measure, heads, asked, settings, seed)
                )
                for seed in claim.seeds
            ]
            for heads in settings.heads
        }
        for asked in settings.asked
    }
    print(f"{'heads':<22}" + "".join(f"{heads:>14}" for heads in settings.heads))
    print(f"{'width per head':<22}" + "".join(f"{settings.width // heads:>14}" for heads in settings.heads))
    sizes = [parameters(Finder(heads, settings.asked[-1], settings)) for heads in settings.heads]
    print(f"{'parameters':<22}" + "".join(f"{size:>14,}" for size in sizes))
    for asked, shares in accuracies.items():
        print(
            f"{f'{asked} keys, accuracy, %':<22}"
            + "".join(f"{format_mean(at, times=100):>14}" for at in shares.values())
        )
    with figure(claim.out / "figure.png", size=(6.4, 3.8)) as (axes,):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="number of heads (equal total width)", ylabel="correct values, %", ylim=(0, 104))
        axes.set_xlim(settings.heads[0] / 1.2, settings.heads[-1] * 3)
        axes.set_xticks(settings.heads, [str(heads) for heads in settings.heads])
        named = {"one key" if asked == 1 else f"{asked} keys at once": asked for asked in accuracies}
        lines(
            axes,
            settings.heads,
            {name: percent(list(accuracies[asked].values())) for name, asked in named.items()},
        )
    print(judge(accuracies))
    print(claim.out / "figure.png")
    return 0
