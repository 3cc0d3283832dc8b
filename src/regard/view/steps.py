"""Generation with a cache, joined: the steps of one module become one map.

step      keys seen by the step          joined: queries below one another, keys those of all steps
prompt    a b c                          a │ ■ · · · ·
4th       a b c d                        b │ ■ ■ · · ·
5th       a b c d e                      c │ ■ ■ ■ · ·
                                         d │ ■ ■ ■ ■ ·
                                         e │ ■ ■ ■ ■ ■
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention.masks import OPEN, Mask
from ..attention.request import Request
from ..attention.similarity import Additive, Dot, Similarity
from .call import apart, place


@dataclass(frozen=True)
class Step:
    q: Tensor
    """(B, H, queries, D)"""
    mask: Mask
    first: int
    """Where the step's first key stands among the keys of all steps."""
    keys: int


@dataclass(frozen=True)
class Steps:
    """Requests that continue one another. Of the keys it holds the last step's, and such as a window has dropped."""

    steps: tuple[Step, ...]
    dropped: tuple[Tensor, ...]
    """Keys before those of the last step, in order."""
    last: Request
    storage: int
    """Where the last step's keys lay when it was seen."""

    @classmethod
    def of(cls, request: Request, storage: int) -> Steps:
        return cls((Step(request.q, request.mask, 0, request.keys),), (), request, storage)

    def followed(self, new: Request, storage: int) -> Steps | None:
        """With one more step, or None where this is none: another pass, another batch, beams in another order."""
        first = self._first(new, storage)
        if first is None:
            return None
        gone = first - self.steps[-1].first
        dropped = (*self.dropped, self.last.k[..., :gone, :]) if gone else self.dropped
        step = Step(new.q, new.mask, first, new.keys)
        return Steps((*self.steps, step), dropped, replace(new, q=new.q[..., :0, :]), storage)

    def _first(self, new: Request, storage: int) -> int | None:
        last, held = self.last, self.last.keys
        alike = (new.lead, new.k.shape[:-2], new.groups, new.softcap, new.hard, new.k.dtype, new.device)
        if alike != (last.lead, last.k.shape[:-2], last.groups, last.softcap, last.hard, last.k.dtype, last.device):
            return None
        if new.k.shape[-1] != last.k.shape[-1] or not _same(new.similarity, last.similarity) or not held:
            return None
        at = self.steps[-1].first
        held_still = place(last.k) == self.storage or new.queries == 1  # else another may have taken its place
        if storage == self.storage and held_still and new.queries < new.keys >= held and _equal(new.k, 0, last.k, 0):
            return at  # the same keys again, as in cross-attention, or a buffer that fills up
        older = new.keys - new.queries
        if 1 <= older <= held and _equal(new.k, older - 1, last.k, held - 1) and _equal(new.k, 0, last.k, held - older):
            return at + held - older
        return None

    def tensors(self) -> Sequence[Tensor]:
        masks = [x for step in self.steps for x in (step.mask.dense, step.mask.lengths) if isinstance(x, Tensor)]
        return [*(step.q for step in self.steps), *self.dropped, self.last.k, *masks, *self.last.similarity.parameters]

    def own(self, storage: int) -> Steps:
        def masked(mask: Mask) -> Mask:
            return replace(mask, dense=apart(mask.dense, storage)) if mask.dense is not None else mask

        def held(x: Tensor) -> Tensor:
            return x.clone() if place(x) == storage else x

        steps = tuple(replace(step, q=held(step.q), mask=masked(step.mask)) for step in self.steps)
        return replace(
            self,
            steps=steps,
            dropped=tuple(map(held, self.dropped)),
            last=replace(self.last, k=held(self.last.k)),
        )

    def request(self) -> Request:
        """All steps as one."""
        k = torch.cat([*self.dropped, self.last.k], -2) if self.dropped else self.last.k  # (B, Hk, Tk, D)
        q = torch.cat([step.q for step in self.steps], -2)  # (B, H, Tq, D)
        return replace(self.last, q=q, k=k, mask=_mask(self.steps, k.shape[-2], k.device))


def _same(one: Similarity, other: Similarity) -> bool:
    if isinstance(one, Additive) and isinstance(other, Additive):
        return place(one.weight) == place(other.weight)
    return isinstance(one, Dot) and one == other


def _equal(one: Tensor, at: int, other: Tensor, there: int) -> bool:
    """Whether two keys are the same numbers: of all keys a sample, so that a step costs no more for being watched."""
    return torch.equal(one[..., at, :], other[..., there, :])


def _mask(steps: Sequence[Step], keys: int, device: torch.device) -> Mask:
    if all(step.mask.open and step.keys == keys for step in steps):
        return OPEN
    return _band(steps, device) or Mask(_dense(steps, keys, device))


def _band(steps: Sequence[Step], device: torch.device) -> Mask | None:
    """A causal mask, perhaps with a window, if that is what the steps come to: from low to high, query by query."""
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
    """Every pair, (…, Tq, Tk): for masks that are no band."""
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
