"""A cache of memory blocks for gradients and intermediate results.

A backward pass needs tens of MiB for its gradients, and the C library may return them to the system when they are
freed. Then every call has page faults again, which can take as long as the kernel itself. So recently used blocks are
kept, up to `LIMIT` bytes, and a block is reused when no tensor refers to it any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALLEST = 2**17
"""Smaller blocks, in bytes, are not kept: the C library caches those itself."""
LIMIT = 2**27
"""Total size of kept blocks, in bytes. Larger blocks are allocated each time."""

_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_lock = threading.Lock()


class Block(NamedTuple):
    """A kept block of memory."""

    memory: Tensor
    """(size,) uint8"""
    storage: torch.UntypedStorage
    """Its storage: one Python object for all tensors that share it."""
    users: tuple[int, int]
    """`_users(storage)` while nothing else refers to the storage."""

    @property
    def free(self) -> bool:
        return _users(self.storage) == self.users


def _users(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Return the number of tensors that share the storage, and of Python references to the storage object."""
    return _use_count(storage._cdata), sys.getrefcount(storage)


_blocks: list[Block] = []
"""Kept blocks, the most recently used last."""


def empty(size: int, allocated: Callable[[Tensor], None] = lambda block: None) -> Tensor:
    """Return uninitialized memory of `size` bytes, (size,) uint8: a free block of the cache, or a new one.

    `allocated` is called with a new block before it is used.

    >>> first = empty(2**20)
    >>> address = first.data_ptr()
    >>> second = empty(2**20)  # the first is still in use
    >>> second.data_ptr() == address
    False
    >>> del first
    >>> empty(2**20).data_ptr() == address  # now it is free
    True
    """
    if not SMALLEST <= size <= LIMIT or _use_count is None:
        return _allocate(size, allocated)
    with _lock:
        block = _take(size)
        if block is None:
            block = _allocate(size, allocated)
            _keep(block)
        return block[:size]


def clear() -> None:
    """Clear the cache. Blocks that no tensor uses are freed."""
    with _lock:
        _blocks.clear()


def _take(size: int) -> Tensor | None:
    """Return the smallest free block of at least `size` bytes and at most twice as many, or None."""
    fitting = [n for n, block in enumerate(_blocks) if size <= len(block.memory) <= 2 * size and block.free]
    if not fitting:
        return None
    best = min(fitting, key=lambda n: len(_blocks[n].memory))
    _blocks.append(_blocks.pop(best))
    return _blocks[-1].memory


def _keep(memory: Tensor) -> None:
    _blocks.append(Block(memory, memory.untyped_storage(), (0, 0)))
    _blocks[-1] = _blocks[-1]._replace(users=_users(_blocks[-1].storage))
    while sum(len(block.memory) for block in _blocks) > LIMIT:
        del _blocks[0]


def _allocate(size: int, allocated: Callable[[Tensor], None]) -> Tensor:
    with torch.inference_mode(False):  # a block outlives the mode of the call that allocates it
        block = torch.empty(size, dtype=torch.uint8, device="cpu")
    allocated(block)
    return block
