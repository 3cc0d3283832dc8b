"""Normalisation: layer against batch normalisation by size of batch and at varying lengths; before against after.

The claim, from the notes: a Transformer has layer and not batch normalisation, as the first "does not depend on the
size of the batch", which helps with inputs of varying size, while the second "may be unstable with small batches or
batches that are not alike", and as it suits sequences (the note on attention layers, section 6). The notes draw it
after the way around a part, as Vaswani et al. 2017 do; most models now have it before (Xiong et al. 2020), which is
said to need no warm-up of the learning rate.

Rows of symbols, one of them marked: each place has to give the sum of its own and the marked symbol, modulo their
number. Sequences are packed, so that batch normalisation sees tokens and never padding: the best case for it. Lengths
are all one, or vary from batch to batch as where texts are batched by length. Tests use the running means, in batches
of many rows. Every model is given as many steps; models are compared at one size of batch only with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers import EncoderBlock, FeedForward, MultiHeadAttention
from regard.training.config import Training
from regard.training.optimizer import Optimizer, Schedule
from studies._claim import Claim, Kept, figure, spread, told
from studies._compare import leads, percent
from studies._learn import lines, verdict

NUMBER = 9
NORMS = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
PLACES = {"before": True, "after": False}
"""norm_first of a block."""
Shares = Mapping[tuple[Any, ...], Sequence[float]]


@dataclass(frozen=True)
class Settings:
    symbols: int = 8
    width: int = 32
    heads: int = 4
    layers: int = 2
    """Of the models that layer and batch normalisation are compared in."""
    batches: tuple[int, ...] = (1, 2, 8, 32)
    """Rows of a batch."""
    length: int = 16
    varying: tuple[int, ...] = (4, 8, 16, 32)
    """Lengths of which each batch has one; tested are all."""
    steps: int = 600
    rate: float = 3e-3
    deep: int = 6
    """Layers of the models that before and after are compared in."""
    rates: tuple[float, ...] = (1e-3, 4e-3, 1.6e-2)
    deep_steps: int = 250
    tested: int = 200
    """Rows of each length."""


QUICK = Settings(
    4, 8, 2, 1, batches=(1, 4), length=6, varying=(4, 8), steps=6, deep=2, rates=(1e-3, 1e-2), deep_steps=6, tested=10
)


class Adder(nn.Module):
    """Ids of symbols (B, T), the marked one raised by the number of symbols → logits of the sums (B, T, S)."""

    def __init__(self, settings: Settings, layers: int, norm: str = "layer", place: str = "before") -> None:
        super().__init__()
        width, made = settings.width, NORMS[norm]
        self.embedding = nn.Embedding(2 * settings.symbols, width)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                MultiHeadAttention(width, settings.heads),
                FeedForward(width, 4 * width),
                norm_first=PLACES[place],
                norm=made,
            )
            for _ in range(layers)
        )
        self.norm = made(width) if PLACES[place] else nn.Identity()
        self.answers = nn.Linear(width, settings.symbols)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).flatten(0, 1)  # (B·T, W): packed, so that a norm sees a list of tokens
        lengths = [ids.shape[1]] * len(ids)
        for block in self.blocks:
            x = block(x, packed=lengths)
        return self.answers(self.norm(x)).unflatten(0, ids.shape)


def rows(symbols: int, length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids (B, T) and sums (B, T).

    >>> ids, sums = rows(5, 4, 1, torch.Generator().manual_seed(0))
    >>> bool((sums == (ids + ids.max()) % 5).all())
    True
    """
    row = torch.randint(symbols, (size, length), generator=draw)
    place = torch.randint(length, (size, 1), generator=draw)
    ids = row.scatter_add(1, place, torch.full_like(place, symbols))
    return ids, (row + row.gather(1, place)) % symbols


def measure(
    settings: Settings,
    model: Adder,
    lengths: Sequence[int],
    batch: int,
    *,
    steps: int,
    rate: float,
    warm: float,
    seed: int,
) -> float:
    """Train on batches of one of the lengths each, and the share of right sums, all lengths alike."""
    optimizer = Optimizer(model, Training(learning_rate=rate, weight_decay=0.0, clip=1.0))
    schedule = Schedule("linear", warm, steps)
    draw = torch.Generator().manual_seed(10_000 + seed)
    model.train()
    for step in range(1, steps + 1):
        length = lengths[int(torch.randint(len(lengths), (), generator=draw))]
        ids, sums = rows(settings.symbols, length, batch, draw)
        F.cross_entropy(model(ids).flatten(0, 1), sums.flatten()).backward()
        optimizer.step(rate * schedule(step), 1.0)
    model.eval()
    shares = []
    with torch.inference_mode():
        for length in lengths:
            ids, sums = rows(settings.symbols, length, settings.tested, draw)
            shares.append((model(ids).argmax(-1) == sums).float().mean().item())
    return sum(shares) / len(shares)


