"""Windows of tokens: random ones, which depend only on seed, epoch and number, and consecutive ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.data.token_windows import TokenWindows, consecutive_windows

IDS = np.arange(103, dtype=np.uint16)


def rows(windows: TokenWindows, epoch: int, **options: int) -> list[list[int]]:
    return [row for batch in windows.epoch(epoch, **options) for row in batch.ids.tolist()]


def test_an_epoch_has_as_many_windows_as_fit_side_by_side() -> None:
    windows = TokenWindows(IDS, 8, 5, seed=1)
    batches = list(windows.epoch(0))
    assert [len(batch) for batch in batches] == [5, 5, 2] and windows.count(7) == 3
    for batch in batches:
        assert torch.equal(batch.targets, batch.ids + 1) and batch.ids.dtype == torch.int64
        assert batch.ids.is_contiguous() and batch.targets.is_contiguous()


def test_windows_depend_on_seed_and_epoch_only() -> None:
    windows = TokenWindows(IDS, 8, 5, seed=1)
    assert rows(windows, 3) == rows(TokenWindows(IDS, 8, 5, seed=1), 3)
    assert rows(windows, 3) != rows(windows, 4) and rows(windows, 3) != rows(TokenWindows(IDS, 8, 5, seed=2), 3)
    assert rows(windows, 3, start=1) == rows(windows, 3)[5:]


def test_processes_share_the_windows_of_a_batch() -> None:
    windows = TokenWindows(IDS, 8, 5, seed=1)
    shares = [list(windows.epoch(2, rank=rank, world=3)) for rank in range(3)]
    for number, whole in enumerate(windows.epoch(2)):
        merged = [
            row for entry in range(2) for share in shares for row in share[number].ids[entry : entry + 1].tolist()
        ]
        assert merged == whole.ids.tolist()


def test_every_position_can_begin_a_window() -> None:
    starts = {row[0] for epoch in range(200) for row in rows(TokenWindows(IDS[:12], 8, 5), epoch)}
    assert starts == {0, 1, 2, 3}


@pytest.mark.parametrize("length", [2, 8, 9, 10, 17, 103])
@pytest.mark.parametrize("context", [1, 8, 200])
def test_consecutive_windows_predict_every_token_once(length: int, context: int) -> None:
    batches = list(consecutive_windows(IDS[:length], context, 3))
    targets = [token for batch in batches for token in batch.targets.flatten().tolist()]
    assert targets == list(range(1, length))
    assert all(torch.equal(batch.targets, batch.ids + 1) for batch in batches)


def test_a_bounded_number_of_tokens_is_spread_over_the_text() -> None:
    (batch,) = consecutive_windows(IDS, 8, 99, most_tokens=35)
    assert batch.ids[:, 0].tolist() == [0, 24, 48, 72]
    assert sum(len(batch) for batch in consecutive_windows(IDS, 8, 5, most_tokens=102)) == 13


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"training text \(8 tokens\) must be longer than context \(8\)\. .*--context 4"
    ):
        TokenWindows(IDS[:8], 8, 1)
