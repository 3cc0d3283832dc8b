"""The studies of claims: bottleneck, three ways, scaling, similarity, soft and hard, cues."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data import BOS, EOS
from studies import bottleneck, cues, scaling, similarity, soft_hard, three_ways
from studies.__main__ import claims, main
from studies._learn import _apart, in_turn, learn, verdict
from studies._sequence_models import Convolution

NAMES = ("bottleneck", "three_ways", "scaling", "similarity", "soft_hard", "cues")


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_goes_all_the_way(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [name, "--quick", "--seeds", "2", "--out", str(tmp_path)]
    assert main(options) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-2].startswith(("held: ", "held in part: ", "did not hold here: "))
    assert said.out.splitlines()[-1] == str(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "±" in said.out and " seed 1: " in said.err
    assert json.loads((tmp_path / "results.json").read_text())["measured"]
    (tmp_path / "figure.png").unlink()
    assert main(options) == 0  # a second time nothing is measured again, and all is said again
    again = capsys.readouterr()
    assert (again.out, again.err) == (said.out, "")
    assert (tmp_path / "figure.png").exists()


def test_they_are_numbered_in_order() -> None:
    assert [name for name in claims() if name in NAMES] == list(NAMES)


def test_learning_is_a_function_of_the_seed_and_stops_when_it_is_enough() -> None:
    def run(seed: int, enough: float = 0.0) -> list[float]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 1)

        def loss(source: torch.Generator) -> torch.Tensor:
            x = torch.randn(16, 3, generator=source)
            return (layer(x) - x.sum(-1, keepdim=True)).square().mean()

        return learn(layer, loss, steps=150, rate=0.1, seed=seed, enough=enough)

    assert run(0) == run(0) != run(1)
    assert len(run(0)) == 150 and run(0)[-1] < 1e-2
    assert 20 <= len(run(0, enough=0.1)) < 150


def test_turns_are_taken_and_the_first_round_does_not_count() -> None:
    called: list[str] = []
    taken = in_turn({name: lambda n=name: called.append(n) for name in "abc"}, rounds=2)  # type: ignore[misc]
    assert called == list("abc" * 3) and set(taken) == set("abc")


def test_names_step_aside_as_little_as_they_must() -> None:
    assert _apart([5.0], 10) == [5.0]
    assert _apart([100.0, 0.0, 101.0, 50.0], 10) == [95.5, 0.0, 105.5, 50.0]
    crowd = _apart([1.0, 1.0, 1.0, 15.0], 10)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(crowd)) and sum(crowd) == 18.0


# bottleneck


def test_a_sentence_is_translated_word_by_word_with_neighbours_changed() -> None:
    source, target = bottleneck.sentences(50, 7, 24, draw())
    words = (source - bottleneck.FIRST).unique()
    assert len(words) == 24 and len({(7 * int(w) + 3) % 24 for w in words}) == 24  # one counterpart each
    assert int(target.min()) > EOS > BOS
    assert (target[:, 6] - bottleneck.FIRST == (7 * (source[:, 6] - bottleneck.FIRST) + 3) % 24).all()
    assert (target[:, 0] - bottleneck.FIRST == (7 * (source[:, 1] - bottleneck.FIRST) + 3) % 24).all()


def test_the_fixed_vector_has_no_fewer_parameters() -> None:
    for settings in (bottleneck.Settings(), bottleneck.QUICK):
        fixed, attentive = (
            sum(p.numel() for p in bottleneck.model_of(way, settings).parameters()) for way in bottleneck.WAYS
        )
        assert attentive <= fixed < 1.05 * attentive


def test_words_are_judged_at_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = bottleneck.sentences(2, 4, 24, draw())

    class Found:
        def __init__(self, tokens: list[int]) -> None:
            self.tokens = tuple(tokens)

    written = [Found(target[0].tolist()), Found(target[1, :1].tolist())]  # whole, and one word of four
    monkeypatch.setattr(bottleneck, "greedy", lambda *given, **options: written)
    assert bottleneck.right(None, source, target) == pytest.approx(5 / 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fixed", "additive", "said"),
    [
        ([0.99, 0.4, 0.1], [1.0, 0.99, 0.2], "held: one fixed vector loses"),  # what is beyond the trained is no part
        ([0.99, 0.97, 0.9], [1.0, 0.99, 0.9], "held in part: attention does not lose"),
        ([0.99, 0.4, 0.1], [0.99, 0.5, 0.1], "held in part: one fixed vector loses"),
        ([0.99, 0.98, 0.1], [0.99, 0.5, 0.1], "did not hold here: one fixed vector does not lose"),
        ([0.99, 0.4, 0.1], [0.1, 0.1, 0.1], "did not hold here: additive did not learn"),
    ],
)
def test_verdicts_of_bottleneck(fixed: list[float], additive: list[float], said: str) -> None:
    scores = {"fixed": [[v, v] for v in fixed], "additive": [[v, v] for v in additive]}
    assert bottleneck.judge(scores, (2, 24, 32), 24).startswith(said)


# three ways


def test_what_is_recalled_is_the_first_entry_and_nowhere_else() -> None:
    ids, answer = three_ways.sequences(40, 9, 16, draw())
    assert (ids[:, 0] == answer).all() and (ids[:, 1:] >= 16).all() and answer.unique().numel() > 8


def test_a_deep_convolution_sees_the_first_entry_and_a_shallow_one_does_not() -> None:
    settings = three_ways.Settings()
    made = {name: make() for name, make in three_ways.ways(settings).items()}
    assert math.isfinite(made["convolution, deep"].path(settings.lengths[-1]))
    assert math.isinf(made["convolution"].path(settings.lengths[-1]))
    model = three_ways.Recall(Convolution(8, 2), 4).eval()
    ids, _ = three_ways.sequences(3, 40, 4, draw())
    other = ids.clone()
    other[:, 0] = (ids[:, 0] + 1) % 4
    assert torch.equal(model(ids), model(other))


def test_memory_is_what_is_held_for_the_way_back() -> None:
    class Squared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, 7, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight) ** 2  # holds x for the weight, and the product for the square

    assert three_ways.held(Squared(), torch.randn(1, 7, 5)) == 2 * 7 * 5 * 4


def _ways(recalled: dict[str, float], slower: float = 3.0, ours: float = 2.0, stored: float = 4.0) -> str:
    names = ("recurrence", "convolution", "convolution, deep", "self-attention")
    scores = {name: [[1.0, 1.0], [recalled.get(name, 1.0)] * 2] for name in names}
    costs: dict[str, Any] = {name: {"seconds": [1.0, 1.0], "bytes": [1.0, 2.0], "steps": [1, 1]} for name in names}
    costs["recurrence"]["seconds"][-1] = slower
    costs["self-attention"]["bytes"][-1] = ours
    costs["self-attention, weights stored"] = {"seconds": [1.0, 1.0], "bytes": [1.0, stored], "steps": [1, 1]}
    return three_ways.judge(scores, costs, 256, (1024, 2048))


def test_verdicts_of_three_ways() -> None:
    short = {"convolution": 0.1, "convolution, deep": 0.1}
    assert _ways(short, ours=4.0).startswith("held: recurrence recalls over 256")
    part = _ways({"convolution": 0.1})
    assert part.startswith("held in part: ")
    assert "but convolution, deep recalls over 256 entries (100 %); with this operator it grows as length^1.0." in part
    never = _ways({"recurrence": 0.1, "self-attention": 0.1}, slower=0.5, stored=2.0)
    assert never.startswith("did not hold here: recurrence does not recall")


# scaling


def test_the_gradient_at_the_scores_is_that_of_the_equation() -> None:
    settings = scaling.Settings(keys=7, rows=5)
    source = draw(3)
    query, key = (torch.randn(n, 16, generator=source) for n in (5, 7))
    value, direction = (torch.randn(n, 16, generator=source) / 2 for n in (7, 5))
    weights, pull = (query @ key.T / 4).softmax(-1), direction @ value.T
    norms = (weights * (pull - (weights * pull).sum(-1, keepdim=True))).norm(dim=-1)  # of softmax: p · (g − p·g)
    found = scaling.at_start("scaled_dot", 16, settings, seed=3)
    wanted = (weights.amax(-1).mean().item(), norms.median().item(), norms.mean().item())
    assert found == pytest.approx(wanted, rel=1e-4)


def test_pairs_hold_the_word_that_is_asked_for_once() -> None:
    settings = scaling.Settings()
    asked, words, answers, right = scaling.pairs(200, settings, draw())
    meant = words == asked[:, None]
    assert (meant.sum(-1) == 1).all() and (answers[meant] == right).all()


@pytest.mark.parametrize(
    ("dot", "others", "learnt", "said"),
    [
        ((0.97, 0.02), (0.1, 0.9), (0.4, 1.0), "held: from 4 to 1024 wide, plain dot products leave 0.02"),
        ((0.97, 0.02), (0.1, 0.9), (1.0, 1.0), "held in part: "),
        ((0.3, 0.9), (0.97, 0.01), (1.0, 0.9), "did not hold here: from 4 to 1024 wide"),
    ],
)
def test_verdicts_of_scaling(
    dot: tuple[float, float], others: tuple[float, float], learnt: tuple[float, float], said: str
) -> None:
    every = {"dot": dot, "scaled_dot": others, "cosine": others}
    weight = {name: [[0.2, 0.2], [of[0]] * 2] for name, of in every.items()}
    gradient = {name: [[1.0, 1.0], [of[1]] * 2] for name, of in every.items()}
    right = {"dot": [[1.0] * 2, [learnt[0]] * 2], "scaled_dot": [[1.0] * 2, [learnt[1]] * 2], "cosine": [[1.0] * 2] * 2}
    start = {"weight": weight, "median": gradient, "mean": gradient}
    assert scaling.judge(start, right, (4, 1024)).startswith(said)


# similarity


def test_things_can_be_found_by_who_knows_both_languages() -> None:
    settings = similarity.Settings()
    things = similarity.Things(settings, seed=0)
    query, keys, answers, right, place = things.draw(300, draw())
    kinds = [(c, s) for c in range(settings.colours) for s in range(settings.shapes)]

    def read(language: int, described: torch.Tensor) -> torch.Tensor:
        plain = torch.stack([things.tables[language][c] + things.tables[language + 1][s] for c, s in kinds])
        return torch.cdist(described, plain).argmin(-1)

    meant = read(0, query) == read(2, keys)  # (300, among)
    assert meant.sum(-1).float().mean() == pytest.approx(1.0, abs=0.05)
    assert (meant.float().argmax(-1) == place).float().mean() > 0.98
    assert (answers.gather(1, place[:, None])[:, 0] == right).all()


def test_what_a_similarity_learns_by_itself() -> None:
    settings = similarity.Settings()
    own = {way: similarity.learnt_besides(way, settings) for way in similarity.WAYS}
    width = settings.width
    assert own == {**dict.fromkeys(own, 0), "bilinear": width * width, "additive": width}


@pytest.mark.parametrize(
    ("cosine", "dear", "said"),
    [
        (0.99, 1.2, "held: all are within 2 points of the best"),
        (0.80, 1.2, "held in part: additive takes 1.2 times"),
        (0.99, 4.0, "held in part: all are within"),
        (
            0.80,
            4.0,
            "did not hold here: cosine 80.0 % of answers right against 99.0 % of the best (dot); additive takes",
        ),
    ],
)
def test_verdicts_of_similarity(cosine: float, dear: float, said: str) -> None:
    right = {way: [cosine if way == "cosine" else 0.99] * 3 for way in similarity.WAYS}
    seconds = dict.fromkeys(right, 1.0) | {"additive": dear, similarity.WRITTEN: 30.0}
    assert similarity.judge(right, seconds).startswith(said)


# soft and hard


@pytest.mark.parametrize("times", [1, 2])
def test_lists_hold_the_answer(times: int) -> None:
    settings = soft_hard.Settings()
    asked, words, numbers, answer = soft_hard.lists(200, times, settings, draw())
    meant = words == asked[:, None]
    assert (meant.sum(-1) == times).all() and ((numbers * meant).sum(-1) == answer).all()
    assert int(answer.max()) <= times * (settings.numbers - 1)


def test_only_one_way_leaves_the_queries_without_a_gradient() -> None:
    for way in soft_hard.WAYS:
        torch.manual_seed(0)
        model = soft_hard.Reader(way, 1, soft_hard.QUICK)
        *given, _ = soft_hard.lists(8, 1, soft_hard.QUICK, draw())
        model(*given).square().sum().backward()
        told = [p.grad is not None and bool(p.grad.any()) for p in (model.query.weight, model.pool.key.weight)]
        assert told == [way != "hard, no gradient"] * 2
        assert model.value.weight.grad is not None and model.value.weight.grad.any()


@pytest.mark.parametrize(
    ("none", "through", "two", "said"),
    [
        (0.2, 0.3, 0.1, "held: a small step of the query changes 0.2 % of hard contexts; without a gradient"),
        (0.2, 0.99, 0.1, "held in part: "),
        (0.98, 0.99, 0.97, "held in part: a small step of the query changes 0.2 % of hard contexts; but without"),
    ],
)
def test_verdicts_of_soft_and_hard(none: float, through: float, two: float, said: str) -> None:
    ways = list(soft_hard.WAYS)
    right = {
        "one": dict(zip(ways, ([0.99] * 2, [none] * 2, [through] * 2), strict=True)),
        "two": dict(zip(ways, ([0.98] * 2, [0.1] * 2, [two] * 2), strict=True)),
    }
    moved = dict(zip(ways, ([1.0] * 2, [0.001] * 2, [0.002] * 2), strict=True))
    found = soft_hard.judge(right, moved)
    assert found.startswith(said)
    assert ("gradient trains it (99 %" in found) == (through == 0.99)
    right["one"]["soft"] = [0.2, 0.2]
    assert soft_hard.judge(right, moved).startswith("did not hold here: soft attention did not learn")


# cues


@pytest.mark.parametrize("task", cues.TASKS)
def test_a_desk_holds_the_answer(task: str) -> None:
    settings = cues.Settings()
    kinds, redness, written, wished, answer = cues.desks(200, 15, task, settings, draw())
    place = (
        redness.argmax(-1, keepdim=True) if task == "salience" else (kinds == wished[:, None]).long().argmax(-1, True)
    )
    assert (written.gather(1, place)[:, 0] == answer).all()
    assert all(len(set(row)) == 15 for row in kinds.tolist()) and (redness > 0.5).sum(-1).eq(1).all()


def test_no_pool_has_fewer_parameters_than_attention() -> None:
    sizes = {pool: cues.size_of(cues.onlooker(pool, cues.Settings())) for pool in cues.POOLS}
    assert all(sizes["attention"] <= size < 1.05 * sizes["attention"] for size in sizes.values())


def _cues(salience: float, wish: tuple[float, float], cup: int = cues.CUP, book: int = cues.BOOK) -> str:
    scores = {
        "salience": {pool: [[1.0], [salience if pool == "max" else 1.0]] for pool in cues.POOLS},
        "wish": {pool: [[w if pool == "max" else 0.99 * (pool == "attention")] for w in wish] for pool in cues.POOLS},
    }
    eye = torch.eye(len(cues.DESK)).tolist()
    return cues.judge(scores, {"salience, fully connected": [eye[cup]], "wish, attention": [eye[book]]}, (5, 40))


def test_verdicts_of_cues() -> None:
    held = _cues(0.98, (0.3, 0.2))
    assert held.startswith("held: for what stands out among 40 things the pools are alike (max 98 %, average 100 %)")
    assert "salience picks the coffee (100 %" in held and "the wish to read picks the book (100 %" in held
    part = _cues(0.98, (0.97, 0.2))
    assert part.startswith("held in part: ") and "but for what is wished for among 5 attention is not ahead" in part
    assert _cues(0.5, (0.99, 0.99), 0, 0).startswith(
        "did not hold here: for what stands out among 40 things the pools differ"
    )


def test_a_verdict_is_one_sentence() -> None:
    for parts in ([(True, "a")], [(False, "a")], [(True, "a"), (False, "b")]):
        assert verdict(parts).count(".") == 1 and verdict(parts).endswith(".")