def by_batch(settings: Settings, norm: str, varying: bool, batch: int, seed: int) -> float:
    torch.manual_seed(seed)
    lengths = settings.varying if varying else (settings.length,)
    model = Adder(settings, settings.layers, norm)
    return measure(settings, model, lengths, batch, steps=settings.steps, rate=settings.rate, warm=0.1, seed=seed)


def by_rate(settings: Settings, place: str, warm: bool, rate: float, seed: int) -> float:
    torch.manual_seed(seed)
    model, batch = Adder(settings, settings.deep, place=place), settings.batches[-1]
    return measure(
        settings, model, (settings.length,), batch, steps=settings.deep_steps, rate=rate, warm=0.2 * warm, seed=seed
    )


def judge(batches: Shares, rates: Shares) -> str:
    """The sentence, from shares by (norm, varying, batch) and by (place, warm-up, rate)."""

    def pair(shares: Shares, names: tuple[str, str], *rest: Any) -> tuple[bool, str]:
        first, second = (shares[(name, *rest)] for name in names)
        return leads(first, second), f"{spread(first)[0]:.0%} against {spread(second)[0]:.0%}"

    sizes = sorted({key[2] for key in batches})
    highest = max(key[2] for key in rates)
    small, few = pair(batches, ("layer", "batch"), False, sizes[0])
    _, many = pair(batches, ("layer", "batch"), False, sizes[-1])
    mixed, spoken = pair(batches, ("layer", "batch"), True, sizes[-1])
    cold, without = pair(rates, ("before", "after"), False, highest)
    _, warmed = pair(rates, ("before", "after"), True, highest)
    rows_of = f"{sizes[0]} row{'s' if sizes[0] > 1 else ''}"
    return verdict(
        [
            (
                small,
                f"in batches of {rows_of} layer normalisation had {few} of batch normalisation ({sizes[-1]}: {many})",
            ),
            (mixed, f"at varying lengths, in batches of {sizes[-1]}, {spoken}"),
            (
                cold,
                f"without warm-up, at the highest rate ({highest:g}), normalising before had {without} of after "
                f"(with warm-up {warmed})",
            ),
        ]
    )


def main(arguments: Sequence[str]) -> int:
    claim = Claim.of("normalisation", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    kept = Kept(claim.out, vars(settings))
    batches: dict[tuple[Any, ...], list[float]] = {}
    for batch in settings.batches:
        for varying in (False, True):
            for norm in NORMS:
                name = f"{norm}, {'varying lengths' if varying else 'one length'}, batches of {batch}"
                batches[norm, varying, batch] = [
                    kept.of(f"{name}, seed {seed}", partial(by_batch, settings, norm, varying, batch, seed))
                    for seed in claim.seeds
                ]
    rates: dict[tuple[Any, ...], list[float]] = {}
    for rate in settings.rates:
        for warm in (True, False):
            for place in PLACES:
                name = f"{place}, {'warm-up' if warm else 'none'}, rate {rate:g}"
                rates[place, warm, rate] = [
                    kept.of(f"{name}, seed {seed}", partial(by_rate, settings, place, warm, rate, seed))
                    for seed in claim.seeds
                ]
    left = {
        f"{norm}, {'varying lengths' if varying else 'one length'}": [
            batches[norm, varying, batch] for batch in settings.batches
        ]
        for norm in NORMS
        for varying in (False, True)
    }
    right = {
        f"{place}{', warm-up' if warm else ''}": [rates[place, warm, rate] for rate in settings.rates]
        for place in PLACES
        for warm in (True, False)
    }
    _print("right sums, %, rows of a batch", settings.batches, left)
    _print(f"right sums, %, {settings.deep} layers, rate", settings.rates, right)
    _draw(claim, settings, left, right)
    print(judge(batches, rates))
    print(claim.out / "figure.png")
    return 0


def _print(title: str, places: Sequence[float], named: Mapping[str, Sequence[Sequence[float]]]) -> None:
    print(f"{title:<34}" + "".join(f"{place:>14g}" for place in places))
    for name, values in named.items():
        print(f"{name:<34}" + "".join(f"{told(at, times=100):>14}" for at in values))


def _draw(claim: Claim, settings: Settings, left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    with figure(claim.out / "figure.png", 2, (5.8, 3.8)) as panels:
        for axes, places, named, title, label, base in (
            (panels[0], settings.batches, left, "layer or batch normalisation", "rows of a batch", 2),
            (
                panels[1],
                settings.rates,
                right,
                f"before or after, {settings.deep} layers",
                "learning rate, highest",
                10,
            ),
        ):
            axes.set_xscale("log", base=base)
            axes.set(title=title, xlabel=label, ylabel="right sums, %", ylim=(0, 104))
            axes.set_xlim(places[0] / 1.2, places[-1] * (places[-1] / places[0]) ** 0.6)
            axes.set_xticks(places, [f"{place:g}" for place in places], minor=False)
            axes.minorticks_off()
            lines(axes, places, {name: percent(values) for name, values in named.items()})
