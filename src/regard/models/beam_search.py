"""Step-by-step search for translations: greedy search and beam search.

    score = log p(tokens | source) / length^α

length is the number of tokens including EOS, and α is `length_penalty`. 0 keeps the sum, which favours short
translations; 1 is the mean per token. Wu et al. 2016, section 7, use another form.

Sentences are decoded together. A finished sentence is removed, so that no further step is computed for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ..attention.native.decoding import log_softmax_top_k
from ..core.messages import number_errors
from ..core.settings import refuse
from ..data import BOS, EOS
from .encoder_decoder import EncoderDecoder

MAX_PENALTY = 10.0
"""Largest absolute value of α. A power of the length with a much larger exponent overflows."""
MAX_SIZE = 1024
"""Largest number of hypotheses."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation found by the search.

    >>> Hypothesis((5, 7), score=-0.25)
    Hypothesis(tokens=(5, 7), score=-0.25, ended=True)
    """

    tokens: tuple[int, ...]
    """Ids, without BOS and EOS."""
    score: float
    """log p / length^α: comparable among the hypotheses of a sentence."""
    ended: bool = True
    """Whether it ended with EOS, rather than being cut at the maximum length."""


def greedy(
    model: EncoderDecoder,
    source: Tensor,
    lengths: Tensor,
    *,
    longest: int | None = None,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """Take the most probable token at each step. Return one hypothesis per sentence.

    Args:
        model: any `EncoderDecoder`.
        source: (B, Ts) ids.
        lengths: (B,) number of valid source tokens.
        longest: maximum number of tokens, including EOS; default 2·source length + 10 for each sentence.
        length_penalty: α of the score. It does not affect the search.

    Raises:
        ValueError: for invalid arguments. The message has the value and a remedy.

    >>> from regard.models import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig(11, 13, width=8, heads=2, hidden=16))
    >>> source, lengths = torch.tensor([[5, 7, EOS], [6, EOS, 0]]), torch.tensor([3, 2])
    >>> [len(hypothesis.tokens) <= 4 for hypothesis in greedy(model, source, lengths, longest=4)]
    [True, True]
    """
    results = beam(model, source, lengths, size=1, length_penalty=length_penalty, longest=longest)
    return [best[0] if best else Hypothesis((), -math.inf, ended=False) for best in results]  # none if logits are NaN


@torch.no_grad()
def beam(
    model: EncoderDecoder,
    source: Tensor,
    lengths: Tensor,
    *,
    size: int = 5,
    length_penalty: float = 1.0,
    n_best: int = 1,
    longest: int | None = None,
) -> list[list[Hypothesis]]:
    """Beam search with `size` hypotheses per sentence.

    At each step, every hypothesis is continued by every token. Among the best `size` continuations of a sentence, those
    that end with EOS are finished. The best `size` others continue. At the last step, the best `size` are finished,
    whether they ended or are cut. A sentence is done when `size` hypotheses are finished, or when n_best are finished
    and no other can reach a better score.

    Ties are broken in favour of the earlier hypothesis. With size=1 the result equals that of `greedy`.

    Args:
        model, source, lengths, longest: see `greedy`.
        size: K, number of hypotheses per sentence.
        length_penalty: α of the score. It ranks finished hypotheses; those of one step have equal length.
        n_best: number of hypotheses returned per sentence, best first; fewer if fewer were found.

    Raises:
        ValueError: for invalid arguments. The message has the value and a remedy.

    >>> from regard.models import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig(11, 13, width=8, heads=2, hidden=16))
    >>> source, lengths = torch.tensor([[5, 7, EOS], [6, EOS, 0]]), torch.tensor([3, 2])
    >>> best = beam(model, source, lengths, size=4, n_best=2, longest=4)
    >>> [len(hypotheses) for hypotheses in best], best[0][0].score >= best[0][1].score
    ([2, 2], True)
    """
    check_search(size, n_best, length_penalty)
    limits = _limits(model, lengths, longest)
    with evaluating(model):
        state = model.begin(model.encode(source, lengths))
        beams = _Beams(len(source), size, n_best, length_penalty, limits)
        while len(beams.live):
            logits, state = model.step(beams.tokens, state)  # (B·K, V)
            rows, sentences = beams.advance(logits)
            if len(beams.live) and rows is not None:
                state.reorder(rows, sentences)
    return beams.results()


class _Beams:
    """The hypotheses of B sentences, as rows of a table: one per sentence before the first step, then K."""

    def __init__(self, sentences: int, size: int, n_best: int, alpha: float, limits: Tensor) -> None:
        self.size, self.n_best, self.alpha, self.limits = size, n_best, alpha, limits
        self.live = list(range(sentences))
        self.finished: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.tokens = limits.new_full((sentences,), BOS)
        self.history = limits.new_empty(sentences, 0)  # (B·K, steps)
        self.total = torch.zeros(sentences, 1, device=limits.device)  # (B, K)

    def advance(self, logits: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Compute one step. Return the rows to continue from (None if unchanged) and the sentences (None for all)."""
        size, length = self.size, self.history.shape[1] + 1
        values, ids = log_softmax_top_k(logits.float(), size + 1)  # (B·K, K + 1): at least K besides EOS
        width = values.shape[1]
        total = (self.total.view(-1, 1) + values).view(len(self.live), -1)  # (B, K·(K + 1))
        total, candidates = total.sort(dim=-1, descending=True, stable=True)
        candidates = candidates[:, : 2 * size]
        total = total[:, : 2 * size]  # (B, 2K)
        tokens = ids.view(len(self.live), -1).gather(1, candidates)
        per_sentence = len(values) // len(self.live)  # hypotheses per sentence so far
        start = torch.arange(0, len(values), per_sentence, device=candidates.device)[:, None]  # (B, 1): first rows
        rows = start + candidates.div(width, rounding_mode="floor")  # (B, 2K)
        ended = tokens == EOS
        last = self.limits <= length  # (B,)
        final = (ended | last[:, None])[:, :size] & (total[:, :size] > -math.inf)
        self._record(final, tokens, rows, total)
        most = min(size, per_sentence * (width - 1))  # each row may also end with EOS
        continuing = ended.sort(dim=-1, stable=True).indices[:, :most]  # (B, K): the best that have not ended
        remaining = self._remaining_sentences(last, total.gather(1, continuing[:, :1]).squeeze(1))
        if remaining is not None:
            tokens, rows, total, continuing = (
                tokens[remaining],
                rows[remaining],
                total[remaining],
                continuing[remaining],
            )
            self.limits = self.limits[remaining]
        return self._continue(
            tokens.gather(1, continuing), rows.gather(1, continuing), total.gather(1, continuing)
        ), remaining

    def _record(self, final: Tensor, tokens: Tensor, rows: Tensor, total: Tensor) -> None:
        for sentence, rank in final.nonzero().tolist():
            history = [*self.history[rows[sentence, rank]].tolist(), int(tokens[sentence, rank])]
            hypothesis = _hypothesis(history, float(total[sentence, rank]), self.alpha)
            self.finished[self.live[sentence]].append(hypothesis)

    def _remaining_sentences(self, last: Tensor, best: Tensor) -> Tensor | None:
        """Return the sentences that continue; None if all do. best (B,): highest total among their hypotheses."""
        length = self.history.shape[1] + 2  # length of a hypothesis that ends at the next step
        remaining = []
        for index, (at_end, total, limit) in enumerate(
            zip(last.tolist(), best.tolist(), self.limits.tolist(), strict=True)
        ):
            finished = self.finished[self.live[index]]
            # a total never increases, so the best possible score is the current total at the most favourable length
            reach = max(total / length**self.alpha, total / max(limit, length) ** self.alpha)
            beaten = len(finished) >= self.n_best and self._worst(finished) >= reach
            if not (at_end or len(finished) >= self.size or beaten):
                remaining.append(index)
        if len(remaining) == len(self.live):
            return None
        remaining = _without_gaps(remaining)
        self.live = [self.live[index] for index in remaining]
        return torch.tensor(remaining, dtype=torch.long, device=last.device)

    def _worst(self, finished: list[Hypothesis]) -> float:
        """Return the score of the last of the n best."""
        return sorted((h.score for h in finished), reverse=True)[self.n_best - 1]

    def _continue(self, tokens: Tensor, rows: Tensor, total: Tensor) -> Tensor | None:
        """Continue with these (B', K) each. Return the rows to continue from; None if each row continues itself."""
        rows = rows.flatten()  # (B'·K,)
        self.tokens, self.total = tokens.flatten(), total
        same = len(rows) == len(self.history) and bool((rows == torch.arange(len(rows), device=rows.device)).all())
        history = self.history if same else self.history.index_select(0, rows)
        self.history = torch.cat((history, self.tokens[:, None]), 1)
        return None if same else rows

    def results(self) -> list[list[Hypothesis]]:
        return [sorted(hypotheses, key=lambda h: -h.score)[: self.n_best] for hypotheses in self.finished]


