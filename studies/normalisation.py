"""Normalization: layer and batch norm by batch size and with varying lengths; pre-norm and post-norm.

Claim ("Attention", section 6): a Transformer uses layer and not batch normalization, because the former does not depend
on the batch size, while the latter may be unstable with small or heterogeneous batches, and because it suits sequences.
The source draws it after the residual connection (post-norm), as Vaswani et al. 2017 do. Most models now use pre-norm,
which Xiong et al. 2020 report to need no learning rate warm-up.

Each row of symbols has one marked symbol. Every position has to return the sum of its own and the marked symbol, modulo
the number of symbols. Sequences are packed, so that batch norm sees tokens and never padding, which is its best case.
Lengths are constant, or vary from batch to batch as if texts were batched by length. Tests use the running statistics.
Every model is trained for the same number of steps. Models are compared only at equal batch size.
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
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._compare import leads, percent
from studies._learn import lines, verdict

NUMBER = 9
NORMS = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
NORM_FIRST = {"before": True, "after": False}
"""norm_first of an encoder block."""
Shares = Mapping[tuple[Any, ...], Sequence[float]]


@dataclass(frozen=True)
class Settings:
    symbols: int = 8
    width: int = 32
    heads: int = 4
    layers: int = 2
    """Number of layers in the comparison of layer and batch norm."""
    batches: tuple[int, ...] = (1, 2, 8, 32)
    """Rows per batch."""
    length: int = 16
    varying: tuple[int, ...] = (4, 8, 16, 32)
    """Lengths; each batch has one of them, and tests use all."""
    steps: int = 600
    rate: float = 3e-3
    deep: int = 6
    """Number of layers in the comparison of pre-norm and post-norm."""
    rates: tuple[float, ...] = (1e-3, 4e-3, 1.6e-2)
    deep_steps: int = 250
    tested: int = 200
    """Number of test rows per length."""


QUICK = Settings(
    4, 8, 2, 1, batches=(1, 4), length=6, varying=(4, 8), steps=6, deep=2, rates=(1e-3, 1e-2), deep_steps=6, tested=10
)


class Adder(nn.Module):
    """Maps symbol ids (B, T), where the marked one is increased by the number of symbols, to logits (B, T, S)."""

    def __init__(self, settings: Settings, layers: int, norm: str = "layer", norm_position: str = "before") -> None:
        super().__init__()
        width, make_norm = settings.width, NORMS[norm]
        self.embedding = nn.Embedding(2 * settings.symbols, width)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                MultiHeadAttention(width, settings.heads),
                FeedForward(width, 4 * width),
                norm_first=NORM_FIRST[norm_position],
                norm=make_norm,
            )
            for _ in range(layers)
        )
        self.norm = make_norm(width) if NORM_FIRST[norm_position] else nn.Identity()
        self.answers = nn.Linear(width, settings.symbols)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).flatten(0, 1)  # (B·T, W): packed, so that norms see a list of tokens
        lengths = [ids.shape[1]] * len(ids)
        for block in self.blocks:
            x = block(x, packed=lengths)
        return self.answers(self.norm(x)).unflatten(0, ids.shape)


def rows(symbols: int, length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return ids (B, T) and sums (B, T).

    >>> ids, sums = rows(5, 4, 1, torch.Generator().manual_seed(0))
    >>> bool((sums == (ids + ids.max()) % 5).all())
    True
    """
    row = torch.randint(symbols, (size, length), generator=draw)
    index = torch.randint(length, (size, 1), generator=draw)
    ids = row.scatter_add(1, index, torch.full_like(index, symbols))
    return ids, (row + row.gather(1, index)) % symbols


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
    """Train on batches that each have one of the lengths, and return the accuracy averaged over lengths."""
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


def by_rate(settings: Settings, norm_position: str, warm: bool, rate: float, seed: int) -> float:
    torch.manual_seed(seed)
    model, batch = Adder(settings, settings.deep, norm_position=norm_position), settings.batches[-1]
    return measure(
        settings, model, (settings.length,), batch, steps=settings.deep_steps, rate=rate, warm=0.2 * warm, seed=seed
    )


