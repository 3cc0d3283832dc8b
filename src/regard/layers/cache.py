"""Caches: keys and values that were computed at earlier steps of decoding."""

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
ROOM = 16
"""After a reordering, positions are set aside by so many; beam search reorders at nearly every step."""


class Cache:
    """The keys and values of one attention layer, so that each step of decoding computes its own only.

    Self-attention adds to it at each step (`append`); cross-attention fills it at the first step and reads it at the
    rest (`once`). One cache serves one of the two.

        held   ■ ■ ■ ■ ■ ■ · ·      appending writes into room that was set aside; when there is none left it doubles,
               length ↑   ↑ room    so that n steps copy O(n) keys in all

    With gradients on, appending copies instead: what a backward pass will read must not be written over.

    >>> cache = Cache()
    >>> for step in range(3):
    ...     key, value = cache.append(torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8))
    >>> tuple(key.shape), cache.length
    ((2, 4, 3, 8), 3)
    """

    def __init__(self, capacity: int = 64) -> None:
        if capacity < 1:
            raise ValueError(f"cache: capacity ({capacity}) must be at least 1, the positions first set aside.")
        self.capacity = capacity
        self.length = 0
        """Positions held."""
        self.complete = False
        """Whether it holds the keys of a cross-attention, to which nothing is added."""
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    @property
    def held(self) -> Pair:
        """All keys and values, (B, H, length, D): views that later steps do not change."""
        assert self._key is not None and self._value is not None, "nothing was appended yet"
        return self._key[..., : self.length, :], self._value[..., : self.length, :]

    def append(self, key: Tensor, value: Tensor) -> Pair:
        """Add the keys and values of the next positions, (B, H, t, D); returns all of them."""
        if self.complete:
            raise ValueError(
                "cache: append must not follow once: it holds the keys of a cross-attention. Give self-attention a "
                "cache of its own."
            )
        self._check("key", key, self._key)
        self._check("value", value, self._value)
        self._key = self._extended(self._key, key)
        self._value = self._extended(self._value, value)
        self.length += key.shape[-2]
        return self.held

    def once(self, compute: Callable[[], Pair], length: int) -> Pair:
        """Keys and values that stay the same: computed at the first step, of `length` positions at every step."""
        if self._key is None:
            self._key, self._value = compute()
            self.length, self.complete = self._key.shape[-2], True
        elif not self.complete or length != self.length:
            raise ValueError(
                f"cache: key (length {length}) must be the one first given, of length {self.length}"
                f"{'' if self.complete else ' and of self-attention'}; got another. Self-attention takes the query "
                "alone, and another memory another cache."
            )
        return self.held

    def reorder(self, index: Tensor) -> None:
        """Take the batch entries that `index` (B',) names, in that order: what beam search does after each step."""
        if self._key is None or self._value is None:
            return
        if index.ndim != 1 or index.is_floating_point() or self._key.ndim < 4:
            raise ValueError(
                f"cache: index ({shape(index)}) must be whole numbers, one per batch entry to be; got "
                f"{dtype(index)} for keys {shape(self._key)}."
            )
        self._key = self._taken(self._key, index)  # (B', H, room, D)
        self._value = self._taken(self._value, index)  # (B', H, room, D)

    def _taken(self, held: Tensor, index: Tensor) -> Tensor:
        """The entries that `index` names, and room for a few steps more: what is beyond the length is not copied."""
        present = held[..., : self.length, :]
        if self.complete or torch.is_grad_enabled():
            return present.index_select(0, index)
        # in steps: memory of the same size as that given back a moment ago comes without page faults
        room = (self.length // ROOM + 1) * ROOM
        taken = _aside((len(index), *held.shape[1:]), room, held)
        by_position = taken[..., : self.length, :].transpose(-3, -2)  # (B', length, H, D): one stretch of memory each
        torch.index_select(present.transpose(-3, -2), 0, index, out=by_position)
        return taken

    def _extended(self, held: Tensor | None, new: Tensor) -> Tensor:
        """(B, H, room, D) with the new positions written after the first `length`."""
        start, end = self.length, self.length + new.shape[-2]
        if torch.is_grad_enabled():
            return new if held is None else torch.cat((held[..., :start, :], new), -2)
        if held is None or end > held.shape[-2] or _frozen(held):
            room = max(self.capacity, 2 * end if start else end)
            grown = _aside(new.shape, room, new)
            if held is not None:
                grown[..., :start, :] = held[..., :start, :]
            held = grown
        held[..., start:end, :] = new
        return held

    def _check(self, name: str, new: Tensor, held: Tensor | None) -> None:
        if held is None:
            return
        fits = new.shape[:-2] == held.shape[:-2] and new.shape[-1] == held.shape[-1]
        if not fits or new.dtype != held.dtype:
            sizes = (*held.shape[:-2], self.length, held.shape[-1])
            raise ValueError(
                f"cache: {name} ({shape(new)}, {dtype(new)}) must continue what is held "
                f"({shape_of(sizes)}, {dtype(held)}). After beam search changes the batch, call reorder(index)."
            )


def _aside(sizes: Sequence[int], room: int, like: Tensor) -> Tensor:
    """Memory for `room` positions: (*lead, H, room, D), position by position as a projection writes them.

    A step then writes one stretch for each batch entry, and reordering copies one.
    """
    *lead, heads, _, width = (1, *sizes) if len(sizes) == 2 else sizes
    made = like.new_empty(*lead, room, heads, width).transpose(-3, -2)
    return made[0] if len(sizes) == 2 else made


def _frozen(held: Tensor) -> bool:
    """Whether it was made in inference mode and may not be written to now, outside of it."""
    return not torch.compiler.is_compiling() and held.is_inference() and not torch.is_inference_mode_enabled()


@dataclass
class DecoderCache:
    """The two caches of one `DecoderBlock`, kept in step.

    >>> caches = [DecoderCache() for _ in range(6)]      # one per block
    >>> caches[0].length
    0
    """

    attention: Cache = field(default_factory=Cache)
    cross_attention: Cache = field(default_factory=Cache)

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.attention.length

    def reorder(self, index: Tensor) -> None:
        """Take the batch entries that `index` names, in both: beam search."""
        self.attention.reorder(index)
        self.cross_attention.reorder(index)


@dataclass
class BeamCache:
    """Keys and values of every block of a decoder, for K hypotheses of each of B sentences.

    Hypotheses that go on from one another copy only the keys and values in which they differ.
    """

    lengths: Tensor
    """(B,): source tokens that count."""
    read: list[Tensor]
    """Keys and values of the source, of each block: (B, Ts, 2, H, D)."""
    written: list[Tensor] = field(default_factory=list)
    """Of what was written: (B·K, room, 2, H, D), of which `length` positions hold something."""
    writers: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int32))
    """(B·K, room): the row that a position was written in. Where two rows have the same writer, they hold the same."""
    length: int = 0

    def extend(self, x: Tensor, heads: int) -> None:
        """Make room for one position more of each row of x (B·K, W)."""
        if not self.written:
            sizes = (len(x), ROOM, 2, heads, x.shape[1] // heads)
            self.written = [x.new_empty(sizes) for _ in self.read]
            self.writers = torch.empty(sizes[:2], dtype=torch.int32, device=x.device)
        elif self.length == self.written[0].shape[1]:
            self._take(torch.arange(len(x), device=x.device))
        self.writers[:, self.length] = torch.arange(len(x), device=x.device)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        count = len(self.read[0] if sentences is None else sentences)
        if not count or not self._move(rows, len(rows) // count):
            self._take(rows)
        if sentences is None:
            return
        self.lengths = self.lengths.index_select(0, sentences)
        moved = (sentences != torch.arange(count, device=sentences.device)).nonzero().flatten()
        for held in self.read:
            held[moved] = held.index_select(0, sentences[moved])
        self.read = [held[:count] for held in self.read]

    def _move(self, rows: Tensor, each: int) -> bool:
        """Go on from these rows where they are, copying only what they do not hold already; whether that could be done.

        `each` of them belong to a sentence. See `reorder_rows`.
        """
        if self.length == self.writers.shape[1]:
            return False
        if torch._C._len_torch_function_stack():  # `regard.watch` may hold these keys, and would not see them move
            return False
        tables = (self.writers, *self.written)
        if not reorder_rows(tables, rows, each=each, length=self.length):
            return False
        self.writers, *self.written = (table[: len(rows)] for table in tables)
        return True

    def _take(self, rows: Tensor) -> None:
        """Go on from copies of these rows, with room for the next position; what is beyond the length is not copied."""
        sizes = (len(rows), (self.length // ROOM + 1) * ROOM, *self.written[0].shape[2:])
        places = [held.new_empty(sizes) for held in self.written]
        stretch = self.length * math.prod(sizes[2:])  # as matrices: a row is one stretch of memory, copied as such
        for held, place in zip(self.written, places, strict=True):
            torch.index_select(held.flatten(1)[:, :stretch], 0, rows, out=place.flatten(1)[:, :stretch])
        writers = self.writers.new_empty(sizes[:2])
        writers[:, : self.length] = self.writers[:, : self.length].index_select(0, rows)
        self.written, self.writers = places, writers
