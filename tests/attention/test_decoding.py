"""The best next tokens of each hypothesis, by the kernel and by PyTorch. For `reorder_rows` see test_cache.py."""

from __future__ import annotations

import math

import pytest
import torch

from regard.attention.native import engine
from regard.attention.native.decoding import log_softmax_top_k


@pytest.mark.parametrize("count", [1, 6, 41])
@pytest.mark.parametrize("size", [1, 5, 41, 63, 130, 1024, 5001])
def test_the_best_are_the_highest_log_probabilities(
    size: int, count: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = torch.randn(37, size + 3) * 4
    logits = wide[:, :size]  # rows need not be contiguous
    values, ids = log_softmax_top_k(logits, count)
    wanted = logits.double().log_softmax(-1).topk(min(count, size))
    assert torch.equal(ids, wanted.indices) and torch.allclose(values.double(), wanted.values, atol=2e-6)
    monkeypatch.setattr(engine, "module", None)
    by_torch, at = log_softmax_top_k(logits, count)
    assert torch.equal(ids, at) and torch.allclose(values, by_torch, atol=2e-6)


def test_ties_select_the_first_ids(isa: str) -> None:
    logits = torch.zeros(2, 1000)
    logits[1, [999, 500, 70]] = 1.0
    assert log_softmax_top_k(logits, 5)[1].tolist() == [[0, 1, 2, 3, 4], [70, 500, 999, 0, 1]]


def test_excluded_ids_are_never_selected(isa: str) -> None:
    logits = torch.full((1, 300), -math.inf)
    logits[0, 130:133] = torch.tensor([1.0, 3.0, 2.0])
    values, ids = log_softmax_top_k(logits, 4)
    assert ids[0, :3].tolist() == [131, 132, 130] and values[0, 3] == -math.inf
    assert values[0, :3].exp().sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("at", [0, 2, 77, 999])
def test_nan_in_the_logits_is_reported(at: int, isa: str) -> None:
    logits = torch.randn(3, 1000)
    logits[1, at] = math.nan
    values, ids = log_softmax_top_k(logits, 6)
    assert values.isnan().all(1).tolist() == [False, True, False]
    assert all(len(set(row)) == 6 and max(row) < 1000 for row in ids.tolist())
