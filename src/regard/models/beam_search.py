"""Search for a good translation, step by step: greedy, and beam search.

    score = log p(tokens | source) / length^α

length counts the tokens with EOS, α is `length_penalty`: 0 leaves the sum as it is, which favours the short; 1 is the
mean per token (Wu et al. 2016, section 7, have another form of it).

Sentences are decoded together, and leave when they are done: no step is computed for them any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention.native.decoding import log_softmax_top_k
from ..data import BOS, EOS
from .encoder_decoder import EncoderDecoder


@dataclass(frozen=True)
class Hypothesis:
    """A translation that was found."""

    tokens: tuple[int, ...]
    """Ids, without BOS and EOS."""
    score: float
    """log p / length^α: comparable among the hypotheses of a sentence."""
    ended: bool = True
    """Whether it came to its EOS, or was cut where it was as long as allowed."""


def greedy(
    model: EncoderDecoder,
    source: Tensor,
    lengths: Tensor,
    *,
    longest: int | None = None,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """The most probable next token at each step, one hypothesis per sentence.

    Args:
        model: any `EncoderDecoder`.
        source: (B, Ts) ids.
        lengths: (B,) source tokens that count.
        longest: tokens at most, EOS counted; default 2·length of the source + 10, for each sentence.
        length_penalty: α, in the score alone.

    Raises:
        ValueError: with the value and the remedy.
    """
    found = beam(model, source, lengths, size=1, length_penalty=length_penalty, longest=longest)
    return [best[0] if best else Hypothesis((), -math.inf, ended=False) for best in found]  # none without a number


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
    """Beam search: `size` hypotheses of each sentence go on side by side.

    At each step every hypothesis is continued by every token. Of a sentence's continuations, those among the best
    `size` that end with EOS are finished; the best `size` others go on. At the last step allowed, the best `size` are
    finished, ended or cut. A sentence is done when `size` hypotheses are finished, or when n_best are and no other can
    come to a better score.

    Equal scores: the earlier hypothesis goes first. With size=1 the result is that of `greedy`.

    Args:
        model, source, lengths, longest: as `greedy` has them.
        size: K, hypotheses per sentence.
        length_penalty: α of the score. It decides among finished hypotheses; those of one step are equally long.
        n_best: hypotheses returned per sentence, the best first; fewer where there are no more.

    Raises:
        ValueError: with the value and the remedy.
    """
    _check(size, n_best, length_penalty)
    limits = _limits(model, lengths, longest)
    with evaluating(model):
        state = model.begin(model.encode(source, lengths))
        found = _Beams(len(source), size, n_best, length_penalty, limits)
        while len(found.live):
            logits, state = model.step(found.tokens, state)  # (B·K, V)
            rows, sentences = found.advance(logits)
            if len(found.live) and rows is not None:
                state.reorder(rows, sentences)
    return found.results()


class _Beams:
    """The hypotheses of B sentences, K each, as rows of a table; one each before the first step, all alike else."""

    def __init__(self, sentences: int, size: int, n_best: int, alpha: float, limits: Tensor) -> None:
        self.size, self.n_best, self.alpha, self.limits = size, n_best, alpha, limits
        self.live = list(range(sentences))
        self.finished: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.tokens = limits.new_full((sentences,), BOS)
        self.written = limits.new_empty(sentences, 0)  # (B·K, steps)
        self.total = torch.zeros(sentences, 1, device=limits.device)  # (B, K)

    def advance(self, logits: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """One step. Returns the rows to go on from, None for all as they are; and the sentences, None for all."""
        size, length = self.size, self.written.shape[1] + 1
        values, ids = log_softmax_top_k(logits.float(), size + 1)  # (B·K, K + 1): K others at least, and EOS
        width = values.shape[1]
        total = (self.total.view(-1, 1) + values).view(len(self.live), -1)  # (B, K·(K + 1))
        total, place = total.sort(dim=-1, descending=True, stable=True)
        place = place[:, : 2 * size]
        total = total[:, : 2 * size]  # (B, 2K)
        tokens = ids.view(len(self.live), -1).gather(1, place)
        each = len(values) // len(self.live)  # hypotheses so far
        start = torch.arange(0, len(values), each, device=place.device)[:, None]  # (B, 1): the first row of each
        rows = start + place.div(width, rounding_mode="floor")  # (B, 2K)
        ended = tokens == EOS
        last = self.limits <= length  # (B,)
        final = (ended | last[:, None])[:, :size] & (total[:, :size] > -math.inf)
        self._record(final, tokens, rows, total)
        most = min(size, each * (width - 1))  # EOS is one of a row's: where ids are few, so are those that go on
        going = ended.sort(dim=-1, stable=True).indices[:, :most]  # (B, K): the best that do not end
        stay = self._stay(last, total.gather(1, going[:, :1]).squeeze(1))
        if stay is not None:
            tokens, rows, total, going = tokens[stay], rows[stay], total[stay], going[stay]
            self.limits = self.limits[stay]
        return self._go_on(tokens.gather(1, going), rows.gather(1, going), total.gather(1, going)), stay

    def _record(self, final: Tensor, tokens: Tensor, rows: Tensor, total: Tensor) -> None:
        for sentence, rank in final.nonzero().tolist():
            written = [*self.written[rows[sentence, rank]].tolist(), int(tokens[sentence, rank])]
            hypothesis = _hypothesis(written, float(total[sentence, rank]), self.alpha)
            self.finished[self.live[sentence]].append(hypothesis)

    def _stay(self, last: Tensor, best: Tensor) -> Tensor | None:
        """Which sentences go on; None where all do. best (B,): the highest total of those that could."""
        length = self.written.shape[1] + 2  # of a hypothesis that ends at the next step
        stay = []
        for place, (at_end, total, limit) in enumerate(
            zip(last.tolist(), best.tolist(), self.limits.tolist(), strict=True)
        ):
            finished = self.finished[self.live[place]]
            # a total only falls: what it can come to is its own, over the length that suits it best
            reach = max(total / length**self.alpha, total / max(limit, length) ** self.alpha)
            beaten = len(finished) >= self.n_best and self._worst(finished) >= reach
            if not (at_end or len(finished) >= self.size or beaten):
                stay.append(place)
        if len(stay) == len(self.live):
            return None
        stay = _closed(stay)
        self.live = [self.live[place] for place in stay]
        return torch.tensor(stay, dtype=torch.long, device=last.device)

    def _worst(self, finished: list[Hypothesis]) -> float:
        """The score of the last of the n best."""
        return sorted((h.score for h in finished), reverse=True)[self.n_best - 1]

    def _go_on(self, tokens: Tensor, rows: Tensor, total: Tensor) -> Tensor | None:
        """(B', K) each → the rows that are gone on from; None where each goes on from itself."""
        rows = rows.flatten()  # (B'·K,)
        self.tokens, self.total = tokens.flatten(), total
        same = len(rows) == len(self.written) and bool((rows == torch.arange(len(rows), device=rows.device)).all())
        written = self.written if same else self.written.index_select(0, rows)
        self.written = torch.cat((written, self.tokens[:, None]), 1)
        return None if same else rows

    def results(self) -> list[list[Hypothesis]]:
        return [sorted(found, key=lambda h: -h.score)[: self.n_best] for found in self.finished]


def _closed(stay: list[int]) -> list[int]:
    """The places that stay, given in order; the last of them take those of the ones that leave, and no other moves.

    >>> _closed([0, 2, 3, 6, 7])
    [0, 7, 2, 3, 6]
    """
    staying, last = set(stay), iter(reversed(stay))
    return [place if place in staying else next(last) for place in range(len(stay))]


def _hypothesis(written: list[int], total: float, alpha: float) -> Hypothesis:
    ended = written[-1] == EOS
    return Hypothesis(tuple(written[:-1] if ended else written), total / len(written) ** alpha, ended)


def _limits(model: EncoderDecoder, lengths: Tensor, longest: int | None) -> Tensor:
    """(B,): tokens at most, of each sentence."""
    if longest is not None and longest < 1:
        raise ValueError(f"search: longest ({longest}) must be at least 1 token. None is twice the source and 10 more.")
    limits = lengths * 2 + 10 if longest is None else torch.full_like(lengths, longest)
    return limits if model.longest is None else limits.clamp(max=model.longest)


def _check(size: int, n_best: int, length_penalty: float) -> None:
    if size < 1:
        raise ValueError(f"beam: size ({size}) must be at least 1 hypothesis. 5 is common.")
    if not 1 <= n_best <= size:
        raise ValueError(f"beam: n_best ({n_best}) must lie in 1…{size}, the size. Try size={n_best} for as many.")
    if not math.isfinite(length_penalty):
        raise ValueError(f"search: length_penalty ({length_penalty}) must be a finite number. 1 is the mean per token.")


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
