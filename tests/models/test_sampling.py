"""The choice of the next token: equal to the logits processors of transformers, and reproducible."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.models.sampling import (
    Sampling,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
)

ROWS, SIZE = 5, 61


def logits(kind: str) -> Tensor:
    """Return random logits; some tied, or some −∞."""
    values = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(3)) * 3
    if kind == "ties":
        return values.round()
    if kind == "excluded":
        return values.masked_fill(values < -1, -math.inf)
    if kind == "one token":
        return torch.full_like(values, -math.inf).index_fill(1, torch.tensor([7]), 1.5)
    return values


KINDS = ("random", "ties", "excluded", "one token")
IDS = torch.randint(SIZE, (ROWS, 9), generator=torch.Generator().manual_seed(1))
SEEN = torch.zeros(ROWS, SIZE, dtype=torch.bool).scatter(1, IDS, True)


def processors() -> dict[str, object]:
    process = pytest.importorskip("transformers.generation.logits_process")
    return {
        "penalty": process.RepetitionPenaltyLogitsProcessor(1.7),
        "temperature": process.TemperatureLogitsWarper(0.6),
        "top_k": process.TopKLogitsWarper(9),
        "top_p": process.TopPLogitsWarper(0.8),
        "min_p": process.MinPLogitsWarper(0.1),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_restriction_equals_the_one_of_transformers(kind: str) -> None:
    theirs, x = processors(), logits(kind)
    ours = {
        "penalty": penalize_repetition(x, SEEN, 1.7),
        "temperature": Sampling(temperature=0.6).restrict(x),
        "top_k": keep_top_k(x, 9),
        "top_p": keep_top_p(x, 0.8),
        "min_p": keep_min_p(x, 0.1),
    }
    for name, result in ours.items():
        assert torch.equal(result, theirs[name](IDS, x.clone())), name  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_all_restrictions_apply_in_the_order_of_transformers(kind: str) -> None:
    expected = x = logits(kind)
    for processor in processors().values():
        expected = processor(IDS, expected)  # type: ignore[operator]
    sampling = Sampling(temperature=0.6, top_k=9, top_p=0.8, min_p=0.1, repetition_penalty=1.7)
    assert torch.equal(sampling.restrict(x, SEEN), expected)


def test_a_top_k_above_the_vocabulary_keeps_all() -> None:
    x = logits("random")
    assert torch.equal(keep_top_k(x, SIZE + 1), x)


def test_the_defaults_do_not_change_the_logits() -> None:
    x = logits("excluded")
    assert torch.equal(Sampling().restrict(x, SEEN), x)


def test_greedy_takes_the_best_token_after_the_penalty() -> None:
    x = torch.tensor([[3.0, 2.0, -1.0]])
    generators = [Sampling().generator()]
    assert Sampling(temperature=0.0).choose(x, generators).tolist() == [0]
    seen = torch.tensor([[True, False, False]])
    assert Sampling(temperature=0.0, repetition_penalty=2.0).choose(x, generators, seen).tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-20, 1e-40, 5e-324])
@pytest.mark.parametrize("penalty", [0.001, 1000.0])
def test_the_lowest_temperatures_draw_the_best_tokens(temperature: float, penalty: float) -> None:
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty)
    x = logits("random") * 1e4
    best = penalize_repetition(x, SEEN, penalty).argmax(-1)
    assert torch.equal(sampling.choose(x, [sampling.generator() for _ in x], SEEN), best)


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    generator = Sampling(seed=4).generator()
    tokens = torch.stack([draw(probabilities.log()[None], [generator]) for _ in range(4000)])
    counts = tokens.flatten().bincount(minlength=4) / 4000
    assert counts[1] == 0
    assert torch.allclose(counts, probabilities, atol=0.03)


def test_a_row_has_the_same_draws_alone_and_in_a_batch() -> None:
    sampling, x = Sampling(seed=11, top_p=0.9), logits("random")
    together, alone = ([sampling.generator() for _ in range(ROWS)] for _ in range(2))
    for _ in range(4):
        batch = sampling.choose(x, together)
        singles = [sampling.choose(x[row : row + 1], alone[row : row + 1]) for row in range(ROWS)]
        assert torch.equal(batch, torch.cat(singles))


def test_seeds_give_reproducible_and_different_draws() -> None:
    x = torch.zeros(1, 10_000)

    def first(seed: int | None) -> list[int]:
        generator = Sampling(seed=seed).generator()
        return [int(draw(x, [generator])) for _ in range(3)]

    assert first(1) == first(1) != first(2)
    assert first(None) != first(None)


def test_the_global_random_state_is_not_used() -> None:
    before = torch.get_rng_state()
    sampling = Sampling(seed=None)
    sampling.choose(logits("random"), [sampling.generator() for _ in range(ROWS)])
    assert torch.equal(torch.get_rng_state(), before)


def test_all_wrong_values_are_listed() -> None:
    wrong = Sampling(temperature=-1.0, top_k=-2, top_p=1.5, min_p=-0.1, repetition_penalty=0.0, seed=-5)
    assert wrong.errors("generate") == [
        "generate: temperature (-1.0) must be a finite number, 0 or more; 0 is greedy.",
        "generate: top_k (-2) must be 0 or more; 0 is all tokens.",
        "generate: top_p (1.5) must lie in (0, 1].",
        "generate: min_p (-0.1) must lie in [0, 1].",
        "generate: repetition_penalty (0.0) must lie in [0.001, 1000]; 1 is none.",
        f"generate: seed (-5) must lie in 0…{2**63 - 1}.",
    ]
    nan = math.nan
    assert len(Sampling(temperature=nan, top_p=nan, min_p=nan, repetition_penalty=math.inf).errors()) == 4
    assert len(Sampling(repetition_penalty=1e-300).errors()) == len(Sampling(repetition_penalty=1e4).errors()) == 1
    assert not Sampling(temperature=0.0, top_p=1.0, seed=None).errors()


def test_generators_must_be_one_per_row() -> None:
    with pytest.raises(ValueError, match=r"generators \(1\) must be one per row of logits \(5×61\)"):
        draw(logits("random"), [Sampling().generator()])