def _without_gaps(stay: list[int]) -> list[int]:
    """Fill the gaps in sorted indices with the last ones, so that the other rows stay where they are.

    >>> _without_gaps([0, 2, 3, 6, 7])
    [0, 7, 2, 3, 6]
    """
    staying, last = set(stay), iter(reversed(stay))
    return [index if index in staying else next(last) for index in range(len(stay))]


def _hypothesis(tokens: list[int], total: float, alpha: float) -> Hypothesis:
    ended = tokens[-1] == EOS
    return Hypothesis(tuple(tokens[:-1] if ended else tokens), total / len(tokens) ** alpha, ended)


def _limits(model: EncoderDecoder, lengths: Tensor, longest: int | None) -> Tensor:
    """Return the maximum number of tokens of each sentence: (B,)."""
    refuse([] if longest is None else number_errors("search", Integral, longest=longest))
    if longest is not None and longest < 1:
        raise ValueError(f"search: longest ({longest}) must be at least 1 token. None is twice the source plus 10.")
    limits = lengths * 2 + 10 if longest is None else torch.full_like(lengths, longest)
    return limits if model.longest is None else limits.clamp(max=model.longest)


def check_search(size: int, n_best: int, length_penalty: float) -> None:
    """Raise ValueError if an argument of `beam` is invalid."""
    refuse(
        number_errors("beam", Integral, size=size, n_best=n_best)
        + number_errors("search", Real, length_penalty=length_penalty)
    )
    if size < 1:
        raise ValueError(f"beam: size ({size}) must be at least 1 hypothesis. 5 is common.")
    if size > MAX_SIZE:
        raise ValueError(f"beam: size ({size}) must be at most {MAX_SIZE:,} hypotheses. 5 is common.")
    if not 1 <= n_best <= size:
        raise ValueError(f"beam: n_best ({n_best}) must lie in 1…{size}, the size. Try size={n_best} for as many.")
    if not abs(length_penalty) <= MAX_PENALTY:  # also refuses NaN
        raise ValueError(
            f"search: length_penalty ({length_penalty}) must lie in −{MAX_PENALTY:g}…{MAX_PENALTY:g}. 1 is the mean "
            "per token."
        )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch to evaluation mode, and restore the previous mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
