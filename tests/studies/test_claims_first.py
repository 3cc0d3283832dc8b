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
from studies._learn import _spread_out, interleaved_times, learn, verdict
from studies._sequence_models import Convolution

NAMES = ("bottleneck", "three_ways", "scaling", "similarity", "soft_hard", "cues")


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_runs_to_its_end_and_keeps_its_results(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [name, "--quick", "--seeds", "2", "--out", str(tmp_path)]
    assert main(options) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-2].startswith(("held: ", "held in part: ", "did not hold here: "))
    assert output.out.splitlines()[-1] == str(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "±" in output.out and " seed 1: " in output.err
    assert json.loads((tmp_path / "results.json").read_text())["measured"]
    (tmp_path / "figure.png").unlink()
    assert main(options) == 0  # a second run measures nothing and prints the same
    again = capsys.readouterr()
    assert (again.out, again.err) == (output.out, "")
    assert (tmp_path / "figure.png").exists()


def test_studies_are_numbered_in_order() -> None:
    assert [name for name in claims() if name in NAMES] == list(NAMES)


def test_training_is_determined_by_the_seed_and_stops_at_the_target_loss() -> None:
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


def test_functions_are_timed_in_turn() -> None:
    called: list[str] = []
    taken = interleaved_times({name: lambda n=name: called.append(n) for name in "abc"}, rounds=2)  # type: ignore[misc]
    assert called == list("abc" * 3) and set(taken) == set("abc")


def test_labels_move_as_little_as_necessary() -> None:
    assert _spread_out([5.0], 10) == [5.0]
    assert _spread_out([100.0, 0.0, 101.0, 50.0], 10) == [95.5, 0.0, 105.5, 50.0]
    crowd = _spread_out([1.0, 1.0, 1.0, 15.0], 10)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(crowd)) and sum(crowd) == 18.0


# bottleneck


def test_translations_replace_words_and_swap_neighbours() -> None:
    source, target = bottleneck.sentences(50, 7, 24, draw())
    words = (source - bottleneck.FIRST).unique()
    assert len(words) == 24 and len({(7 * int(w) + 3) % 24 for w in words}) == 24  # one counterpart each
    assert int(target.min()) > EOS > BOS
    assert (target[:, 6] - bottleneck.FIRST == (7 * (source[:, 6] - bottleneck.FIRST) + 3) % 24).all()
    assert (target[:, 0] - bottleneck.FIRST == (7 * (source[:, 1] - bottleneck.FIRST) + 3) % 24).all()


def test_the_fixed_vector_has_at_least_as_many_parameters() -> None:
    for settings in (bottleneck.Settings(), bottleneck.QUICK):
        fixed, attentive = (
            sum(p.numel() for p in bottleneck.model_of(way, settings).parameters()) for way in bottleneck.WAYS
        )
        assert attentive <= fixed < 1.05 * attentive


def test_words_are_compared_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = bottleneck.sentences(2, 4, 24, draw())

    class Hypothesis:
        def __init__(self, tokens: list[int]) -> None:
            self.tokens = tuple(tokens)

    written = [Hypothesis(target[0].tolist()), Hypothesis(target[1, :1].tolist())]  # all words, and one of four
    monkeypatch.setattr(bottleneck, "greedy", lambda *_, **__: written)
    assert bottleneck.right(None, source, target) == pytest.approx(5 / 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fixed", "additive", "expected"),
    [
        ([0.99, 0.4, 0.1], [1.0, 0.99, 0.2], "held: one fixed vector loses"),  # longer sentences do not matter
        ([0.99, 0.97, 0.9], [1.0, 0.99, 0.9], "held in part: attention does not lose"),
        ([0.99, 0.4, 0.1], [0.99, 0.5, 0.1], "held in part: one fixed vector loses"),
        ([0.99, 0.98, 0.1], [0.99, 0.5, 0.1], "did not hold here: one fixed vector does not lose"),
        ([0.99, 0.4, 0.1], [0.1, 0.1, 0.1], "did not hold here: additive did not learn"),
    ],
)
def test_verdicts_of_bottleneck(fixed: list[float], additive: list[float], expected: str) -> None:
    scores = {"fixed": [[v, v] for v in fixed], "additive": [[v, v] for v in additive]}
    assert bottleneck.judge(scores, (2, 24, 32), 24).startswith(expected)


# three ways


def test_the_answer_is_only_the_first_entry() -> None:
    ids, answer = three_ways.sequences(40, 9, 16, draw())
    assert (ids[:, 0] == answer).all() and (ids[:, 1:] >= 16).all() and answer.unique().numel() > 8


