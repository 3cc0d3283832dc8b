"""Order: whether self-attention sees it, with no positions and with each kind, within and beyond the trained length.

The claim, from the notes: change the order of the input and the output changes in step, for the layer is permutation
equivariant, "it does not care about the order of its input; if we want it to, we have to give each entry a positional
encoding" (the note on attention layers, section 3).

Two blocks read a row of symbols, one of which is marked. Each place has to name the symbol that stands before it, which
takes order, and the marked symbol, which does not. A model that has learned is then asked what a shuffled row changes,
in float64, and how it does on rows longer than any it was trained on. "Learned" positions have a table as long as the
longest row, whose rows beyond the trained length stay as they began: `LearnedPosition` itself refuses to go on.
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
from studies._claim import Claim, Kept, figure, spread, told
from studies._compare import percent
from studies._learn import learn, lines, verdict

NUMBER = 7
SCHEMES = ("sinusoidal", "learned", "rotary")
NONE, CAUSAL = "no positions", "causal mask only"
WAYS = (NONE, CAUSAL, *SCHEMES)
EXACT = 1e-9
"""What float64 may differ by, as a share of the output, and still be the same output."""
KNOWS = 0.9
"""The share of rightly named symbols from which on a task counts as learned."""


@dataclass(frozen=True)
class Settings:
    symbols: int = 16
    width: int = 64
    heads: int = 4
    layers: int = 2
    longest: int = 32
    """Symbols of a row that is trained on; the shortest has 4."""
    lengths: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    """Of rows that are tested; the longest trained is one of them."""
    steps: int = 600
    batch: int = 64
    rate: float = 2e-3
    tested: int = 200
    """Rows of each length."""


QUICK = Settings(symbols=4, width=16, heads=2, longest=8, lengths=(8, 16), steps=12, batch=8, tested=10)


class Reader(nn.Module):
    """Ids of symbols (B, T), the marked one raised by their number → logits of both answers, each (B, T, S)."""

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
        turned = RotaryPosition() if way == "rotary" else None
        self.blocks = nn.ModuleList(
            EncoderBlock(
                MultiHeadAttention(width, settings.heads, position=turned),
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
    """Ids (B, T), the symbol before each place (B, T), of which the first is to be left out, and the marked one (B, 1).

    >>> ids, before, marked = rows(4, 5, 1, torch.Generator().manual_seed(0))
    >>> bool((before[0, 1:] == ids[0, :-1] % 4).all()), bool(marked == ids[ids >= 4] - 4)
    (True, True)
    """
    row = torch.randint(symbols, (size, length), generator=draw)
    place = torch.randint(length, (size, 1), generator=draw)
    ids = row.scatter_add(1, place, torch.full_like(place, symbols))
    return ids, row.roll(1, 1), row.gather(1, place)


def measure(way: str, settings: Settings, seed: int) -> dict[str, Any]:
    """Train; then the shares of right answers at each length, and what shuffling changes."""
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
    found: dict[str, Any] = {"before": [], "marked": []}
    with torch.inference_mode():
        for length in settings.lengths:
            ids, before, marked = rows(settings.symbols, length, settings.tested, draw)
            first, second = model(ids)
            found["before"].append((first.argmax(-1) == before)[:, 1:].float().mean().item())
            # at the last place, from which a causal mask too lets all of the row be seen
            found["marked"].append((second[:, -1].argmax(-1) == marked[:, 0]).float().mean().item())
    return {**found, "shuffled": shuffled(model, settings, draw)}


@torch.no_grad()
def shuffled(model: Reader, settings: Settings, draw: torch.Generator) -> float:
    """The largest difference between the output of a shuffled row and the shuffled output, as a share."""
    ids, _, _ = rows(settings.symbols, settings.longest, 8, draw)
    order = torch.randperm(settings.longest, generator=draw)
    model.double()
    of_shuffled, output = (torch.cat(model(row), -1) for row in (ids[:, order], ids))
    return ((of_shuffled - output[:, order]).abs().max() / output.abs().max()).item()


def judge(found: Mapping[str, Sequence[Mapping[str, Any]]], settings: Settings) -> str:
    """The sentence, from what was measured of each way, seed by seed."""
    trained = settings.lengths.index(settings.longest)
    longest = len(settings.lengths) - 1

    def share(way: str, at: int, what: str = "before") -> float:
        return spread([run[what][at] for run in found[way]])[0]

    chance = 1 / settings.symbols
    moved = {way: [run["shuffled"] for run in found[way]] for way in WAYS}
    same = max(moved[NONE]) <= EXACT
    known = ", ".join(f"{way} {share(way, trained):.0%}" for way in SCHEMES)
    parts = [
        (
            same,
            f"without positions a shuffled row gave {'the shuffled output' if same else 'another output'} (largest "
            f"difference {max(moved[NONE]):.0e}), and the symbol before was named in {share(NONE, trained):.0%} of "
            f"cases (chance {chance:.0%})",
        ),
        (
            min(value for way in SCHEMES for value in moved[way]) > EXACT
            and all(share(way, trained) >= KNOWS for way in SCHEMES)
            and share(NONE, trained) < 2 * chance,
            f"positions gave {known}",
        ),
    ]
    causal = share(CAUSAL, trained)
    parts.append(
        (
            causal < 2 * chance,
            f"a causal mask alone {'did not tell order either' if causal < 2 * chance else 'tells order too'} "
            f"({causal:.0%})",
        )
    )
    beyond = ", ".join(f"{way} {share(way, longest):.0%}" for way in SCHEMES)
    return f"{verdict(parts)[:-1]}; in rows of {settings.lengths[-1]}, trained on {settings.longest} at most: {beyond}."


def main(arguments: Sequence[str]) -> int:
    claim = Claim.of("order", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    kept = Kept(claim.out, vars(settings))
    found = {
        way: [kept.of(f"{way}, seed {seed}", partial(measure, way, settings, seed)) for seed in claim.seeds]
        for way in WAYS
    }
    scores = {
        what: {way: [[run[what][at] for run in found[way]] for at in range(len(settings.lengths))] for way in WAYS}
        for what in ("before", "marked")
    }
    for what, named in scores.items():
        print(f"{f'{what}, %, in rows of':<20}" + "".join(f"{length:>14}" for length in settings.lengths))
        for way, values in named.items():
            print(f"{way:<20}" + "".join(f"{told(at, times=100):>14}" for at in values))
    print(f"{'shuffling changes':<20}" + "".join(f"{way}: {_largest(found[way]):.0e}   " for way in WAYS))
    _draw(claim, settings, scores)
    print(judge(found, settings))
    print(claim.out / "figure.png")
    return 0


def _largest(runs: Sequence[Mapping[str, Any]]) -> float:
    return max(run["shuffled"] for run in runs)


def _draw(claim: Claim, settings: Settings, scores: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> None:
    titles = {"before": "the symbol before: takes order", "marked": "the marked symbol: takes none"}
    with figure(claim.out / "figure.png", 2, (5.6, 3.8)) as panels:
        for axes, (what, title) in zip(panels, titles.items(), strict=True):
            axes.set(title=title, xlabel="symbols of the row", ylabel="named rightly, %", ylim=(0, 104))
            axes.set_xlim(0, 1.35 * settings.lengths[-1])
            axes.set_xticks([length for length in settings.lengths if length % 32 == 0 or len(settings.lengths) < 4])
            axes.axvline(settings.longest, color="0.6", linewidth=0.8, linestyle=":")
            axes.annotate(" longest trained", (settings.longest, 1), color="0.4", fontsize=8)
            lines(axes, settings.lengths, {way: percent(values) for way, values in scores[what].items()})
