"""Order: whether self-attention sees order, without positions and with each encoding, within and beyond trained length.

Claim ("Attention", section 3): if the order of the input changes, the output changes in the same way, because the layer
is permutation equivariant. It ignores the order of its input unless each entry gets a positional encoding.

Two blocks read a row of symbols, one of which is marked. Each position has to name the preceding symbol, which requires
order, and the marked symbol, which does not. For trained models, the study measures what shuffling a row changes, in
float64, and the accuracy on rows longer than any in training. "Learned" positions have a table for the longest row,
whose entries beyond the trained length keep their initial values. (`LearnedPosition` itself rejects longer rows.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers import (
    EncoderBlock,
    FeedForward,
    LearnedPosition,
    MultiHeadAttention,
    RotaryPosition,
    SinusoidalPosition,
)
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._compare import percent
from studies._learn import learn, lines, verdict

NUMBER = 7
SCHEMES = ("sinusoidal", "learned", "rotary")
NONE, CAUSAL = "no positions", "causal mask only"
WAYS = (NONE, CAUSAL, *SCHEMES)
EXACT = 1e-9
"""Largest difference in float64, relative to the output, that counts as equal."""
KNOWS = 0.9
"""Smallest accuracy at which a task counts as learned."""


@dataclass(frozen=True)
class Settings:
    symbols: int = 16
    width: int = 64
    heads: int = 4
    layers: int = 2
    longest: int = 32
    """Length of the longest training row; the shortest has 4 symbols."""
    lengths: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    """Lengths of test rows; the longest trained is one of them."""
    steps: int = 600
    batch: int = 64
    rate: float = 2e-3
    tested: int = 200
    """Number of test rows per length."""


QUICK = Settings(symbols=4, width=16, heads=2, longest=8, lengths=(8, 16), steps=12, batch=8, tested=10)


class Reader(nn.Module):
    """Maps symbol ids (B, T), the marked one increased by the number of symbols, to both logits, each (B, T, S)."""

    def __init__(self, way: str, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.causal = way == CAUSAL
        self.embedding = nn.Embedding(2 * settings.symbols, width)
        nn.init.normal_(self.embedding.weight, std=0.3)
        added = {
            "sinusoidal": lambda: SinusoidalPosition(width),
            "learned": lambda: LearnedPosition(width, length=max(settings.lengths)),
        }
        self.position = added.get(way, nn.Identity)()
        rotary = RotaryPosition() if way == "rotary" else None
        self.blocks = nn.ModuleList(
            EncoderBlock(
                MultiHeadAttention(width, settings.heads, position=rotary),
                FeedForward(width, 4 * width),
                norm_first=True,
            )
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.answers = nn.Linear(width, 2 * settings.symbols)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.position(self.embedding(ids))  # (B, T, W)
        for block in self.blocks:
            x = block(x, is_causal=self.causal)
        before, marked = self.answers(self.norm(x)).chunk(2, -1)
        return before, marked


def rows(symbols: int, length: int, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (B, T), the preceding symbol of each position (B, T), not valid for the first, and the mark (B, 1).

    >>> ids, before, marked = rows(4, 5, 1, torch.Generator().manual_seed(0))
    >>> bool((before[0, 1:] == ids[0, :-1] % 4).all()), bool(marked == ids[ids >= 4] - 4)
    (True, True)
    """
    row = torch.randint(symbols, (size, length), generator=draw)
    index = torch.randint(length, (size, 1), generator=draw)
    ids = row.scatter_add(1, index, torch.full_like(index, symbols))
    return ids, row.roll(1, 1), row.gather(1, index)


def measure(way: str, settings: Settings, seed: int) -> dict[str, Any]:
    """Train a model; return the accuracies at each length and the effect of shuffling."""
    torch.manual_seed(seed)
    model = Reader(way, settings)

    def loss(draw: torch.Generator) -> Tensor:
        length = int(torch.randint(4, settings.longest + 1, (), generator=draw))
        ids, before, marked = rows(settings.symbols, length, settings.batch, draw)
        first, second = model(ids)
        return F.cross_entropy(first[:, 1:].flatten(0, 1), before[:, 1:].flatten()) + F.cross_entropy(
            second.flatten(0, 1), marked.expand(-1, length).flatten()
        )

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    results: dict[str, Any] = {"before": [], "marked": []}
    with torch.inference_mode():
        for length in settings.lengths:
            ids, before, marked = rows(settings.symbols, length, settings.tested, draw)
            first, second = model(ids)
            results["before"].append((first.argmax(-1) == before)[:, 1:].float().mean().item())
            # The last position sees the whole row even with a causal mask.
            results["marked"].append((second[:, -1].argmax(-1) == marked[:, 0]).float().mean().item())
    return {**results, "shuffled": shuffled(model, settings, draw)}


