"""Join the steps of a generation with a cache into one map per module.

step      keys seen by the step          joined map: the queries of all steps × the keys of all steps
prompt    a b c                          a │ ■ · · · ·
4th       a b c d                        b │ ■ ■ · · ·
5th       a b c d e                      c │ ■ ■ ■ · ·
                                         d │ ■ ■ ■ ■ ·
                                         e │ ■ ■ ■ ■ ■
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import pad

from ..attention.masks import OPEN, Mask
from ..attention.request import Request
from ..attention.similarity import Additive, Dot, Similarity
from .recorded_call import compact, copy_if_in, storage_pointer

ROWS = 256
"""Number of mask rows examined at a time."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by item size. Numbers are compared bit by bit as integers."""


@dataclass(frozen=True)
class Step:
    """One request of a generation."""

    q: Tensor
    """(B, H, queries, D)"""
    mask: Mask
    first: int
    """Index of the step's first key among the keys of all steps."""
    keys: int


@dataclass(frozen=True)
class Steps:
    """Consecutive requests of a generation, with the keys of the last step and the keys dropped by a sliding window.

    Requests are joined only if they certainly belong together. Keys are compared bit by bit:

    - Every key that an earlier query may attend to must be the same in the new step. It differs after beams were
      reordered, after a cache was cropped, and in a pass over another text.
    - The new step must add one key for each of its queries, or have the same keys in the same memory, as
      cross-attention with a cache does.
    - If dropped keys cannot be compared any more, or if all steps share the keys, no two batch entries may be equal:
      an exchange of equal entries could not be detected.
    """

    steps: tuple[Step, ...]
    dropped: tuple[Tensor, ...]
    """Keys that precede those of the last step, in order."""
    last: Request
    storage: StorageWeakRef | None
    """The storage of the last step's keys in the model."""
    used: Tensor | None = None
    """(B or 1, keys): keys that some query may attend to, if already computed."""

    @classmethod
    def of(cls, request: Request, storage: StorageWeakRef | None) -> Steps:
        return cls((Step(request.q, request.mask, 0, request.keys),), (), request, storage)

    def extended(self, new: Request, storage: StorageWeakRef | None, copies: MaskCopies) -> Steps | None:
        """Return these steps and one more; None if the new request does not continue them."""
        if not self._comparable(new):
            return None
        first, used = self._match_growing_cache(new), None
        if first is None:
            first, used = self._match_fixed_cache(new, storage)
        if first is None:
            return None
        count = first - self.steps[-1].first
        dropped = (*self.dropped, self.last.k[..., :count, :].clone()) if count else self.dropped
        step = Step(new.q.clone(), copies.copy(new.mask), first, new.keys)
        empty = new.q.new_empty(*new.q.shape[:-2], 0, new.q.shape[-1])  # a slice would keep all of the queries
        return Steps((*self.steps, step), dropped, replace(new, q=empty), storage, used)

    def _comparable(self, new: Request) -> bool:
        last = self.last
        if not last.keys or not new.queries or new.k.shape[-1] != last.k.shape[-1]:
            return False
        same = (new.lead, new.k.shape[:-2], new.groups, new.softcap, new.hard, new.k.dtype, new.device)
        if same != (last.lead, last.k.shape[:-2], last.groups, last.softcap, last.hard, last.k.dtype, last.device):
            return False
        return _same_similarity(new.similarity, last.similarity)

    def _match_growing_cache(self, new: Request) -> int | None:
        """Return the index of the new step's first key for a cache that appends keys and may drop the oldest ones."""
        held, older, at = self.last.keys, new.keys - new.queries, self.steps[-1].first
        if not 1 <= older <= held:
            return None
        known = new.k[..., :older, :]
        whole = older == held and not self.dropped
        if not (_own_keys(new) if whole else _distinct(new, known)):
            return None
        return at + held - older if same_bits(known, self.last.k[..., held - older :, :]) else None

    def _match_fixed_cache(self, new: Request, storage: StorageWeakRef | None) -> tuple[int | None, Tensor | None]:
        """Return the same index for a preallocated cache or for cross-attention, and the keys that are now in use."""
        held = self.last.keys
        if self.dropped or new.keys < held or new.queries >= new.keys:
            return None, None
        before = pad(self._used(), (0, new.keys - held))  # (B or 1, keys)
        after = _used(new.mask, new.queries, new.keys, new.device)
        fresh = (after & ~before).sum(-1)
        known, last = new.k[..., :held, :], self.last.k
        if bool((fresh == new.queries).all()):
            other = _differs(known, last)  # (B, keys)
            fits = _own_keys(new) and not bool((other & before[..., :held]).any())
        else:  # cross-attention adds no keys: only their memory distinguishes a step from another pass
            same = storage is not None and self.storage is not None and storage == self.storage
            fits = same and new.queries == 1 and new.keys == held and not bool(fresh.any())
            fits = fits and same_bits(known, last) and _distinct(new, known)
        return (0, before | after) if fits else (None, None)

    def _used(self) -> Tensor:
        if self.used is not None:
            return self.used
        keys, used = self.last.keys, torch.zeros(1, self.last.keys, dtype=torch.bool, device=self.last.device)
        for step in self.steps:
            used = used | pad(_used(step.mask, step.q.shape[-2], step.keys, used.device), (0, keys - step.keys))
        return used

    def tensors(self) -> Sequence[Tensor]:
        """Return the tensors shared with the model. Queries and masks of later steps are copies already."""
        first = self.steps[0]
        masks = [] if first.mask.dense is None else [first.mask.dense]
        return [first.q, self.last.k, *masks, *self.last.similarity.parameters]

    def copy_storage(self, storage: int) -> Steps:
        first, *later = self.steps
        q, k, dense = (copy_if_in(x, storage) for x in (first.q, self.last.k, first.mask.dense))
        assert q is not None and k is not None
        first = replace(first, q=q, mask=first.mask if dense is None else replace(first.mask, dense=dense))
        return replace(self, steps=(first, *later), last=replace(self.last, k=k))

    def request(self) -> Request:
        """Return one request for all steps."""
        k = torch.cat([*self.dropped, self.last.k], -2) if self.dropped else self.last.k  # (B, Hk, Tk, D)
        q = torch.cat([step.q for step in self.steps], -2)  # (B, H, Tq, D)
        return compact(replace(self.last, q=q, k=k, mask=_mask(self.steps, k.shape[-2], k.device)))


