"""Caches of the keys and values of earlier decoding steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention.native.decoding import reorder_rows
from ..core.tensors import dtype, shape, shape_of

Pair = tuple[Tensor, Tensor]
"""Keys and values, (B, H, T, D) each."""
CAPACITY_STEP = 16
"""Capacity grows in multiples of this after a reordering. Beam search reorders at nearly every step."""


class Cache:
    """The keys and values of one attention layer, so that each decoding step only computes those of new positions.

    Self-attention adds to the cache at each step (`append`). Cross-attention fills it at the first step and reads it at
    later ones (`once`). A cache serves only one of the two.

        held   ■ ■ ■ ■ ■ ■ · ·           appending writes into allocated capacity, which doubles when it is full,
               length ↑   ↑ capacity     so that n steps copy O(n) keys in total

    With gradients enabled, appending copies instead, because the backward pass needs the old tensors unchanged.

    Batch entries may have different lengths after `truncate(lengths)`. Appending then adds to the end of each entry,
    and the positions of an entry from its length on are undefined: mask them with `causal_offset=cache.start`.

    >>> cache = Cache()
    >>> for step in range(3):
    ...     key, value = cache.append(torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8))
    >>> tuple(key.shape), cache.length
    ((2, 4, 3, 8), 3)

    >>> torch.equal(cache.held[0], key)
    True
    >>> cache.reorder(torch.tensor([1, 1]))                             # both hypotheses continue the second one
    >>> torch.equal(cache.held[0][0], key[1])
    True

    In cross-attention, the keys of the memory are computed once:

    >>> memory = Cache()
    >>> for step in range(3):
    ...     key, value = memory.once(lambda: (torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)), length=7)
    >>> memory.length
    7

    Sequences of a batch may be cut to different lengths:

    >>> cache.truncate(torch.tensor([3, 1]))
    >>> key, value = cache.append(torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8))
    >>> cache.length, cache.start
    (4, tensor([4, 2]))
    """

    def __init__(self, capacity: int = 64) -> None:
        if capacity < 1:
            raise ValueError(f"cache: capacity ({capacity}) must be at least 1, the positions allocated at first.")
        self.capacity = capacity
        self.length = 0
        """Number of cached positions; of the longest batch entry, if they differ."""
        self.lengths: Tensor | None = None
        """(B,): number of cached positions of each batch entry; None if all have `length`."""
        self.complete = False
        """Whether the cache holds the keys of a cross-attention, which do not grow."""
        self.lent = False
        """Whether a map refers to the cached keys. After `truncate`, the next steps then use new memory."""
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    @property
    def start(self) -> int | Tensor:
        """The position of the next token: a number, or (B,) if the lengths of batch entries differ."""
        return self.length if self.lengths is None else self.lengths

    @property
    def held(self) -> Pair:
        """All keys and values, (B, H, length, D): views that later steps do not modify."""
        assert self._key is not None and self._value is not None, "nothing was appended yet"
        return self._key[..., : self.length, :], self._value[..., : self.length, :]

    def append(self, key: Tensor, value: Tensor) -> Pair:
        """Add the keys and values of the next positions, (B, H, t, D). Return all of them."""
        if self.complete:
            raise ValueError(
                "cache: append must not follow once: it holds the keys of a cross-attention. Use a separate cache for "
                "self-attention."
            )
        count = key.shape[-2]
        self._check("key", key, self._key)
        self._check("value", value, self._value)
        extend = self._extend if self.lengths is None else self._extend_each
        self._key, self._value = extend(self._key, key, count), extend(self._value, value, count)
        self.length += count
        if self.lengths is not None:
            self.lengths = self.lengths + count
        return self.held

    def truncate(self, lengths: int | Tensor) -> None:
        """Keep only the first positions: as many for all batch entries, or `lengths[b]` (B,) for entry b.

        The memory is kept and overwritten by the next steps, unless a map refers to it.

        Raises:
            ValueError: if a length is negative or above the cached one, or for the cache of a cross-attention.
        """
        wrong = torch.as_tensor((lengths < 0) | (lengths > self.start))
        if self.complete or bool(wrong.any()):
            raise ValueError(
                f"cache: lengths ({_listed(lengths)}) must lie in 0…{_listed(self.start)}, the cached positions of a "
                f"self-attention{'; got the cache of a cross-attention' if self.complete else ''}."
            )
        self._set_lengths(lengths)
        if self.lent and self._key is not None and self._value is not None:
            self._key, self._value, self.lent = self._key.clone(), self._value.clone(), False

    def _set_lengths(self, lengths: int | Tensor) -> None:
        least, most = (lengths, lengths) if isinstance(lengths, int) else map(int, lengths.aminmax())
        self.length, self.lengths = most, None if isinstance(lengths, int) or least == most else lengths.clone()

    def once(self, compute: Callable[[], Pair], length: int) -> Pair:
        """Return constant keys and values. They are computed at the first step; `length` must stay the same."""
        if self._key is None:
            self._key, self._value = compute()
            self.length, self.complete = self._key.shape[-2], True
        elif not self.complete or length != self.length:
            raise ValueError(
                f"cache: key (length {length}) must be the one of the first step, of length {self.length}"
                f"{'' if self.complete else ' and of self-attention'}; got another. Self-attention takes only the "
                "query, and another memory needs another cache."
            )
        return self.held

    def reorder(self, index: Tensor) -> None:
        """Select the batch entries `index` (B',), in that order. Beam search does this after each step."""
        if self._key is None or self._value is None:
            return
        if index.ndim != 1 or index.is_floating_point() or self._key.ndim < 4:
            raise ValueError(
                f"cache: index ({shape(index)}) must be integers, one per new batch entry; got "
                f"{dtype(index)} for keys {shape(self._key)}."
            )
        if self.lengths is not None and len(index):
            self._set_lengths(self.lengths.index_select(0, index))
        self._key = self._select(self._key, index)  # (B', H, capacity, D)
        self._value = self._select(self._value, index)  # (B', H, capacity, D)

    def _select(self, held: Tensor, index: Tensor) -> Tensor:
        """Return the entries `index`, with capacity for a few more steps. Unused positions are not copied."""
        present = held[..., : self.length, :]
        if self.complete or torch.is_grad_enabled():
            return present.index_select(0, index)
        # multiples of a fixed size: memory of the same size that was just freed is reused without page faults
        capacity = (self.length // CAPACITY_STEP + 1) * CAPACITY_STEP
        selected = _allocate((len(index), *held.shape[1:]), capacity, held)
        by_position = selected[..., : self.length, :].transpose(-3, -2)  # (B', length, H, D): each entry is contiguous
        torch.index_select(present.transpose(-3, -2), 0, index, out=by_position)
        return selected

    def _extend(self, held: Tensor | None, new: Tensor, count: int) -> Tensor:
        """Return (B, H, capacity, D) with the new positions written after the first `length`."""
        start, end = self.length, self.length + count
        if torch.is_grad_enabled():
            return new if held is None else torch.cat((held[..., :start, :], new), -2)
        if held is None or end > held.shape[-2] or _is_read_only(held):
            capacity = max(self.capacity, 2 * end if start else end)
            grown = _allocate(new.shape, capacity, new)
            if held is not None:
                grown[..., :start, :] = held[..., :start, :]
            held = grown
        held[..., start:end, :] = new
        return held

    def _extend_each(self, held: Tensor | None, new: Tensor, count: int) -> Tensor:
        """Like `_extend`, with the new positions written after the last one of each batch entry."""
        assert held is not None and self.lengths is not None
        end = self.length + count
        copied = torch.is_grad_enabled()
        if copied or end > held.shape[-2] or _is_read_only(held):
            grown = _allocate(held.shape, end if copied else max(self.capacity, 2 * end), new)
            grown[..., : self.length, :] = held[..., : self.length, :]
            held = grown
        rows = torch.arange(len(held), device=held.device)[:, None]  # (B, 1)
        positions = self.lengths[:, None] + torch.arange(count, device=held.device)  # (B, t)
        held.transpose(-3, -2)[rows, positions] = new.transpose(-3, -2)  # (B, t, H, D)
        return held

    def _check(self, name: str, new: Tensor, held: Tensor | None) -> None:
        if held is None:
            return
        *lead, _, width = held.shape
        *new_lead, _, new_width = new.shape
        if new_lead != lead or new_width != width or new.dtype != held.dtype:
            sizes = (*lead, self.length, width)
            raise ValueError(
                f"cache: {name} ({shape(new)}, {dtype(new)}) must continue the cached tensor "
                f"({shape_of(sizes)}, {dtype(held)}). After beam search changes the batch, call reorder(index)."
            )


def _listed(lengths: int | Tensor) -> str:
    return str(lengths if isinstance(lengths, int) else lengths.tolist())


def _allocate(sizes: Sequence[int], capacity: int, like: Tensor) -> Tensor:
    """Allocate memory for `capacity` positions, (*lead, H, capacity, D), ordered by position as in a projection output.

    A step then writes one contiguous range per batch entry, and reordering copies one.
    """
    *lead, heads, _, width = (1, *sizes) if len(sizes) == 2 else sizes
    buffer = like.new_empty(*lead, capacity, heads, width).transpose(-3, -2)
    return buffer[0] if len(sizes) == 2 else buffer


def _is_read_only(held: Tensor) -> bool:
    """Return whether `held` was created in inference mode and cannot be written to outside of it."""
    return not torch.compiler.is_compiling() and held.is_inference() and not torch.is_inference_mode_enabled()


@dataclass
class DecoderCache:
    """The two caches of a `DecoderBlock`.

    >>> caches = [DecoderCache() for _ in range(6)]      # one per block
    >>> caches[0].length
    0

    >>> _ = caches[0].attention.append(torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8))
    >>> caches[0].reorder(torch.tensor([0, 0, 1]))
    >>> tuple(caches[0].attention.held[0].shape)
    (3, 4, 1, 8)
    """

    attention: Cache = field(default_factory=Cache)
    cross_attention: Cache = field(default_factory=Cache)

    @property
    def length(self) -> int:
        """Number of decoded positions."""
        return self.attention.length

    def reorder(self, index: Tensor) -> None:
        """Select the batch entries `index` in both caches, for beam search."""
        self.attention.reorder(index)
        self.cross_attention.reorder(index)


@dataclass
class BeamCache:
    """Keys and values of all decoder blocks, for K hypotheses of each of B sentences.

    Hypotheses with a common parent only copy the keys and values in which they differ.
    """

    lengths: Tensor
    """(B,): number of valid source tokens."""
    source_kv: list[Tensor]
    """Keys and values of the source, for each block: (B, Ts, 2, H, D)."""
    target_kv: list[Tensor] = field(default_factory=list)
    """Keys and values of the target: (B·K, capacity, 2, H, D), of which `length` positions are filled."""
    writers: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int32))
    """(B·K, capacity): the row in which a position was written. Rows with the same writer have the same contents."""
    length: int = 0

    def extend(self, x: Tensor, heads: int) -> None:
        """Allocate one more position for each row of x (B·K, W)."""
        if not self.target_kv:
            sizes = (len(x), CAPACITY_STEP, 2, heads, x.shape[1] // heads)
            self.target_kv = [x.new_empty(sizes) for _ in self.source_kv]
            self.writers = torch.empty(sizes[:2], dtype=torch.int32, device=x.device)
        elif self.length == self.target_kv[0].shape[1]:
            self._take(torch.arange(len(x), device=x.device))
        self.writers[:, self.length] = torch.arange(len(x), device=x.device)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        count = len(self.source_kv[0] if sentences is None else sentences)
        if not count or not self._move(rows, len(rows) // count):
            self._take(rows)
        if sentences is None:
            return
        self.lengths = self.lengths.index_select(0, sentences)
        moved = (sentences != torch.arange(count, device=sentences.device)).nonzero().flatten()
        for held in self.source_kv:
            held[moved] = held.index_select(0, sentences[moved])
        self.source_kv = [held[:count] for held in self.source_kv]

    def _move(self, rows: Tensor, each: int) -> bool:
        """Continue from these rows in place, and copy only what differs. Return whether this was possible.

        Each sentence has `each` rows. See `reorder_rows`.
        """
        if self.length == self.writers.shape[1]:
            return False
        if torch._C._len_torch_function_stack():  # `regard.watch` may hold these keys and would not see them change
            return False
        tables = (self.writers, *self.target_kv)
        if not reorder_rows(tables, rows, each=each, length=self.length):
            return False
        self.writers, *self.target_kv = (table[: len(rows)] for table in tables)
        return True

    def _take(self, rows: Tensor) -> None:
        """Continue from copies of these rows, with capacity for the next position. Unused positions are not copied."""
        sizes = (len(rows), (self.length // CAPACITY_STEP + 1) * CAPACITY_STEP, *self.target_kv[0].shape[2:])
        buffers = [held.new_empty(sizes) for held in self.target_kv]
        used = self.length * math.prod(sizes[2:])  # as matrices, so that each row is one contiguous range
        for held, buffer in zip(self.target_kv, buffers, strict=True):
            torch.index_select(held.flatten(1)[:, :used], 0, rows, out=buffer.flatten(1)[:, :used])
        writers = self.writers.new_empty(sizes[:2])
        writers[:, : self.length] = self.writers[:, : self.length].index_select(0, rows)
        self.target_kv, self.writers = buffers, writers