@torch.no_grad()
def shuffled(model: Reader, settings: Settings, draw: torch.Generator) -> float:
    """Return the largest relative difference between the output of a shuffled row and the shuffled output."""
    ids, _, _ = rows(settings.symbols, settings.longest, 8, draw)
    order = torch.randperm(settings.longest, generator=draw)
    model.double()
    of_shuffled, output = (torch.cat(model(row), -1) for row in (ids[:, order], ids))
    return ((of_shuffled - output[:, order]).abs().max() / output.abs().max()).item()


def judge(results: Mapping[str, Sequence[Mapping[str, Any]]], settings: Settings) -> str:
    """Return the verdict from the measurements of each model and seed."""
    trained = settings.lengths.index(settings.longest)
    longest = len(settings.lengths) - 1

    def share(way: str, at: int, what: str = "before") -> float:
        return spread([run[what][at] for run in results[way]])[0]

    chance = 1 / settings.symbols
    moved = {way: [run["shuffled"] for run in results[way]] for way in WAYS}
    same = max(moved[NONE]) <= EXACT
    learned = ", ".join(f"{way} {share(way, trained):.0%}" for way in SCHEMES)
    parts = [
        (
            same,
            f"without positions, a shuffled row gave {'the shuffled output' if same else 'another output'} (largest "
            f"difference {max(moved[NONE]):.0e}), and the preceding symbol was named in {share(NONE, trained):.0%} of "
            f"cases (chance {chance:.0%})",
        ),
        (
            min(value for way in SCHEMES for value in moved[way]) > EXACT
            and all(share(way, trained) >= KNOWS for way in SCHEMES)
            and share(NONE, trained) < 2 * chance,
            f"positions gave {learned}",
        ),
    ]
    causal = share(CAUSAL, trained)
    parts.append(
        (
            causal < 2 * chance,
            f"a causal mask alone {'does not reveal order' if causal < 2 * chance else 'also reveals order'} "
            f"({causal:.0%})",
        )
    )
    longer = ", ".join(f"{way} {share(way, longest):.0%}" for way in SCHEMES)
    return f"{verdict(parts)[:-1]}; in rows of {settings.lengths[-1]}, trained on at most {settings.longest}: {longer}."


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("order", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    results = {
        way: [store.measure(f"{way}, seed {seed}", partial(measure, way, settings, seed)) for seed in claim.seeds]
        for way in WAYS
    }
    scores = {
        what: {way: [[run[what][at] for run in results[way]] for at in range(len(settings.lengths))] for way in WAYS}
        for what in ("before", "marked")
    }
    for what, named in scores.items():
        print(f"{f'{what}, %, length':<20}" + "".join(f"{length:>14}" for length in settings.lengths))
        for way, values in named.items():
            print(f"{way:<20}" + "".join(f"{format_mean(at, times=100):>14}" for at in values))
    print(f"{'effect of shuffling':<20}" + "".join(f"{way}: {_largest(results[way]):.0e}   " for way in WAYS))
    _draw(claim, settings, scores)
    print(judge(results, settings))
    print(claim.out / "figure.png")
    return 0


def _largest(runs: Sequence[Mapping[str, Any]]) -> float:
    return max(run["shuffled"] for run in runs)


def _draw(claim: Claim, settings: Settings, scores: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> None:
    titles = {"before": "preceding symbol: requires order", "marked": "marked symbol: does not require order"}
    with figure(claim.out / "figure.png", 2, (5.6, 3.8)) as panels:
        for axes, (what, title) in zip(panels, titles.items(), strict=True):
            axes.set(title=title, xlabel="symbols per row", ylabel="accuracy, %", ylim=(0, 104))
            axes.set_xlim(0, 1.35 * settings.lengths[-1])
            axes.set_xticks([length for length in settings.lengths if length % 32 == 0 or len(settings.lengths) < 4])
            axes.axvline(settings.longest, color="0.6", linewidth=0.8, linestyle=":")
            axes.annotate(" longest trained", (settings.longest, 1), color="0.4", fontsize=8)
            lines(axes, settings.lengths, {way: percent(values) for way, values in scores[what].items()})
