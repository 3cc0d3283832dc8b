"""Packing and unpacking: tokens return to their positions."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data import Packed, pack, unpack

LENGTHS = [3, 0, 5, 1]


def padded(*width: int) -> Tensor:
    return torch.randn(4, 5, *width, dtype=torch.float64)


@pytest.mark.parametrize("width", [(), (3,), (3, 2)])
def test_by_lengths(width: tuple[int, ...]) -> None:
    x = padded(*width)
    packed = pack(x, LENGTHS)
    assert isinstance(packed, Packed) and packed.lengths.tolist() == LENGTHS
    assert torch.equal(packed.values, torch.cat([row[:length] for row, length in zip(x, LENGTHS, strict=True)]))
    back = unpack(packed.values, LENGTHS, 5, fill=-7)
    for row, wanted, length in zip(back, x, LENGTHS, strict=True):
        assert torch.equal(row[:length], wanted[:length]) and (row[length:] == -7).all()


def test_by_a_mask_with_tokens_anywhere() -> None:
    mask, x = torch.rand(4, 5) > 0.5, padded(3)
    mask[2] = False
    packed = pack(x, mask)
    assert torch.equal(packed.values, x[mask]) and torch.equal(packed.lengths, mask.sum(1))
    assert torch.equal(unpack(packed.values, mask), torch.where(mask[..., None], x, 0))


@pytest.mark.parametrize("which", [[4, 2], torch.tensor([4, 2], dtype=torch.int32)])
def test_default_length_is_the_longest(which: Any) -> None:
    assert unpack(torch.arange(6), which).tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]


def test_empty_batches() -> None:
    assert pack(torch.zeros(0, 3, 2), []).values.shape == (0, 2)
    assert pack(torch.zeros(2, 0, 2), [0, 0]).values.shape == (0, 2)
    assert unpack(torch.zeros(0, 2), []).shape == (0, 0, 2) and unpack(torch.zeros(0, 2), [0, 0], 3).shape == (2, 3, 2)


def test_gradients_follow_the_tokens() -> None:
    x = padded(3).requires_grad_()
    pack(x, LENGTHS).values.sum().backward()
    for row, length in zip(x.grad, LENGTHS, strict=True):
        assert (row[:length] == 1).all() and not row[length:].any()
    values = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: unpack(v, LENGTHS, 6), values)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: pack(torch.zeros(4), [4]), "pack: x (4) must be (batch, length, …); got 1 dimensions."),
    (
        lambda: pack(padded(), [1, 2]),
        "pack: lengths (2) must be 4 integers, one per sequence, or a boolean mask 4×5",
    ),
    (lambda: pack(padded(), [1, 2, 6, 0]), "pack: lengths (6) must lie in 0…5, the length of the batch."),
    (lambda: pack(padded(), [1, 2, -1, 0]), "pack: lengths (-1) must lie in 0…5"),
    (lambda: pack(padded(), torch.ones(4)), "or a boolean mask 4×5; got float32."),
    (lambda: pack(padded(), torch.ones(4, 6, dtype=torch.bool)), "pack: the mask (4×6) must be 4×5, as the batch is."),
    (lambda: unpack(torch.zeros(5), [2, 2]), "unpack: values (5) must be as many as the lengths add up to (4); got 5."),
    (lambda: unpack(torch.zeros(4), [3, 1], 2), "unpack: lengths (3) must lie in 0…2"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_error_messages(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
