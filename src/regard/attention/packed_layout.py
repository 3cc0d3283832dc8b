"""How packed sequences lie in memory: their lengths, and the padded batch that has the same tokens.

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


class Layout(NamedTuple):
    """How many queries and keys each sequence has."""

    queries: Tensor
    """(B,) int64, on the CPU"""
    keys: Tensor
    """(B,) likewise"""
    most_queries: int
    most_keys: int
    same: bool
    """Whether the keys are the queries'."""
    offsets: Tensor | None = None
    """(B,) int64, on the CPU: the position of each sequence's first query; None where all are 0."""

    @property
    def sequences(self) -> int:
        return len(self.queries)

    def alike(self) -> int:
        """How many sequences as costly as the costliest would cost what all do."""
        work = [(q + 1) * (k + 1) for q, k in zip(self.queries.tolist(), self.keys.tolist(), strict=True)]
        return max(1, sum(work) // max(work, default=1))


class _Read(NamedTuple):
    """Lengths that were read: as a tensor on the CPU, and the largest."""

    lengths: Tensor
    most: int


def layout_of(
    query: Tensor, key: Tensor, lengths: Lengths, key_lengths: Lengths | None, causal_offset: int | Lengths | None = 0
) -> Layout:
    """The lengths of queries and keys, which must add up to the rows there are, and the offsets of queries."""
    queries = _read("lengths", lengths, query, "queries")
    if key_lengths is None and len(key) != len(query):
        raise ValueError(
            f"attend_packed: key_lengths must be given where key ({tensors.shape(key)}) has not as many rows as query "
            f"({tensors.shape(query)})."
        )
    keys = queries if key_lengths is None else _read("key_lengths", key_lengths, key, "keys")
    if len(keys.lengths) != len(queries.lengths):
        raise ValueError(
            f"attend_packed: key_lengths ({len(keys.lengths)}) must be as many as lengths ({len(queries.lengths)}), "
            "one per sequence."
        )
    offsets = _offsets(causal_offset, len(queries.lengths))
    return Layout(queries.lengths, keys.lengths, queries.most, keys.most, key_lengths is None, offsets)


def _offsets(given: int | Lengths | None, sequences: int) -> Tensor | None:
    """(B,) int64 on the CPU; None where all are 0."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given == 0):
        return None
    x = torch.as_tensor(given) if isinstance(given, int) else as_tensor(given)
    if x.is_floating_point() or x.dtype == torch.bool or tuple(x.shape) not in ((), (sequences,)):
        raise ValueError(
            f"attend_packed: causal_offset ({tensors.shape(x)}) must be one whole number, or one per sequence "
            f"({sequences}); got {tensors.dtype(x)}. For lower right masks pass key_lengths - lengths."
        )
    return x.to("cpu", torch.int64).expand(sequences).contiguous()


def _read(name: str, given: Lengths, rows: Tensor, what: str) -> _Read:
    x = as_tensor(given)
    if x.ndim != 1 or x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(
            f"attend_packed: {name} ({tensors.shape(x)}) must be whole numbers, one per sequence; "
            f"got {tensors.dtype(x)}."
        )
    numbers = x.tolist()
    if min(numbers, default=0) < 0 or sum(numbers) != len(rows):
        wrong = f"got {min(numbers)}" if min(numbers, default=0) < 0 else f"they add up to {sum(numbers)}"
        raise ValueError(
            f"attend_packed: {name} must be at least 0 and add up to the {what} there are ({len(rows)}, in "
            f"{tensors.shape(rows)}); {wrong}."
        )
    return _Read(x.to("cpu", torch.int64).contiguous(), max(numbers, default=0))


def as_tensor(given: Lengths) -> Tensor:
    return given if isinstance(given, Tensor) else torch.as_tensor(given, dtype=None if len(given) else torch.int64)


def padded(request: Request, layout: Layout) -> Request:
    """The request (H, N, ·) of packed sequences as one of a padded batch, (B, H, T, ·)."""
    at_queries, at_keys = positions(request, layout)
    sequences, keys = layout.sequences, layout.most_keys
    offset, lengths = (
        None if x is None else x.to(request.device).reshape(-1, 1, 1, 1) for x in (layout.offsets, layout.keys)
    )
    mask = request.mask
    return replace(
        request,
        q=pad(request.q, at_queries, sequences, layout.most_queries),  # (B, H, Tq, D)
        k=pad(request.k, at_keys, sequences, keys),  # (B, H, Tk, D)
        v=None if request.v is None else pad(request.v, at_keys, sequences, keys),  # (B, H, Tk, Dv)
        mask=Mask(None, mask.left, mask.right, 0 if offset is None or not mask.positional else offset, lengths),
        lead=(sequences, *request.lead),
    )


def positions(request: Request, layout: Layout) -> tuple[Tensor, Tensor]:
    """Index of each query and of each key in the flattened padded batch: (Nq,), (Nk,)."""
    device, queries, keys = request.device, layout.most_queries, layout.most_keys
    of_queries = places(layout.queries.to(device), request.queries, queries)
    same = layout.same and queries == keys
    return of_queries, of_queries if same else places(layout.keys.to(device), request.keys, keys)


def pad(x: Tensor, at: Tensor, sequences: int, longest: int) -> Tensor:
    """(H, N, D) → (B, H, T, D), zero in padding; at (N,): where each token stands in the flattened batch."""
    room = x.new_zeros(sequences * longest, x.shape[0], x.shape[-1])
    return room.index_copy(0, at, x.transpose(0, 1)).unflatten(0, (sequences, longest)).transpose(1, 2)


def unpad(x: Tensor, at: Tensor) -> Tensor:
    """The inverse of `pad` with the heads inside: (B, H, T, D) → (N, H, D)."""
    return x.transpose(1, 2).flatten(0, 1).index_select(0, at)


def places(lengths: Tensor, total: int, stride: int = 0) -> Tensor:
    """Where each of the `total` tokens stands in a batch whose rows are `stride` long, (N,); 0: in its own sequence.

    >>> places(torch.tensor([3, 2]), 5), places(torch.tensor([3, 2]), 5, stride=4)
    (tensor([0, 1, 2, 0, 1]), tensor([0, 1, 2, 4, 5]))
    """
    starts = lengths.cumsum(0) - lengths  # (B,) the first token of each
    shift = torch.arange(len(lengths), device=lengths.device) * stride - starts  # (B,)
    return torch.arange(total, device=lengths.device) + shift.repeat_interleave(lengths, output_size=total)  # (N,)