def test_a_deep_convolution_sees_the_first_entry_and_a_shallow_one_does_not() -> None:
    settings = three_ways.Settings()
    models = {name: make() for name, make in three_ways.ways(settings).items()}
    assert math.isfinite(models["convolution, deep"].path(settings.lengths[-1]))
    assert math.isinf(models["convolution"].path(settings.lengths[-1]))
    model = three_ways.Recall(Convolution(8, 2), 4).eval()
    ids, _ = three_ways.sequences(3, 40, 4, draw())
    other = ids.clone()
    other[:, 0] = (ids[:, 0] + 1) % 4
    assert torch.equal(model(ids), model(other))


def test_memory_is_that_of_tensors_saved_for_backward() -> None:
    class Squared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, 7, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight) ** 2  # saves x for the weight and the product for the square

    assert three_ways.saved_bytes(Squared(), torch.randn(1, 7, 5)) == 2 * 7 * 5 * 4


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


def test_the_gradient_at_the_scores_matches_the_equation() -> None:
    settings = scaling.Settings(keys=7, rows=5)
    source = draw(3)
    query, key = (torch.randn(n, 16, generator=source) for n in (5, 7))
    value, direction = (torch.randn(n, 16, generator=source) / 2 for n in (7, 5))
    weights, pull = (query @ key.T / 4).softmax(-1), direction @ value.T
    norms = (weights * (pull - (weights * pull).sum(-1, keepdim=True))).norm(
        dim=-1
    )  # gradient of softmax: p · (g − p·g)
    measured = scaling.at_start("scaled_dot", 16, settings, seed=3)
    expected = (weights.amax(-1).mean().item(), norms.median().item(), norms.mean().item())
    assert measured == pytest.approx(expected, rel=1e-4)


def test_pairs_contain_the_requested_word_once() -> None:
    settings = scaling.Settings()
    asked, words, answers, right = scaling.pairs(200, settings, draw())
    requested = words == asked[:, None]
    assert (requested.sum(-1) == 1).all() and (answers[requested] == right).all()


@pytest.mark.parametrize(
    ("dot", "others", "trained", "expected"),
    [
        ((0.97, 0.02), (0.1, 0.9), (0.4, 1.0), "held: from width 4 to 1024, plain dot products keep 0.02"),
        ((0.97, 0.02), (0.1, 0.9), (1.0, 1.0), "held in part: "),
        ((0.3, 0.9), (0.97, 0.01), (1.0, 0.9), "did not hold here: from width 4 to 1024"),
    ],
)
def test_verdicts_of_scaling(
    dot: tuple[float, float], others: tuple[float, float], trained: tuple[float, float], expected: str
) -> None:
    every = {"dot": dot, "scaled_dot": others, "cosine": others}
    weight = {name: [[0.2, 0.2], [of[0]] * 2] for name, of in every.items()}
    gradient = {name: [[1.0, 1.0], [of[1]] * 2] for name, of in every.items()}
    right = {
        "dot": [[1.0] * 2, [trained[0]] * 2],
        "scaled_dot": [[1.0] * 2, [trained[1]] * 2],
        "cosine": [[1.0] * 2] * 2,
    }
    start = {"weight": weight, "median": gradient, "mean": gradient}
    assert scaling.judge(start, right, (4, 1024)).startswith(expected)


# similarity


def test_an_oracle_for_both_languages_finds_the_object() -> None:
    settings = similarity.Settings()
    objects = similarity.Objects(settings, seed=0)
    query, keys, answers, right, index = objects.draw(300, draw())
    kinds = [(c, s) for c in range(settings.colours) for s in range(settings.shapes)]

    def read(language: int, described: torch.Tensor) -> torch.Tensor:
        plain = torch.stack([objects.tables[language][c] + objects.tables[language + 1][s] for c, s in kinds])
        return torch.cdist(described, plain).argmin(-1)

    matches = read(0, query) == read(2, keys)  # (300, among)
    assert matches.sum(-1).float().mean() == pytest.approx(1.0, abs=0.05)
    assert (matches.float().argmax(-1) == index).float().mean() > 0.98
    assert (answers.gather(1, index[:, None])[:, 0] == right).all()


def test_parameters_of_the_similarities() -> None:
    settings = similarity.Settings()
    own = {way: similarity.own_parameters(way, settings) for way in similarity.WAYS}
    width = settings.width
    assert own == {**dict.fromkeys(own, 0), "bilinear": width * width, "additive": width}


