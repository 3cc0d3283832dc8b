"""Three ways: recall over growing distance, and cost, of recurrence, 1-D convolution and self-attention.

Claim ("Attention"): recurrent networks handle long sequences well but cannot run in parallel; 1-D convolution is highly
parallel but handles long sequences badly; self-attention has the advantages of both but needs much memory (compare
Vaswani et al. 2017, table 1).

Recall: the first entry of a sequence is a symbol, irrelevant entries follow, and the last entry asks for the symbol.
One network of each kind is trained on sequences of all lengths up to a limit. Convolution is tested twice: with as few
layers as self-attention, and with enough layers to see the first entry from the last.

Cost, of a forward and backward pass: sequential operations, time, and memory kept for the backward pass. Self-attention
is measured twice: with our operator, and with all weights stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._learn import interleaved_times, learn, lines, verdict
from studies._sequence_models import Convolution, Recurrent, SelfAttention

NUMBER = 2
MIN_ACCURACY = 0.9
"""Smallest accuracy at which a model is said to recall."""
TARGET_LOSS = 0.01
"""Loss at which training stops."""
QUADRATIC = 1.5
"""Exponent of growth with length from which memory is called quadratic instead of linear."""
Scores = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Settings:
    symbols: int = 16
    width: int = 64
    layers: int = 2
    heads: int = 4
    lengths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    """Lengths of the test sequences; the last is the longest trained."""
    steps: int = 1000
    """Upper limit of steps; training stops early once the task is learned."""
    batch: int = 32
    rate: float = 3e-3
    tested: int = 500
    costs: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    """Lengths at which cost is measured."""
    rounds: int = 5


QUICK = Settings(width=16, lengths=(4, 12), steps=20, batch=8, tested=20, costs=(32, 64, 128), rounds=2)


def ways(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return constructors of the networks."""
    width, layers, longest = settings.width, settings.layers, settings.lengths[-1]
    deep = next(n for n in range(1, 99) if math.isfinite(Convolution(2, n).path(longest)))
    return {
        "recurrence": partial(Recurrent, width, layers),
        "convolution": partial(Convolution, width, layers),
        "convolution, deep": partial(Convolution, width, deep),
        "self-attention": partial(SelfAttention, width, layers, heads=settings.heads),
    }


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("three_ways", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    runs = {
        name: [store.measure(f"{name}, seed {s}", partial(recall, name, settings, s)) for s in claim.seeds]
        for name in ways(settings)
    }
    scores = {name: [list(at) for at in zip(*results, strict=True)] for name, results in runs.items()}  # [length][seed]
    costs = store.measure("costs", lambda: cost(settings))
    print(_table(scores, costs, settings))
    _draw(claim, scores, costs, settings)
    print(judge(scores, costs, settings.lengths[-1], settings.costs))
    print(claim.out / "figure.png")
    return 0


class Recall(nn.Module):
    """Maps ids (B, T) to logits (B, symbols) of the first entry, computed from the last."""

    def __init__(self, mixer: Any, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * symbols + 1, mixer.width)
        self.mixer = mixer
        self.answer = nn.Linear(mixer.width, symbols)

    def forward(self, ids: Tensor) -> Tensor:
        return self.answer(self.mixer(self.embedding(ids))[:, -1])


def sequences(count: int, length: int, symbols: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return ids (count, length) and answers (count,): a symbol, irrelevant entries, and the question, which is the
    highest id.

    >>> ids, answer = sequences(3, 5, 16, torch.Generator().manual_seed(0))
    >>> bool((ids[:, 0] == answer).all()), ids[:, -1].tolist(), bool((ids[:, 1:-1] >= 16).all())
    (True, [32, 32, 32], True)
    """
    ids = torch.randint(symbols, 2 * symbols, (count, length), generator=draw)
    ids[:, 0] -= symbols
    ids[:, -1] = 2 * symbols
    return ids, ids[:, 0].clone()


def recall(name: str, settings: Settings, seed: int) -> list[float]:
    """Train a model and return its accuracy at each length."""
    torch.manual_seed(seed)
    model = Recall(ways(settings)[name](), settings.symbols)
    low, high = math.log(settings.lengths[0]), math.log(settings.lengths[-1])

    def loss(draw: torch.Generator) -> Tensor:
        length = round(math.exp(low + (high - low) * torch.rand((), generator=draw).item()))
        ids, answer = sequences(settings.batch, length, settings.symbols, draw)
        return F.cross_entropy(model(ids), answer)

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed, enough=TARGET_LOSS)
    draw, results = torch.Generator().manual_seed(seed), []
    for length in settings.lengths:
        ids, answer = sequences(settings.tested, length, settings.symbols, draw)
        with torch.no_grad():
            predicted = torch.cat([model(part) for part in ids.split(50)]).argmax(-1)
        results.append((predicted == answer).float().mean().item())
    return results


def cost(settings: Settings) -> dict[str, dict[str, list[float]]]:
    """Return sequential steps, seconds, and bytes kept for the backward pass, by model and length."""
    torch.manual_seed(0)
    models = {name: make() for name, make in ways(settings).items()}
    stored = SelfAttention(settings.width, settings.layers, heads=settings.heads)
    for block in stored.blocks:
        block.attention.attend = partial(attend, backend="reference")  # type: ignore[union-attr]
    models["self-attention, weights stored"] = stored
    results: dict[str, dict[str, list[float]]] = {n: {"steps": [], "seconds": [], "bytes": []} for n in models}
    for length in settings.costs:
        x = torch.randn(1, length, settings.width)
        taken = interleaved_times({n: partial(_pass, mixer, x) for n, mixer in models.items()}, settings.rounds)
        for name, mixer in models.items():
            results[name]["steps"].append(mixer.steps(length))
            results[name]["seconds"].append(taken[name])
            results[name]["bytes"].append(saved_bytes(mixer, x))
    return results


def _pass(mixer: Any, x: Tensor) -> None:
    mixer(x).sum().backward()


def saved_bytes(mixer: Any, x: Tensor) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in mixer.parameters()}
    seen: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        mixer(x).sum()
    return sum(size for address, size in seen.items() if address not in own)


def growth(values: Sequence[float], lengths: Sequence[int]) -> float:
    """Return the exponent of the growth of values with length, from the last two lengths.

    >>> growth([1.0, 4.0], [8, 16])
    2.0
    """
    return math.log(values[-1] / values[-2]) / math.log(lengths[-1] / lengths[-2])


def judge(scores: Scores, costs: Mapping[str, Mapping[str, Sequence[float]]], longest: int, at: Sequence[int]) -> str:
    """Return the verdict: which models recall over the longest sequence, and the cost of each."""
    reached = {name: spread(results[-1])[0] for name, results in scores.items()}

    def far(name: str) -> str:
        word = "recalls" if reached[name] >= MIN_ACCURACY else "does not recall"
        return f"{name} {word} over {longest} entries ({100 * reached[name]:.0f} %)"

    seconds = {name: results["seconds"][-1] for name, results in costs.items()}
    slower = seconds["recurrence"] / seconds["self-attention"]
    stored, ours = (growth(costs[n]["bytes"], at) for n in ("self-attention, weights stored", "self-attention"))
    return verdict(
        [
            (reached["recurrence"] >= MIN_ACCURACY, far("recurrence")),
            (slower > 1, f"over {at[-1]} entries recurrence takes {slower:.2g} times as long as self-attention"),
            (reached["convolution"] < MIN_ACCURACY, far("convolution")),
            (reached["convolution, deep"] < MIN_ACCURACY, far("convolution, deep")),
            (reached["self-attention"] >= MIN_ACCURACY, far("self-attention")),
            (stored >= QUADRATIC, f"with its weights stored, self-attention's memory grows as length^{stored:.1f}"),
            (ours >= QUADRATIC, f"with this operator it grows as length^{ours:.1f}"),
        ]
    )


def _table(scores: Scores, costs: Mapping[str, Mapping[str, Sequence[float]]], settings: Settings) -> str:
    rows = [f"{'accuracy, %, at length':<32}" + "".join(f"{length:>13}" for length in settings.lengths)]
    for name, results in scores.items():
        size = sum(p.numel() for p in ways(settings)[name]().parameters())
        rows.append(
            f"{name:<32}" + "".join(f"{format_mean(at, times=100):>13}" for at in results) + f"   {size:,} parameters"
        )
    rows.append(
        f"{f'one pass over {settings.costs[-1]} entries':<32}{'steps':>8}{'ms':>10}{'MB kept':>10}{'length^':>10}"
    )
    for name, of in costs.items():
        steps, seconds, size = (of[what][-1] for what in ("steps", "seconds", "bytes"))
        grown = growth(of["bytes"], settings.costs)
        rows.append(f"{name:<32}{steps:>8}{1e3 * seconds:>10.1f}{size / 1e6:>10.1f}{grown:>10.2f}")
    return "\n".join(rows)


def _draw(claim: Claim, scores: Scores, costs: Mapping[str, Any], settings: Settings) -> None:
    with figure(claim.out / "figure.png", 3) as (recalled, time, memory):
        recalled.set(xlabel="sequence length", ylabel="accuracy, %", ylim=(0, 104), xscale="log")
        recalled.set_xlim(settings.lengths[0] * 0.9, settings.lengths[-1] * 12)
        lines(recalled, settings.lengths, {n: [[100 * s for s in at] for at in f] for n, f in scores.items()})
        recalled.set_xticks(settings.lengths, [str(length) for length in settings.lengths], minor=False)
        for axes, what, times, label in ((time, "seconds", 1e3, "ms"), (memory, "bytes", 1e-6, "MB")):
            shown = {name: [[times * value] for value in of[what]] for name, of in costs.items()}
            every = [value for of in shown.values() for (value,) in of]
            axes.set(xscale="log", yscale="log", ylim=(min(every) / 2, max(every) * 2))
            axes.set_xlim(settings.costs[0] * 0.9, settings.costs[-1] * 30)
            lines(axes, settings.costs, shown)
            axes.set_xticks(settings.costs, [str(length) for length in settings.costs], minor=False)
            axes.minorticks_off()
            axes.set(xlabel="sequence length")
            axes.set_ylabel("forward and backward pass, ms" if label == "ms" else "kept for the backward pass, MB")
        recalled.minorticks_off()
