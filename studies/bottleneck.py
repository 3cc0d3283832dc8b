"""Bottleneck: one fixed vector against attention, in translating sentences of growing length.

Claim ("Attention"): with one fixed context vector, the length of the input becomes the bottleneck, because everything
must fit into that vector. With a new context at every step, the input no longer passes through a single vector
("Attention mechanism" makes the same argument; Bahdanau et al. 2015, section 1).

The models translate an artificial language. Every word has one counterpart and neighbouring words are swapped, so that
the previous words do not predict the next one. Both models are our `Seq2Seq`, trained in the same way on sentences of
all lengths up to a limit. The model with the fixed vector has at least as many parameters as the one with attention.
Greedy translations are scored word by word, at trained and longer lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import BOS, EOS, PAD
from regard.models.beam_search import greedy
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from studies._claim import Claim, ResultStore, figure, format_mean, spread
from studies._learn import learn, lines, verdict

NUMBER = 1
WAYS = ("fixed", "additive")
FIRST = EOS + 1
"""Smallest id of a word."""
MIN_ACCURACY = 0.5
"""Smallest accuracy on the shortest sentences at which a model counts as trained."""
LARGE_DROP = 0.1
"""Decrease in accuracy, from the shortest to the longest trained sentences, that counts as a loss."""


@dataclass(frozen=True)
class Settings:
    words: int = 24
    """Vocabulary size of the language."""
    width: int = 64
    longest: int = 24
    """Number of words of the longest training sentence."""
    lengths: tuple[int, ...] = (2, 4, 8, 12, 16, 20, 24, 28, 32)
    """Lengths of the test sentences."""
    steps: int = 2500
    batch: int = 64
    rate: float = 4e-3
    tested: int = 200
    """Number of test sentences per length."""


QUICK = Settings(width=16, longest=4, lengths=(2, 4, 6), steps=20, batch=8, tested=10)


def main(arguments: Sequence[str]) -> int:
    claim = Claim.parse("bottleneck", __doc__, arguments)
    settings = QUICK if claim.quick else Settings()
    store = ResultStore(claim.out, vars(settings))
    results = {
        way: [store.measure(f"{way}, seed {seed}", partial(measure, way, settings, seed)) for seed in claim.seeds]
        for way in WAYS
    }
    scores = {way: [list(at) for at in zip(*runs, strict=True)] for way, runs in results.items()}  # [length][seed]
    print(f"{'words per sentence':<20}" + "".join(f"{length:>14}" for length in settings.lengths))
    for way in WAYS:
        size = sum(p.numel() for p in model_of(way, settings).parameters())
        print(
            f"{way:<20}"
            + "".join(f"{format_mean(at, times=100):>14}" for at in scores[way])
            + f"   {size:,} parameters"
        )
    with figure(claim.out / "figure.png", size=(6.4, 3.8)) as (axes,):
        axes.set(xlabel="words per sentence", ylabel="correctly translated words, %", ylim=(0, 104))
        axes.set_xlim(0, 1.35 * settings.lengths[-1])
        axes.set_xticks(settings.lengths)
        axes.axvline(settings.longest, color="0.6", linewidth=0.8, linestyle=":")
        axes.annotate("longest trained ", (settings.longest, 3), ha="right", color="0.4", fontsize=8)
        percent = {way: [[100 * score for score in at] for at in scores[way]] for way in WAYS}
        lines(axes, settings.lengths, {"one fixed vector": percent["fixed"], "attention": percent["additive"]})
    print(judge(scores, settings.lengths, settings.longest))
    print(claim.out / "figure.png")
    return 0


def sentences(count: int, length: int, words: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random sentences and their translations, (count, length) ids each.

    Word w becomes 7·w + 3 modulo the vocabulary size, and neighbours are swapped in pairs. An odd last word stays.

    >>> source, target = sentences(1, 5, 24, torch.Generator().manual_seed(0))
    >>> (target - FIRST).tolist() == [[(7 * int(w) + 3) % 24 for w in (source[0] - FIRST)[[1, 0, 3, 2, 4]]]]
    True
    """
    source = torch.randint(words, (count, length), generator=draw)
    order = torch.arange(length)
    paired = length - length % 2
    order[:paired] = order[:paired].view(-1, 2).flip(1).flatten()
    return source + FIRST, (7 * source[:, order] + 3) % words + FIRST


def model_of(way: str, settings: Settings) -> Seq2Seq:
    """Return the `Seq2Seq` of a context type.

    With a fixed context, the width grows until the model has at least as many parameters as with attention.
    """
    vocabulary, width = FIRST + settings.words, settings.width
    config = Seq2SeqConfig(vocabulary, vocabulary, width, width, width, context="additive")
    if way != "fixed":
        return Seq2Seq(replace(config, context=way))
    budget = _size(Seq2Seq(config))
    config = replace(config, context="fixed")
    while _size(model := Seq2Seq(config)) < budget:
        config = replace(config, hidden=config.hidden + 1)
    return model


def _size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure(way: str, settings: Settings, seed: int) -> list[float]:
    """Return the accuracy per word at each test length."""
    torch.manual_seed(seed)
    model = model_of(way, settings)

    def loss(draw: torch.Generator) -> Tensor:
        length = int(torch.randint(1, settings.longest + 1, (), generator=draw))
        source, target = sentences(settings.batch, length, settings.words, draw)
        inputs = F.pad(target, (1, 0), value=BOS)
        targets = F.pad(target, (0, 1), value=EOS)
        lengths = torch.full((settings.batch,), length)
        return F.cross_entropy(model(source, lengths, inputs, lengths + 1).flatten(0, 1), targets.flatten())

    learn(model, loss, steps=settings.steps, rate=settings.rate, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    return [right(model, *sentences(settings.tested, length, settings.words, draw)) for length in settings.lengths]


def right(model: Seq2Seq, source: Tensor, target: Tensor) -> float:
    """Return the fraction of words that a greedy translation has at the correct position."""
    length = source.shape[1]
    results = greedy(model, source, torch.full((len(source),), length), longest=length + 1)
    written = torch.full_like(target, PAD)
    for row, hypothesis in enumerate(results):
        tokens = torch.tensor(hypothesis.tokens[:length], dtype=torch.long)
        written[row, : len(tokens)] = tokens
    return (written == target).float().mean().item()


def judge(scores: Mapping[str, Sequence[Sequence[float]]], lengths: Sequence[int], longest: int) -> str:
    """Return the verdict: whether the fixed vector loses long sentences and attention does not, at trained lengths.

    scores: by model, length and seed.
    """
    last = max(index for index, length in enumerate(lengths) if length <= longest)
    short, long = ({way: spread(scores[way][index])[0] for way in WAYS} for index in (0, last))

    if min(short.values()) < MIN_ACCURACY:
        worse = min(short, key=lambda way: short[way])
        return verdict([(False, f"{worse} did not learn to translate {lengths[0]} words ({100 * short[worse]:.0f} %)")])

    def describe(way: str, name: str) -> str:
        return (
            f"{name} {'loses' if short[way] - long[way] >= LARGE_DROP else 'does not lose'} long sentences "
            f"({100 * short[way]:.0f} % of words correct at {lengths[0]} words, {100 * long[way]:.0f} % at "
            f"{lengths[last]})"
        )

    return verdict(
        [
            (short["fixed"] - long["fixed"] >= LARGE_DROP, describe("fixed", "one fixed vector")),
            (short["additive"] - long["additive"] < LARGE_DROP, describe("additive", "attention")),
        ]
    )
