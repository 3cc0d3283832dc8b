"""Heads: one attention against many narrow ones, at the same width and with the same number of parameters.

The claim, from the notes: cut the input into parts, let several self-attentions work on them side by side, and "the
model can represent more" (the note on attention layers, section 5); heads "make attention more diverse", each in a
semantic space of its own (the note on the nature of attention).

A shelf of items, each a key with a value, all keys different, and one question, which names some of the keys: the model
has to give the value of each. One block of our encoder reads the question and the shelf; its width, and so the number
of its parameters, is the same however many heads share it. Asked for one key, there is one place to look at; asked for
four, four at once. A head of width D tells keys apart by D numbers only: what many heads gain in places they lose in
sharpness, which the narrowest show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers import EncoderBlock, FeedForward, MultiHeadAttention
from studies._claim import Claim, Kept, figure, spread, told
from studies._compare import leads, parameters, percent
from studies._learn import learn, lines, verdict

NUMBER = 8


@dataclass(frozen=True)
class Settings:
    keys: int = 32
    """That there are; a shelf has some of them."""
    values: int = 8
    items: int = 16
    asked: tuple[int, ...] = (1, 4)
    """Keys in a question."""
    width: int = 64
    heads: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    steps: int = 800
    batch: int = 64
    rate: float = 3e-3
    tested: int = 1000
    """Questions."""


QUICK = Settings(keys=6, values=2, items=4, asked=(1, 2), width=16, heads=(1, 4), steps=12, batch=8, tested=20)


class Finder(nn.Module):
    """Keys (B, N) and values (B, N) of a shelf and the keys asked for (B, A) → logits (B, A, values)."""

    def __init__(self, heads: int, asked: int, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.values = settings.values
        self.key, self.value = nn.Embedding(settings.keys, width), nn.Embedding(settings.values, width)
        # the first key asked for, the second, …: each in words of its own, or the question would be a heap
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
    """Keys (B, N) and values (B, N) of the items, the keys asked for (B, A), and the values they have there (B, A)."""
    keys = torch.rand(size, settings.keys, generator=draw).argsort(-1)[:, : settings.items]
    values = torch.randint(settings.values, keys.shape, generator=draw)
    places = torch.rand(keys.shape, generator=draw).argsort(-1)[:, :asked]  # (B, A)
    return keys, values, keys.gather(1, places), values.gather(1, places)


def measure(heads: int, asked: int, settings: Settings, seed: int) -> float:
    """Train, and the share of values given rightly."""
    torch.manual_seed(seed)
    model = Finder(heads, asked, settings)

    def loss(draw: torch.Generator) -> Tensor:
        *shelf, wanted = shelves(settings, asked, settings.batch, draw)
        return F.cross_entropy(model(*shelf).flatten(0, 1), wanted.flatten())

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    *shelf, wanted = shelves(settings, asked, settings.tested, torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return (model(*shelf).argmax(-1) == wanted).float().mean().item()


def judge(found: Mapping[int, Mapping[int, Sequence[float]]]) -> str:
    """The sentence, from the shares of each number of keys asked for, head count and seed.

    Many are better than one where the best of them lead by more than the deviations of both.
    """
    parts = []
    for asked, shares in found.items():
        means = {heads: spread(at)[0] for heads, at in shares.items()}
        best = max((heads for heads in means if heads > 1), key=lambda heads: means[heads])
        narrow = max(means)
        keys = "one key" if asked == 1 else f"{asked} keys at once"
        said = f"asked for {keys}, one head gave {means[1]:.0%} of the values and {best}, the best number of several, "
        said += f"{means[best]:.0%}" + (f" ({narrow}: {means[narrow]:.0%})" if narrow != best else "")
        parts.append((leads(shares[best], shares[1]), said))
    return verdict(parts)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.of("heads", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    kept = Kept(claim.out, vars(settings))
    found = {
        asked: {
            heads: [
                kept.of(f"{asked} asked, {heads} heads, seed {seed}", partial(measure, heads, asked, settings, seed))
                for seed in claim.seeds
            ]
            for heads in settings.heads
        }
        for asked in settings.asked
    }
    print(f"{'heads':<22}" + "".join(f"{heads:>14}" for heads in settings.heads))
    print(f"{'width of each':<22}" + "".join(f"{settings.width // heads:>14}" for heads in settings.heads))
    sizes = [parameters(Finder(heads, settings.asked[-1], settings)) for heads in settings.heads]
    print(f"{'parameters':<22}" + "".join(f"{size:>14,}" for size in sizes))
    for asked, shares in found.items():
        print(f"{f'{asked} asked, right, %':<22}" + "".join(f"{told(at, times=100):>14}" for at in shares.values()))
    with figure(claim.out / "figure.png", size=(6.4, 3.8)) as (axes,):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="heads, of one width together", ylabel="values given rightly, %", ylim=(0, 104))
        axes.set_xlim(settings.heads[0] / 1.2, settings.heads[-1] * 3)
        axes.set_xticks(settings.heads, [str(heads) for heads in settings.heads])
        named = {"one key asked for" if asked == 1 else f"{asked} keys at once": asked for asked in found}
        lines(
            axes,
            settings.heads,
            {name: percent(list(found[asked].values())) for name, asked in named.items()},
        )
    print(judge(found))
    print(claim.out / "figure.png")
    return 0
