"""Layout of packed sequences: their lengths, and the conversion to and from a padded batch.

padded (B, T)        packed (N,)                  lengths
a b c ·
d e · ·        ⇄     a b c d e f g h i            3 2 4
f g h i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import tensors
from .masks import Mask
from .request import Request

Lengths = Tensor | Sequence[int]
"""(B,): number of tokens of each sequence."""


class Layout(NamedTuple):
    """Number of queries and keys of each sequence."""

    queries: Tensor
    """(B,) int64, on the CPU"""
    keys: Tensor
    """(B,) likewise"""
    most_queries: int
    most_keys: int
    same: bool
    """Whether the lengths of keys are those of queries."""
    offsets: Tensor | None = None
    """(B,) int64, on the CPU: the position of each sequence's first query; None if all are 0."""

    @property
    def sequences(self) -> int:
        return len(self.queries)

    def effective_sequences(self) -> int:
        """Return the effective number of sequences: total cost divided by the cost of the most expensive sequence."""
        work = [(q + 1) * (k + 1) for q, k in zip(self.queries.tolist(), self.keys.tolist(), strict=True)]
        result: int = max(1, sum(work) // max(work, default=1))
        return result


class _CheckedLengths(NamedTuple):
    """Validated lengths as a tensor on the CPU, and their maximum."""

    lengths: Tensor
    most: int


def layout_of(
    query: Tensor, key: Tensor, lengths: Lengths, key_lengths: Lengths | None, causal_offset: int | Lengths | None = 0
) -> Layout:
    """Validate lengths, which must add up to the number of rows, and the offsets of queries."""
    queries = _checked("lengths", lengths, query, "queries")
    if key_lengths is None and len(key) != len(query):
        raise ValueError(
            f"attend_packed: key_lengths must be given if key ({tensors.shape(key)}) has not as many rows as query "
            f"({tensors.shape(query)})."
        )
    keys = queries if key_lengths is None else _checked("key_lengths", key_lengths, key, "keys")
    if len(keys.lengths) != len(queries.lengths):
        raise ValueError(
            f"attend_packed: key_lengths ({len(keys.lengths)}) must have as many entries as lengths "
            f"({len(queries.lengths)}), one per sequence."
        )
    offsets = _offsets(causal_offset, len(queries.lengths))
    return Layout(queries.lengths, keys.lengths, queries.most, keys.most, key_lengths is None, offsets)


def _offsets(values: int | Lengths | None, sequences: int) -> Tensor | None:
    """Return the offsets (B,), int64 on the CPU; None if all are 0."""
    if values is None or (isinstance(values, int) and not isinstance(values, bool) and values == 0):
        return None
    x = torch.as_tensor(values) if isinstance(values, int) else as_tensor(values)
    if x.is_floating_point() or x.dtype == torch.bool or tuple(x.shape) not in ((), (sequences,)):
        raise ValueError(
            f"attend_packed: causal_offset ({tensors.shape(x)}) must be one integer, or one per sequence "
            f"({sequences}); got {tensors.dtype(x)}. For lower right masks pass key_lengths - lengths."
        )
    return x.to("cpu", torch.int64).expand(sequences).contiguous()


def _checked(name: str, values: Lengths, rows: Tensor, what: str) -> _CheckedLengths:
    x = as_tensor(values)
    if x.ndim != 1 or x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(
            f"attend_packed: {name} ({tensors.shape(x)}) must be integers, one per sequence; got {tensors.dtype(x)}."
        )
    numbers = x.tolist()
    if min(numbers, default=0) < 0 or sum(numbers) != len(rows):
        problem = f"got {min(numbers)}" if min(numbers, default=0) < 0 else f"got a sum of {sum(numbers)}"
        raise ValueError(
            f"attend_packed: {name} must be at least 0 and add up to the number of {what} ({len(rows)}, in "
            f"{tensors.shape(rows)}); {problem}."
        )
    return _CheckedLengths(x.to("cpu", torch.int64).contiguous(), max(numbers, default=0))


def as_tensor(values: Lengths) -> Tensor:
    return values if isinstance(values, Tensor) else torch.as_tensor(values, dtype=None if len(values) else torch.int64)


def padded(request: Request, layout: Layout) -> Request:
    """Convert the request of packed sequences (H, N, ·) to a padded batch (B, H, T, ·)."""
    query_index, key_index = positions(request, layout)
    sequences, keys = layout.sequences, layout.most_keys
    offset, lengths = (
        None if x is None else x.to(request.device).reshape(-1, 1, 1, 1) for x in (layout.offsets, layout.keys)
    )
    mask = request.mask
    return replace(
        request,
        q=pad(request.q, query_index, sequences, layout.most_queries),  # (B, H, Tq, D)
        k=pad(request.k, key_index, sequences, keys),  # (B, H, Tk, D)
        v=None if request.v is None else pad(request.v, key_index, sequences, keys),  # (B, H, Tk, Dv)
        mask=Mask(None, mask.left, mask.right, 0 if offset is None or not mask.positional else offset, lengths),
        lead=(sequences, *request.lead),
    )


def positions(request: Request, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the index of each query and of each key in the flattened padded batch: (Nq,), (Nk,)."""
    device, queries, keys = request.device, layout.most_queries, layout.most_keys
    query_index = token_positions(layout.queries.to(device), request.queries, queries)
    same = layout.same and queries == keys
    return query_index, query_index if same else token_positions(layout.keys.to(device), request.keys, keys)


def pad(x: Tensor, index: Tensor, sequences: int, longest: int) -> Tensor:
    """Pad (H, N, D) → (B, H, T, D) with zeros. index (N,): position of each token in the flattened batch."""
    heads, _, width = x.shape
    filled = x.new_zeros(sequences * longest, heads, width).index_copy(0, index, x.transpose(0, 1))
    return filled.reshape(sequences, longest, heads, width).transpose(1, 2)


def unpad(x: Tensor, index: Tensor) -> Tensor:
    """Invert `pad`, with tokens first: (B, H, T, D) → (N, H, D)."""
    sequences, heads, longest, width = x.shape
    return x.transpose(1, 2).reshape(sequences * longest, heads, width).index_select(0, index)


def token_positions(lengths: Tensor, total: int, stride: int = 0) -> Tensor:
    """Return the position of each of the `total` tokens in a flattened batch with rows of `stride` tokens, (N,).

    With stride 0, return the position within its own sequence.

    >>> token_positions(torch.tensor([3, 2]), 5), token_positions(torch.tensor([3, 2]), 5, stride=4)
    (tensor([0, 1, 2, 0, 1]), tensor([0, 1, 2, 4, 5]))
    """
    starts = lengths.cumsum(0) - lengths  # (B,) the first token of each
    shift = torch.arange(len(lengths), device=lengths.device) * stride - starts  # (B,)
    return torch.arange(total, device=lengths.device) + shift.repeat_interleave(lengths, output_size=total)  # (N,)
