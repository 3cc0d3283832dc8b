"""Steps of a generation with a cache: joined they are the map of all at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard

T, START = 9, 4


class Decoder(nn.Module):
    """One layer of attention over what it was given so far."""

    def __init__(self, cache: str, window: int | None = None) -> None:
        super().__init__()
        self.cache, self.window = cache, window
        self.buffer = torch.zeros(1, 2, T + 3, 4)
        self.keys = torch.zeros(1, 2, 0, 4)
        self.filled = 0

    def forward(self, q: Tensor) -> Tensor:
        new = q.shape[-2]
        if self.cache == "static":
            self.buffer[..., self.filled : self.filled + new, :] = q
            self.filled += new
            at = torch.arange(self.filled - new, self.filled)[:, None]
            return F.scaled_dot_product_attention(q, self.buffer, self.buffer, torch.arange(T + 3) <= at)
        self.keys = torch.cat([self.keys, q], -2)
        if self.window and new == 1:
            self.keys = self.keys[..., -self.window :, :]
        mask: Any = None
        if self.window and new > 1:
            mask = regard.masks.sliding(new, left=self.window - 1, right=0)
        elif self.cache == "padded":
            mask = torch.arange(self.keys.shape[-2]) <= torch.arange(new)[:, None] + self.keys.shape[-2] - new
            mask = mask & (torch.arange(self.keys.shape[-2]) > 0)
        causal = mask is None and new > 1
        return F.scaled_dot_product_attention(q, self.keys, self.keys, mask, is_causal=causal)


def steps(model: nn.Module, x: Tensor, cut: list[int]) -> Any:
    with torch.no_grad(), regard.watch(model) as seen:
        for start, stop in pairwise(cut):
            model(x[..., start:stop, :])
    return seen


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 2, T, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("cut", [[0, START, *range(START + 1, T + 1)], [0, *range(1, T + 1)]])
def test_a_growing_cache_is_one_causal_map(x: Tensor, cut: list[int]) -> None:
    seen = steps(Decoder("grows"), x, cut)
    _, wanted = regard.attend(x, x, x, is_causal=True, return_map=True)
    assert len(seen) == 1 and seen.kinds == ["causal"] and seen.calls[0].request.mask.dense is None
    torch.testing.assert_close(seen[0].dense(), wanted.dense())
    assert seen.calls[0].request.mask.offset == 0


@pytest.mark.parametrize("first", [2, START])
def test_a_window_that_drops_keys_is_one_map_over_all_keys(x: Tensor, first: int) -> None:
    seen = steps(Decoder("grows", window=3), x, [0, first, *range(first + 1, T + 1)])
    _, wanted = regard.attend(x, x, x, is_causal=True, window=(2, None), return_map=True)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].dense(), wanted.dense())


def test_a_buffer_that_fills_up(x: Tensor) -> None:
    seen = steps(Decoder("static"), x, [0, START, *range(START + 1, T + 1)])
    _, wanted = regard.attend(x, x, x, is_causal=True, return_map=True)
    assert len(seen) == 1 and seen[0].shape == (1, 2, T, T + 3)
    torch.testing.assert_close(seen[0].dense()[..., :T], wanted.dense())
    assert not seen[0].dense()[..., T:].any()


def test_masks_that_are_no_band(x: Tensor) -> None:
    seen = steps(Decoder("padded"), x, [0, START, *range(START + 1, T + 1)])
    _, wanted = regard.attend(x, x, x, torch.arange(T) > 0, is_causal=True, return_map=True)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0].dense(), wanted.dense())


def test_what_does_not_continue_stays_apart(x: Tensor) -> None:
    model = Decoder("grows")
    with torch.no_grad(), regard.watch(model) as seen:
        for _ in range(2):  # twice the same, from the beginning
            model.keys = torch.zeros(1, 2, 0, 4)
            model(x)
        model.keys = model.keys.flip(-2)  # as when beams change their places
        model(x[..., :1, :])
    assert seen.names == ["Decoder", "Decoder#2", "Decoder#3"]
