"""Search: a beam of one is greedy, a beam of all hypotheses is exhaustive, and sentences are independent."""

import itertools
import math
import re

import pytest
import torch
from torch import Tensor

from regard.data import BOS, EOS
from regard.models import Hypothesis, beam, greedy
from regard.models.encoder_decoder import Memory
from tests.models.translators import CONFIGS, LENGTHS, build, sentences

some = pytest.mark.parametrize("name", ["additive", "fixed", "deep lstm", "transformer", "rotary", "learned"])


def sharp(name: str):
    """A model that is not near to uniform, so that hypotheses differ and some come to an end."""
    model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


class Table:
    """p(next | last, sentence) from a table of logits (B, V, V): a translator that can be enumerated."""

    longest, training, config = None, False, None

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        return Memory(self.table[source[:, 0]], lengths)

    def begin(self, memory: Memory) -> "TableState":
        return TableState(memory.states)

    def step(self, tokens: Tensor, state: "TableState") -> tuple[Tensor, "TableState"]:
        return state.rows[torch.arange(len(tokens)), tokens], state

    def eval(self) -> "Table":
        return self

    def train(self, mode: bool) -> None: ...


class TableState:
    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.rows = self.rows[rows]


def brute_force(logits: Tensor, longest: int, alpha: float) -> list[Hypothesis]:
    """Every sequence up to EOS or the longest allowed, by its score."""
    log_p, size, result = logits.log_softmax(-1), len(logits), []
    for length in range(1, longest + 1):
        for tokens in itertools.product(range(size), repeat=length):
            if EOS in tokens[:-1] or (length < longest and tokens[-1] != EOS):
                continue
            total = sum(float(log_p[a, b]) for a, b in zip((BOS, *tokens[:-1]), tokens, strict=True))
            ended = tokens[-1] == EOS
            result.append(Hypothesis(tokens[:-1] if ended else tokens, total / length**alpha, ended))
    return sorted(result, key=lambda h: -h.score)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
def test_a_beam_of_all_hypotheses_is_exhaustive(alpha: float) -> None:
    model, longest = Table(torch.randn(2, 4, 4) * 2), 4
    how = {"size": 400, "n_best": 7, "longest": longest, "length_penalty": alpha}
    result = beam(model, torch.tensor([[0], [1]]), torch.tensor([1, 1]), **how)
    for b in range(2):
        expected = brute_force(model.table[b], longest, alpha)[:7]
        assert [h.tokens for h in result[b]] == [h.tokens for h in expected]
        assert [h.score for h in result[b]] == pytest.approx([h.score for h in expected], rel=1e-5)
        assert [h.ended for h in result[b]] == [h.ended for h in expected]


def by_hand(logits: Tensor, size: int, longest: int, alpha: float) -> list[Hypothesis]:
    """Beam search as its docstring says it, all continuations sorted, and without leaving early."""
    log_p, live, finished = logits.log_softmax(-1).tolist(), [((BOS,), 0.0)], []
    for length in range(1, longest + 1):
        longer = [((*tokens, t), total + p) for tokens, total in live for t, p in enumerate(log_p[tokens[-1]])]
        longer.sort(key=lambda pair: -pair[1])
        for tokens, total in longer[:size]:
            if tokens[-1] == EOS or length == longest:
                ended = tokens[-1] == EOS
                finished.append(Hypothesis(tokens[1:-1] if ended else tokens[1:], total / length**alpha, ended))
        live = [pair for pair in longer if pair[0][-1] != EOS][:size]
        if len(finished) >= size:
            break
    return sorted(finished, key=lambda h: -h.score)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize(("size", "n_best"), [(2, 1), (3, 3), (5, 2)])
