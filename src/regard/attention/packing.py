"""Packing: sequences of different lengths as one run of tokens, without padding, and back.

padded (B, T, …)          packed (N, …)              N = Σ lengths
a b c ·
d e · ·        ⇄          a b c d e f g h i
f g h i
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.tensors import dtype, readable, shape
from .packed_layout import as_tensor, places

Which = Tensor | Sequence[int]
"""Lengths (B,), or a boolean mask (B, T): True where there is a token, in any places."""


class Packed(NamedTuple):
    """Sequences one after the other."""

    values: Tensor
    """(N, …)"""
    lengths: Tensor
    """(B,) int64: how many of them belong to each sequence."""


def pack(x: Tensor, which: Which) -> Packed:
    """The tokens of a padded batch alone, sequence after sequence, each in its order.

    Args:
        x: (B, T, …), of any dtype; differentiable.
        which: lengths (B,), the tokens that count from the first on; or a boolean mask (B, T), True = a token.

    >>> pack(torch.tensor([[1, 2, 3], [4, 0, 0]]), [3, 1])
    Packed(values=tensor([1, 2, 3, 4]), lengths=tensor([3, 1]))
    >>> pack(torch.tensor([[0, 0, 5], [6, 0, 7]]), torch.tensor([[False, False, True], [True, False, True]])).values
    tensor([5, 6, 7])
    """
    if x.ndim < 2:
        raise ValueError(f"pack: x ({shape(x)}) must be (batch, length, …); got {x.ndim} dimensions.")
    at, lengths = _places("pack", which, len(x), x.shape[1], x.device)
    return Packed(x.flatten(0, 1).index_select(0, at), lengths)


def padded(*batches: tuple[Tensor, Tensor]) -> bool:
    """Whether some of (B, T, …) with their lengths (B,) hold padding, as far as can be read here.

    >>> padded((torch.zeros(2, 3), torch.tensor([3, 2]))), padded((torch.zeros(2, 3), torch.tensor([3, 3])))
    (True, False)
    """
    return readable(*(lengths for _, lengths in batches)) and any(
        int(lengths.sum()) < len(x) * x.shape[1] for x, lengths in batches
    )


def unpack(values: Tensor, which: Which, length: int | None = None, fill: float = 0) -> Tensor:
    """The padded batch (B, T, …) of packed values (N, …): what `pack` took, where it was, and `fill` elsewhere.

    Args:
        values: (N, …); differentiable.
        which: what it was packed by: lengths, or the mask.
        length: T; default the longest sequence. A mask knows it.
        fill: what padding holds.

    >>> unpack(torch.tensor([1, 2, 3, 4]), [3, 1], fill=-1)
    tensor([[ 1,  2,  3],
            [ 4, -1, -1]])
    """
    given = as_tensor(which)
    if given.dtype == torch.bool:
        length = given.shape[-1]
    elif length is None:
        length = int(given.max()) if given.numel() else 0
    at, lengths = _places("unpack", given, len(given), length, values.device)
    if len(values) != len(at):
        raise ValueError(
            f"unpack: values ({shape(values)}) must be as many as the lengths add up to ({len(at)}); got {len(values)}."
        )
    room = values.new_full((len(lengths) * length, *values.shape[1:]), fill)
    return room.index_copy(0, at, values).unflatten(0, (len(lengths), length))


def _places(where: str, which: Which, batch: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where tokens stand in the flattened batch (N,), and the lengths (B,)."""
    given = as_tensor(which).to(device)
    if given.dtype == torch.bool:
        if tuple(given.shape) != (batch, length):
            raise ValueError(f"{where}: the mask ({shape(given)}) must be {batch}×{length}, as the batch is.")
        return given.flatten().nonzero().squeeze(1), given.sum(1)
    if given.ndim != 1 or len(given) != batch or given.is_floating_point():
        raise ValueError(
            f"{where}: lengths ({shape(given)}) must be {batch} whole numbers, one per sequence, or a boolean mask "
            f"{batch}×{length}; got {dtype(given)}."
        )
    given = given.to(torch.int64)
    numbers = given.tolist()
    if numbers and not 0 <= min(numbers) <= max(numbers) <= length:
        wrong = min(numbers) if min(numbers) < 0 else max(numbers)
        raise ValueError(f"{where}: lengths ({wrong}) must lie in 0…{length}, the length of the batch.")
    return places(given, sum(numbers), length), given