@pytest.mark.parametrize(
    ("cosine", "time", "expected"),
    [
        (0.99, 1.2, "held: all are within 2 points of the best"),
        (0.80, 1.2, "held in part: additive takes 1.2 times"),
        (0.99, 4.0, "held in part: all are within"),
        (
            0.80,
            4.0,
            "did not hold here: cosine 80.0 % accuracy against 99.0 % for the best (dot); additive takes",
        ),
    ],
)
def test_verdicts_of_similarity(cosine: float, time: float, expected: str) -> None:
    right = {way: [cosine if way == "cosine" else 0.99] * 3 for way in similarity.WAYS}
    seconds = dict.fromkeys(right, 1.0) | {"additive": time, similarity.EXPLICIT: 30.0}
    assert similarity.judge(right, seconds).startswith(expected)


# soft and hard


@pytest.mark.parametrize("times", [1, 2])
def test_lists_contain_the_answer(times: int) -> None:
    settings = soft_hard.Settings()
    asked, words, numbers, answer = soft_hard.lists(200, times, settings, draw())
    requested = words == asked[:, None]
    assert (requested.sum(-1) == times).all() and ((numbers * requested).sum(-1) == answer).all()
    assert int(answer.max()) <= times * (settings.numbers - 1)


def test_only_one_weighting_has_no_gradient_for_queries() -> None:
    for way in soft_hard.WAYS:
        torch.manual_seed(0)
        model = soft_hard.Reader(way, 1, soft_hard.QUICK)
        *inputs, _ = soft_hard.lists(8, 1, soft_hard.QUICK, draw())
        model(*inputs).square().sum().backward()
        trained = [p.grad is not None and bool(p.grad.any()) for p in (model.query.weight, model.pool.key.weight)]
        assert trained == [way != "hard, no gradient"] * 2
        assert model.value.weight.grad is not None and model.value.weight.grad.any()


@pytest.mark.parametrize(
    ("none", "through", "two", "expected"),
    [
        (0.2, 0.3, 0.1, "held: a small step of the query changes 0.2 % of hard contexts; without a gradient"),
        (0.2, 0.99, 0.1, "held in part: "),
        (0.98, 0.99, 0.97, "held in part: a small step of the query changes 0.2 % of hard contexts; but without"),
    ],
)
def test_verdicts_of_soft_and_hard(none: float, through: float, two: float, expected: str) -> None:
    ways = list(soft_hard.WAYS)
    right = {
        "one": dict(zip(ways, ([0.99] * 2, [none] * 2, [through] * 2), strict=True)),
        "two": dict(zip(ways, ([0.98] * 2, [0.1] * 2, [two] * 2), strict=True)),
    }
    moved = dict(zip(ways, ([1.0] * 2, [0.001] * 2, [0.002] * 2), strict=True))
    result = soft_hard.judge(right, moved)
    assert result.startswith(expected)
    assert ("gradient trains it (99 %" in result) == (through == 0.99)
    right["one"]["soft"] = [0.2, 0.2]
    assert soft_hard.judge(right, moved).startswith("did not hold here: soft attention did not learn")


# cues


@pytest.mark.parametrize("task", cues.TASKS)
def test_a_desk_contains_the_answer(task: str) -> None:
    settings = cues.Settings()
    kinds, redness, written, wished, answer = cues.desks(200, 15, task, settings, draw())
    index = (
        redness.argmax(-1, keepdim=True) if task == "salience" else (kinds == wished[:, None]).long().argmax(-1, True)
    )
    assert (written.gather(1, index)[:, 0] == answer).all()
    assert all(len(set(row)) == 15 for row in kinds.tolist()) and (redness > 0.5).sum(-1).eq(1).all()


def test_no_pooling_has_fewer_parameters_than_attention() -> None:
    sizes = {pool: cues.size_of(cues.build_model(pool, cues.Settings())) for pool in cues.POOLS}
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
    assert held.startswith("held: for salience among 40 objects, the poolings are similar (max 98 %, average 100 %)")
    assert "salience selects the coffee (100 %" in held and "the wish to read selects the book (100 %" in held
    part = _cues(0.98, (0.97, 0.2))
    assert part.startswith("held in part: ") and "but for a wish among 5 objects, attention is not ahead" in part
    assert _cues(0.5, (0.99, 0.99), 0, 0).startswith(
        "did not hold here: for salience among 40 objects, the poolings differ"
    )


def test_a_verdict_is_one_sentence() -> None:
    for parts in ([(True, "a")], [(False, "a")], [(True, "a"), (False, "b")]):
        assert verdict(parts).count(".") == 1 and verdict(parts).endswith(".")
