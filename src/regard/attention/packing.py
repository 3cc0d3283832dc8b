"""Packing: convert a padded batch to one token dimension without padding, and back.

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
from .packed_layout import as_tensor, token_positions

Which = Tensor | Sequence[int]
"""Lengths (B,), or a boolean mask (B, T): True for tokens, at any positions."""


class Packed(NamedTuple):
    """Concatenated sequences."""

    values: Tensor
    """(N, …)"""
    lengths: Tensor
    """(B,) int64: number of tokens of each sequence."""


def pack(x: Tensor, which: Which) -> Packed:
    """Concatenate the tokens of a padded batch, without padding, in order.

    Args:
        x: (B, T, …), of any dtype; differentiable.
        which: lengths (B,), for padding at the end; or a boolean mask (B, T), True = token.

    >>> pack(torch.tensor([[1, 2, 3], [4, 0, 0]]), [3, 1])
    Packed(values=tensor([1, 2, 3, 4]), lengths=tensor([3, 1]))
    >>> pack(torch.tensor([[0, 0, 5], [6, 0, 7]]), torch.tensor([[False, False, True], [True, False, True]])).values
    tensor([5, 6, 7])
    """
    if x.ndim < 2:
        raise ValueError(f"pack: x ({shape(x)}) must be (batch, length, …); got {x.ndim} dimensions.")
    index, lengths = _token_indices("pack", which, len(x), x.shape[1], x.device)
    return Packed(x.flatten(0, 1).index_select(0, index), lengths)


def padded(*batches: tuple[Tensor, Tensor]) -> bool:
    """Return whether some batch (B, T, …) with lengths (B,) has padding; False if tracing hides the lengths.

    >>> padded((torch.zeros(2, 3), torch.tensor([3, 2]))), padded((torch.zeros(2, 3), torch.tensor([3, 3])))
    (True, False)
    """
    return readable(*(lengths for _, lengths in batches)) and any(
        int(lengths.sum()) < len(x) * x.shape[1] for x, lengths in batches
    )


def unpack(values: Tensor, which: Which, length: int | None = None, fill: float = 0) -> Tensor:
    """Invert `pack`: return the padded batch (B, T, …) of packed values (N, …), with `fill` in padding.

    Args:
        values: (N, …); differentiable.
        which: the lengths or the mask that were passed to `pack`.
        length: T; default the longest sequence. Ignored for a mask, which has its own length.
        fill: value of padding.

    >>> unpack(torch.tensor([1, 2, 3, 4]), [3, 1], fill=-1)
    tensor([[ 1,  2,  3],
            [ 4, -1, -1]])
    """
    tokens = as_tensor(which)
    if tokens.dtype == torch.bool:
        length = tokens.shape[-1]
    elif length is None:
        length = int(tokens.max()) if tokens.numel() else 0
    index, lengths = _token_indices("unpack", tokens, len(tokens), length, values.device)
    if len(values) != len(index):
        raise ValueError(
            f"unpack: values ({shape(values)}) must be as many as the lengths add up to ({len(index)}); "
            f"got {len(values)}."
        )
    filled = values.new_full((len(lengths) * length, *values.shape[1:]), fill)
    result: Tensor = filled.index_copy(0, index, values).unflatten(0, (len(lengths), length))
    return result


def _token_indices(where: str, which: Which, batch: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the index of each token in the flattened batch (N,), and the lengths (B,)."""
    tokens = as_tensor(which).to(device)
    if tokens.dtype == torch.bool:
        if tuple(tokens.shape) != (batch, length):
            raise ValueError(f"{where}: the mask ({shape(tokens)}) must be {batch}×{length}, as the batch is.")
        return tokens.flatten().nonzero().squeeze(1), tokens.sum(1)
    if tokens.ndim != 1 or len(tokens) != batch or tokens.is_floating_point():
        raise ValueError(
            f"{where}: lengths ({shape(tokens)}) must be {batch} integers, one per sequence, or a boolean mask "
            f"{batch}×{length}; got {dtype(tokens)}."
        )
    tokens = tokens.to(torch.int64)
    numbers = tokens.tolist()
    if numbers and not 0 <= min(numbers) <= max(numbers) <= length:
        invalid = min(numbers) if min(numbers) < 0 else max(numbers)
        raise ValueError(f"{where}: lengths ({invalid}) must lie in 0…{length}, the length of the batch.")
    return token_positions(tokens, sum(numbers), length), tokens
