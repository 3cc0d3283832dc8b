"""The best next tokens of each hypothesis, by the kernel and by PyTorch. `reorder_rows`: test_cache.py."""

from __future__ import annotations

import math

import pytest
import torch

from regard.attention.native.decoding import _by_torch, log_softmax_top_k, top_k


@pytest.mark.parametrize("size", [3, 64, 1023, 1024, 4096, 5001])
def test_top_by_blocks_is_topk(size: int) -> None:
    scores = torch.randn(7, size)
    values, indices = top_k(scores, 6)
    wanted = scores.topk(min(6, size))
    assert torch.equal(values.sort(-1, descending=True).values, wanted.values)
    assert torch.equal(scores.gather(1, indices), values)
    assert all(len(set(row)) == len(row) for row in indices.tolist())


def test_top_of_equal_scores_repeats_none() -> None:
    _, indices = top_k(torch.zeros(2, 4096), 6)
    assert all(len(set(row)) == 6 for row in indices.tolist())


@pytest.mark.parametrize("count", [1, 6, 41])
@pytest.mark.parametrize("size", [1, 5, 41, 63, 130, 1024, 5001])
def test_the_best_are_the_highest_log_probabilities(size: int, count: int, isa: str) -> None:
    wide = torch.randn(37, size + 3) * 4
    logits = wide[:, :size]  # rows need not touch
    values, ids = log_softmax_top_k(logits, count)
    wanted = logits.double().log_softmax(-1).topk(min(count, size))
    assert torch.equal(ids, wanted.indices) and torch.allclose(values.double(), wanted.values, atol=2e-6)
    by_torch = _by_torch(logits.clone(), min(count, size))[0].sort(-1, descending=True).values
    assert torch.allclose(values, by_torch, atol=2e-6)


def test_of_equal_scores_the_first_are_thelog_softmax_top_k(isa: str) -> None:
    logits = torch.zeros(2, 1000)
    logits[1, [999, 500, 70]] = 1.0
    assert log_softmax_top_k(logits, 5)[1].tolist() == [[0, 1, 2, 3, 4], [70, 500, 999, 0, 1]]


def test_what_cannot_be_said_is_never_among_thelog_softmax_top_k(isa: str) -> None:
    logits = torch.full((1, 300), -math.inf)
    logits[0, 130:133] = torch.tensor([1.0, 3.0, 2.0])
    values, ids = log_softmax_top_k(logits, 4)
    assert ids[0, :3].tolist() == [131, 132, 130] and values[0, 3] == -math.inf
    assert values[0, :3].exp().sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("at", [0, 2, 77, 999])
def test_nan_is_not_lost_among_the_logits(at: int, isa: str) -> None:
    logits = torch.randn(3, 1000)
    logits[1, at] = math.nan
    values, ids = log_softmax_top_k(logits, 6)
    assert values.isnan().all(1).tolist() == [False, True, False]
    assert all(len(set(row)) == 6 and max(row) < 1000 for row in ids.tolist())