class MaskCopies:
    """Copies masks. Consecutive layers with equal masks share one copy."""

    def __init__(self) -> None:
        self._last: Tensor | None = None

    def copy(self, mask: Mask) -> Mask:
        dense, last = mask.dense, self._last
        if dense is None:
            return mask
        if last is None or last.dtype != dense.dtype or last.device != dense.device or not torch.equal(last, dense):
            self._last = last = dense.clone()
        return replace(mask, dense=last)


def _same_similarity(one: Similarity, other: Similarity) -> bool:
    if isinstance(one, Additive) and isinstance(other, Additive):
        return storage_pointer(one.weight) == storage_pointer(other.weight)
    return isinstance(one, Dot) and one == other


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype have the same bits: NaN equals itself, −0 differs from 0."""
    if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    return torch.equal(_bits(one), _bits(other))


def _bits(x: Tensor) -> Tensor:
    return x.view(BITS[x.itemsize])


def _differs(one: Tensor, other: Tensor) -> Tensor:
    """Return which keys differ in some head, bit by bit: two (B, Hk, T, D) → (B, T)."""
    return (_bits(one) != _bits(other)).any(-1).any(-2)


def _own_keys(request: Request) -> bool:
    """Return whether each batch entry has its own keys."""
    return math.prod(request.lead[:-1]) == 1 or request.k.shape[:-3] == request.lead[:-1]


def _distinct(request: Request, keys: Tensor) -> bool:
    """Return whether the keys (B, Hk, T, D) of each batch entry certainly differ from those of every other entry."""
    if math.prod(request.lead[:-1]) == 1:
        return True
    sums = _bits(keys).sum((-3, -2, -1), dtype=torch.int64).flatten()  # entries with equal sums may be equal
    return _own_keys(request) and len(sums.unique()) == len(sums)


def _used(mask: Mask, queries: int, keys: int, device: torch.device) -> Tensor:
    """Return which keys some query of some head may attend to, (B or 1, keys)."""
    used = torch.zeros(1, keys, dtype=torch.bool, device=device)
    for start in range(0, 1 if mask.open else queries, ROWS):
        rows, cols = slice(start, min(start + ROWS, queries)), slice(0, keys)
        allowed, bias = mask.allowed(rows, cols, device), mask.bias(rows, cols)
        if bias is not None:  # many models use the smallest number of the dtype for −∞
            finite = bias > torch.finfo(bias.dtype).min / 2
            allowed = finite if allowed is None else allowed & finite
        if allowed is None:
            return torch.ones_like(used)
        allowed = allowed[(None,) * (4 - allowed.ndim)].any(-2).any(-2)  # (B or 1, keys or 1)
        used = used | allowed
    return used


def _mask(steps: Sequence[Step], keys: int, device: torch.device) -> Mask:
    if all(step.mask.open and step.keys == keys for step in steps):
        return OPEN
    return _band(steps, device) or Mask(_dense(steps, keys, device))


def _band(steps: Sequence[Step], device: torch.device) -> Mask | None:
    """Return the equivalent causal mask, with or without a window, or None if the steps do not form one."""
    lows, highs = [], []
    for step in steps:
        m, rows = step.mask, step.q.shape[-2]
        if m.dense is not None or m.lengths is not None or isinstance(m.offset, Tensor):
            return None
        position = torch.arange(rows, device=device) + m.offset
        high = torch.full_like(position, step.keys - 1) if m.right is None else position + m.right
        low = torch.zeros_like(position) if m.left is None else position - m.left
        lows.append(low.clamp(min=0) + step.first)
        highs.append(high.clamp(max=step.keys - 1) + step.first)
    low, high = torch.cat(lows), torch.cat(highs)
    width = int((high - low).max()) if len(low) else 0
    left = width if bool((low > 0).any()) else None
    if left is not None and not torch.equal((high - left).clamp(min=0), low):
        return None
    offset = high - torch.arange(len(high), device=device)
    if bool((offset == offset[:1]).all()):
        return Mask(None, left, 0, int(offset[0]) if len(offset) else 0)
    return Mask(None, left, 0, offset.reshape(1, 1, -1, 1))


def _dense(steps: Sequence[Step], keys: int, device: torch.device) -> Tensor:
    """Return a dense mask, (…, Tq, Tk), for steps that do not form a band."""
    added = [step.mask.dense for step in steps if step.mask.dense is not None and step.mask.dense.is_floating_point()]
    blocks = []
    for step in steps:
        rows, cols = slice(0, step.q.shape[-2]), slice(0, step.keys)
        allowed = step.mask.allowed(rows, cols, device)
        if allowed is None:
            allowed = torch.ones(1, 1, dtype=torch.bool, device=device)
        bias = step.mask.bias(rows, cols)
        block = allowed
        if added:
            bias = torch.zeros((), dtype=added[0].dtype, device=device) if bias is None else bias
            block = torch.where(allowed, bias, -torch.inf)
        block = block.expand(*block.shape[:-2], rows.stop, step.keys)
        outside = -torch.inf if added else False
        blocks.append(pad(block, (step.first, keys - step.first - step.keys), value=outside))
    lead = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks))
    return torch.cat([block.expand(*lead, *block.shape[-2:]) for block in blocks], -2)
