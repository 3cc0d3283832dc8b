"""Alignments: merging of subwords, both step conventions, the Pharaoh format, and the error rate."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.alignment import agreement, error_rate, links, parse_pharaoh, pharaoh, word_weights

# three steps and the end of the sentence, over "un happy cat <end>"
WEIGHTS = torch.tensor([[0.1, 0.2, 0.6, 0.1], [0.5, 0.3, 0.1, 0.1], [0.3, 0.5, 0.1, 0.1], [0.0, 0.0, 0.2, 0.8]])


def test_subwords_are_merged_into_words() -> None:
    merged = word_weights(WEIGHTS, source=[0, 0, 1], target=[0, 1, 1])
    torch.testing.assert_close(merged, torch.tensor([[0.3, 0.6], [0.8, 0.1]]))
    assert links(merged) == [(0, 1), (1, 0)]


def test_the_input_step_follows_the_output_step() -> None:
    read = word_weights(WEIGHTS, source=[0, 0, 1], target=[0, 1, 2], step="input")
    torch.testing.assert_close(read, torch.tensor([[0.8, 0.1], [0.8, 0.1], [0.0, 0.2]]))
    wrote = word_weights(WEIGHTS[1:], source=[0, 0, 1], target=[0, 1, 2])
    assert torch.equal(read, wrote)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_merging_preserves_the_total_weight(source_sizes: list[int], target_sizes: list[int]) -> None:
    source, target = ([w for w, n in enumerate(sizes) for _ in range(n)] for sizes in (source_sizes, target_sizes))
    weights = torch.rand(len(target) + 1, len(source), dtype=torch.float64).softmax(-1)
    for step in ("output", "input"):
        merged = word_weights(weights, source, target, step)
        assert merged.shape == (len(target_sizes), len(source_sizes))
        torch.testing.assert_close(merged.sum(1), torch.ones(len(target_sizes), dtype=torch.float64))


def test_tokens_outside_words_are_ignored() -> None:
    merged = word_weights(WEIGHTS, source=[-1, 0, 1], target=[0, -1, 1])
    torch.testing.assert_close(merged, torch.tensor([[0.2, 0.6], [0.5, 0.1]]))
    assert word_weights(WEIGHTS, [0, 1, 2], [-1, -1]).shape == (0, 3)


def test_sentences_without_words() -> None:
    assert links(word_weights(WEIGHTS, [0, 0, 1], [])) == [] == links(word_weights(WEIGHTS, [], [0]))
    assert pharaoh([]) == "" and parse_pharaoh("") == set()


@given(st.sets(st.tuples(st.integers(0, 99), st.integers(0, 99))))
def test_pharaoh_format_round_trips(pairs: set[tuple[int, int]]) -> None:
    assert parse_pharaoh(pharaoh(pairs)) == pairs


def test_error_rate_matches_hand_computed_values() -> None:
    sure, possible = {(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 1)}
    assert error_rate([(sure, sure, possible)]) == 0
    assert error_rate([({(2, 1)}, sure, possible)]) == pytest.approx(1 - 1 / 3)  # possible only: half a hit
    assert error_rate([({(5, 5)}, sure, possible)]) == 1
    both = [({(0, 0)}, {(0, 0)}, set()), ({(5, 5)}, sure, possible)]  # a sure link counts as possible too
    assert error_rate(both) == pytest.approx(1 - 2 / 5)


def test_agreement_is_symmetric_in_both_directions() -> None:
    forward, backward = torch.rand(3, 4).softmax(1), torch.rand(4, 3).softmax(1)
    both = agreement(forward, backward)
    assert both.shape == (3, 4)
    g = forward * backward.T
    torch.testing.assert_close(both, g / g.sum(1, keepdim=True) + g / g.sum(0, keepdim=True))
    torch.testing.assert_close(agreement(backward, forward), both.T)  # symmetric
    assert not agreement(torch.zeros(2, 2), torch.ones(2, 2)).any()  # no weight, no NaN
    assert agreement(torch.zeros(0, 2), torch.zeros(2, 0)).shape == (0, 2)


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"backward \(3, 2\) must have the transposed shape of forward \(3, 2\)"):
        agreement(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"step \('both'\) must be 'output' or 'input'"):
        word_weights(WEIGHTS, [0], [0], "both")
    with pytest.raises(ValueError, match=r"weights \(4, 4\) must have a row for each of 4 target tokens and the end"):
        word_weights(WEIGHTS, [0], [0, 1, 2, 3], "input")
    with pytest.raises(ValueError, match=r"line \('0-0 1'\) must be links"):
        parse_pharaoh("0-0 1\n")
    with pytest.raises(ValueError, match="needs at least one predicted or sure link"):
        error_rate([])