def judge(batches: Shares, rates: Shares) -> str:
    """Return the verdict from accuracies by (norm, varying, batch) and by (norm position, warm-up, rate)."""

    def pair(shares: Shares, names: tuple[str, str], *rest: Any) -> tuple[bool, str]:
        first, second = (shares[(name, *rest)] for name in names)
        return leads(first, second), f"{spread(first)[0]:.0%} against {spread(second)[0]:.0%}"

    sizes = sorted({key[2] for key in batches})
    highest = max(key[2] for key in rates)
    small, few = pair(batches, ("layer", "batch"), False, sizes[0])
    _, many = pair(batches, ("layer", "batch"), False, sizes[-1])
    mixed, varied = pair(batches, ("layer", "batch"), True, sizes[-1])
    cold, without = pair(rates, ("before", "after"), False, highest)
    _, warmed = pair(rates, ("before", "after"), True, highest)
    rows_of = f"{sizes[0]} row{'s' if sizes[0] > 1 else ''}"
    return verdict(
        [
            (
                small,
                f"in batches of {rows_of}, layer and batch norm reached {few} ({sizes[-1]}: {many})",
            ),
            (mixed, f"with varying lengths in batches of {sizes[-1]}, {varied}"),
            (
                cold,
                f"without warm-up at the highest rate ({highest:g}), pre-norm and post-norm reached {without} "
                f"(with warm-up {warmed})",
            ),
        ]
    )


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("normalisation", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    batches: dict[tuple[Any, ...], list[float]] = {}
    for batch in settings.batches:
        for varying in (False, True):
            for norm in NORMS:
                name = f"{norm}, {'varying lengths' if varying else 'one length'}, batches of {batch}"
                batches[norm, varying, batch] = [
                    store.measure(f"{name}, seed {seed}", partial(by_batch, settings, norm, varying, batch, seed))
                    for seed in claim.seeds
                ]
    rates: dict[tuple[Any, ...], list[float]] = {}
    for rate in settings.rates:
        for warm in (True, False):
            for norm_position in NORM_FIRST:
                name = f"{norm_position}, {'warm-up' if warm else 'none'}, rate {rate:g}"
                rates[norm_position, warm, rate] = [
                    store.measure(f"{name}, seed {seed}", partial(by_rate, settings, norm_position, warm, rate, seed))
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
        f"{norm_position}{', warm-up' if warm else ''}": [rates[norm_position, warm, rate] for rate in settings.rates]
        for norm_position in NORM_FIRST
        for warm in (True, False)
    }
    _print("accuracy, %, by rows per batch", settings.batches, left)
    _print(f"accuracy, %, {settings.deep} layers, by rate", settings.rates, right)
    _draw(claim, settings, left, right)
    print(judge(batches, rates))
    print(claim.out / "figure.png")
    return 0


def _print(title: str, columns: Sequence[float], named: Mapping[str, Sequence[Sequence[float]]]) -> None:
    print(f"{title:<34}" + "".join(f"{column:>14g}" for column in columns))
    for name, values in named.items():
        print(f"{name:<34}" + "".join(f"{format_mean(at, times=100):>14}" for at in values))


def _draw(claim: Claim, settings: Settings, left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    with figure(claim.out / "figure.png", 2, (5.8, 3.8)) as panels:
        for axes, ticks, named, title, label, base in (
            (panels[0], settings.batches, left, "layer or batch norm", "rows per batch", 2),
            (
                panels[1],
                settings.rates,
                right,
                f"pre-norm (before) or post-norm (after), {settings.deep} layers",
                "peak learning rate",
                10,
            ),
        ):
            axes.set_xscale("log", base=base)
            axes.set(title=title, xlabel=label, ylabel="accuracy, %", ylim=(0, 104))
            axes.set_xlim(ticks[0] / 1.2, ticks[-1] * (ticks[-1] / ticks[0]) ** 0.6)
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
            axes.minorticks_off()
            lines(axes, ticks, {name: percent(values) for name, values in named.items()})