def test_beam_search_by_hand(size: int, n_best: int, alpha: float) -> None:
    model, count, longest = Table(torch.randn(40, 7, 7) * 2), 40, 8
    model.table[: count // 2, :, EOS] += 2.0  # half of them end early, and often
    how = {"size": size, "n_best": n_best, "length_penalty": alpha, "longest": longest}
    result = beam(model, torch.arange(count)[:, None], torch.ones(count, dtype=torch.long), **how)
    for b in range(count):
        expected = by_hand(model.table[b], size, longest, alpha)[:n_best]
        # the same pairs of tokens in another order have the same total: only scores tell such apart from errors
        assert [h.score for h in result[b]] == pytest.approx([h.score for h in expected], rel=1e-4), b
        assert [len(h.tokens) for h in result[b]] == [len(h.tokens) for h in expected], b


@some
def test_a_beam_of_one_is_greedy(name: str) -> None:
    model, (source, lengths, _) = sharp(name), sentences()
    for longest in (1, 4, None):
        one = beam(model, source, lengths, size=1, longest=longest)
        for (result,), expected in zip(one, greedy(model, source, lengths, longest=longest), strict=True):
            assert result.tokens == expected.tokens and result.ended == expected.ended
            assert result.score == pytest.approx(expected.score, rel=1e-5)


@some
def test_greedy_takes_the_best_token_each_time(name: str) -> None:
    model, (source, lengths, _) = sharp(name), sentences()
    memory = model.encode(source, lengths)
    for b, result in enumerate(greedy(model, source, lengths, longest=6)):
        expected = [*result.tokens, *([EOS] if result.ended else [])]
        assert result.ended or len(expected) == 6
        inputs = torch.tensor([[BOS, *expected[:-1]]])
        log_p = model.logits(model.decode(inputs, memory.reorder(torch.tensor([b])))).log_softmax(-1)[0]
        assert log_p.argmax(-1).tolist() == expected
        assert result.score == pytest.approx(log_p.amax(-1).mean().item(), rel=1e-4)


@some
def test_scores_are_those_of_the_model(name: str) -> None:
    model, (source, lengths, _) = sharp(name), sentences()
    memory = model.encode(source, lengths)
    result = beam(model, source, lengths, size=4, n_best=3, length_penalty=0.7, longest=7)
    for b, hypotheses in enumerate(result):
        assert len({h.tokens for h in hypotheses}) == 3
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            expected = torch.tensor([[*h.tokens, *([EOS] if h.ended else [])]])
            inputs = torch.cat((torch.tensor([[BOS]]), expected[:, :-1]), 1)
            log_p = model.logits(model.decode(inputs, memory.reorder(torch.tensor([b])))).log_softmax(-1)
            total = log_p.gather(-1, expected[..., None]).sum().item()
            assert h.score == pytest.approx(total / expected.shape[1] ** 0.7, rel=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_batched_is_one_by_one(name: str) -> None:
    model, (source, lengths, _) = sharp(name), sentences()
    together = beam(model, source, lengths, size=3, n_best=2)
    for b, length in enumerate(LENGTHS):
        (alone,) = beam(model, source[b : b + 1, :length], lengths[b : b + 1], size=3, n_best=2)
        assert [h.tokens for h in alone] == [h.tokens for h in together[b]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[b]], rel=1e-4)


def test_finished_sentences_leave() -> None:
    # sentence 0 ends at once; no step is computed for it afterwards
    model = Table(torch.zeros(2, 5, 5))
    model.table[0, :, EOS] = 20.0
    model.table[1, :, EOS] = -20.0
    seen: list[int] = []
    step = model.step
    model.step = lambda tokens, state: (seen.append(len(tokens)), step(tokens, state))[1]  # type: ignore[method-assign]
    greedy(model, torch.tensor([[0], [1]]), torch.tensor([1, 1]), longest=3)
    assert seen == [2, 1, 1]
    seen.clear()
    beam(model, torch.tensor([[0], [1]]), torch.tensor([1, 1]), size=2, longest=3, length_penalty=0.0)
    assert seen == [2, 2, 2]


def test_a_wider_beam_finds_a_better_translation_than_greedy() -> None:
    # the best first step leads nowhere good
    table = torch.full((1, 6, 6), -20.0)
    table[0, BOS, 4], table[0, BOS, 5] = 1.0, 0.9
    table[0, 4] = 0.0
    table[0, 5, EOS] = 9.0
    model, source, lengths = Table(table), torch.tensor([[0]]), torch.tensor([1])
    assert greedy(model, source, lengths, longest=2)[0].tokens[0] == 4
    assert beam(model, source, lengths, size=2, longest=2)[0][0].tokens == (5,)


def test_a_long_hypothesis_may_catch_up() -> None:
    # EOS at once has the better mean now, 0.6 to 0.3; nineteen sure tokens later it has not
    table = torch.zeros(1, 5, 5)
    table[0, :, [BOS, EOS]] = -20.0
    table[0, BOS] = torch.tensor([0.04, 0.03, 0.03, 0.6, 0.3]).log()
    table[0, 4, 4] = 6.0
    result = beam(Table(table), torch.tensor([[0]]), torch.tensor([1]), size=2, longest=20, length_penalty=1.0)
    assert result[0][0].tokens == (4,) * 20 and not result[0][0].ended
    short = beam(Table(table), torch.tensor([[0]]), torch.tensor([1]), size=2, longest=20, length_penalty=0.0)
    assert short[0][0].tokens == ()


def test_the_default_length_is_that_of_each_sentence() -> None:
    model = Table(torch.zeros(2, 5, 5))
    model.table[:, :, EOS] = -50.0
    result = greedy(model, torch.tensor([[0], [1]]), torch.tensor([1, 5]))
    assert [len(h.tokens) for h in result] == [12, 20] and not result[0].ended
    (first,), (second,) = beam(model, torch.tensor([[0], [1]]), torch.tensor([1, 5]), size=2)
    assert [len(first.tokens), len(second.tokens)] == [12, 20]


def test_equal_scores_have_an_order() -> None:
    model = Table(torch.zeros(1, 6, 6))
    runs = [beam(model, torch.tensor([[0]]), torch.tensor([1]), size=4, n_best=4, longest=3) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


def test_dropout_is_off_and_the_mode_stays() -> None:
    model, (source, lengths, _) = build("transformer").train(), sentences()
    assert beam(model, source, lengths) == beam(model, source, lengths) and model.training


WRONG = [
    ({"size": 0}, "beam: size (0) must be at least 1 hypothesis. 5 is common."),
    ({"n_best": 6}, "beam: n_best (6) must lie in 1…5, the size. Try size=6 for as many."),
    ({"n_best": 0}, "beam: n_best (0) must lie in 1…5"),
    ({"longest": 0}, "search: longest (0) must be at least 1 token."),
    ({"length_penalty": math.nan}, "search: length_penalty (nan) must lie in −10…10."),
    ({"length_penalty": -10.5}, "search: length_penalty (-10.5) must lie in −10…10."),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda x: str(x)[:24])
def test_wrong_options(options: dict, message: str) -> None:
    model, (source, lengths, _) = build("fixed"), sentences()
    with pytest.raises(ValueError, match=re.escape(message)):
        beam(model, source, lengths, **options)
