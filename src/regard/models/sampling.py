"""The choice of the next token from logits: greedy or at random, with the usual restrictions.

Order, as in transformers:

    repetition penalty → temperature → top-k → top-p → min-p → draw

Each restriction is a pure function (B, V) → (B, V) that sets the logits of excluded tokens to −∞. Results equal those
of the logits processors of transformers, also for ties and for logits that are −∞ already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import Tensor

from ..core.messages import number_errors
from ..core.tensors import shape

SEEDS = 2**63
"""Seeds are below this number."""
MIN_TEMPERATURE = 1e-20
"""Smaller temperatures have the same effect, but the divided logits would overflow to ∞."""
MIN_PENALTY, MAX_PENALTY = 0.001, 1000.0


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice of the next token. The defaults sample from the distribution of the model.

    >>> Sampling(temperature=0.0).greedy, Sampling(top_p=0.0, min_p=2.0).errors()
    (True, ['sampling: top_p (0.0) must lie in (0, 1].', 'sampling: min_p (2.0) must lie in [0, 1].'])
    >>> sampling, logits = Sampling(top_k=1, seed=3), torch.tensor([[0.0, 2.0, 1.0]])
    >>> sampling.restrict(logits), sampling.choose(logits, [sampling.generator()])
    (tensor([[-inf, 2., -inf]]), tensor([1]))
    """

    temperature: float = 1.0
    """Divides the logits: below 1 the text is more predictable, above 1 more varied; 0 takes the best token."""
    top_k: int = 0
    """Sample only from this many most probable tokens, and from those tied with the last one; 0 for all."""
    top_p: float = 1.0
    """Sample only from the fewest most probable tokens whose probabilities sum to this; 1 for all."""
    min_p: float = 0.0
    """Sample only from tokens with at least this fraction of the highest probability; 0 for all."""
    repetition_penalty: float = 1.0
    """Makes tokens of the prompt and of the text so far less probable: positive logits are divided by it, negative ones
    multiplied; 1 for none. From 0.001 to 1000."""
    seed: int | None = 0
    """Seed of the random numbers of each text; None for a different one each time. A prompt gives the same text alone
    and in a batch."""

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, without random numbers."""
        return self.temperature == 0

    def errors(self, where: str = "sampling") -> list[str]:
        """Return all errors in these settings, one sentence each."""
        names = ("temperature", "top_p", "min_p", "repetition_penalty")
        problems = number_errors(where, Real, **{name: getattr(self, name) for name in names})
        problems += number_errors(where, Integral, top_k=self.top_k, seed=0 if self.seed is None else self.seed)
        if problems:
            return problems
        if not 0 <= self.temperature < math.inf:
            problems.append(
                f"{where}: temperature ({self.temperature}) must be a finite number, 0 or more; 0 is greedy."
            )
        if self.top_k < 0:
            problems.append(f"{where}: top_k ({self.top_k}) must be 0 or more; 0 is all tokens.")
        if not 0 < self.top_p <= 1:
            problems.append(f"{where}: top_p ({self.top_p}) must lie in (0, 1].")
        if not 0 <= self.min_p <= 1:
            problems.append(f"{where}: min_p ({self.min_p}) must lie in [0, 1].")
        if not MIN_PENALTY <= self.repetition_penalty <= MAX_PENALTY:
            problems.append(
                f"{where}: repetition_penalty ({self.repetition_penalty}) must lie in [{MIN_PENALTY:g}, "
                f"{MAX_PENALTY:g}]; 1 is none."
            )
        if self.seed is not None and not 0 <= self.seed < SEEDS:
            problems.append(f"{where}: seed ({self.seed}) must lie in 0…{SEEDS - 1}.")
        return problems

    def generator(self) -> torch.Generator:
        """Return a new generator of random numbers for one text. The global random state is not used."""
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(int(self.seed))
        return generator

    def restrict(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return logits (B, V) after penalty, temperature and restrictions; −∞ for excluded tokens.

        seen: (B, V), boolean: tokens of the prompt and of the text so far. Needed only for the repetition penalty.
        """
        if self.repetition_penalty != 1 and seen is not None:
            logits = penalize_repetition(logits, seen, self.repetition_penalty)
        if self.greedy:
            return logits
        if self.temperature != 1:
            logits = logits / max(self.temperature, MIN_TEMPERATURE)
        if self.top_k:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p < 1:
            logits = keep_top_p(logits, self.top_p)
        return keep_min_p(logits, self.min_p) if self.min_p else logits

    def choose(self, logits: Tensor, generators: Sequence[torch.Generator], seen: Tensor | None = None) -> Tensor:
        """Return the next token of each text: logits (B, V) → (B,). See `restrict` for `seen`.

        generators: one per text, from `generator()`. Each call draws one number from each, unless greedy.
        """
        logits = self.restrict(logits.float(), seen)
        return logits.argmax(-1) if self.greedy else draw(logits, generators)


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of seen tokens by the penalty, and multiply negative ones.

    Paper: Keskar et al. 2019, section 4.1.
    Shapes: logits (B, V), seen (B, V) boolean → (B, V).

    >>> penalize_repetition(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
    tensor([[ 1., -4.,  2.]])
    """
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, penalized, logits)


def keep_top_k(logits: Tensor, count: int) -> Tensor:
    """Keep the `count` highest logits of each row, and those tied with the last one.

    Paper: Fan et al. 2018, section 5.4.

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), 2)
    tensor([[-inf, 3., 2., 2.]])
    """
    lowest = logits.topk(min(count, logits.shape[-1])).values[..., -1:]  # (B, 1)
    return logits.masked_fill(logits < lowest, -math.inf)


def keep_top_p(logits: Tensor, mass: float) -> Tensor:
    """Keep the fewest tokens of highest probability that sum to `mass`, at least one.

    Paper: Holtzman et al. 2020, section 3.1.

    >>> keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.7).exp()
    tensor([[0.5000, 0.3000, 0.0000]])
    """
    ascending, order = logits.sort()
    excluded = ascending.softmax(-1).cumsum(-1) <= 1 - mass
    excluded[..., -1] = False
    return logits.masked_fill(excluded.scatter(-1, order, excluded), -math.inf)


def keep_min_p(logits: Tensor, fraction: float) -> Tensor:
    """Keep tokens with at least this fraction of the highest probability.

    Paper: Nguyen et al. 2024, section 3.

    >>> keep_min_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.5).exp()
    tensor([[0.5000, 0.3000, 0.0000]])
    """
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < fraction * probabilities.amax(-1, keepdim=True), -math.inf)


def draw(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw one token of each row from softmax(logits): (B, V) → (B,).

    A uniform number u is drawn from the row's generator on the CPU, regardless of the device. The token is the first
    one at which the cumulative probability exceeds u, so a token of probability 0 is never drawn.

    >>> draw(torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]]), [Sampling(seed=1).generator() for _ in range(2)])
    tensor([0, 1])
    """
    if len(generators) != len(logits):
        raise ValueError(
            f"sampling: generators ({len(generators)}) must be one per row of logits ({shape(logits)}). Use "
            "[sampling.generator() for _ in logits]."
        )
    uniform = [torch.rand(1, generator=generator, dtype=torch.float64) for generator in generators]
    cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)  # (B, V)
    total = cumulative[:, -1:]  # (B, 1)
    threshold = torch.stack(uniform).to(logits.device) * total  # (B, 1)
    threshold = threshold.minimum(total.nextafter(torch.zeros_like(total)))  # the product may round up to the total
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)  # (B,)
