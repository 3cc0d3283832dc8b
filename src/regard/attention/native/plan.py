"""What the native kernels are told besides the tensors themselves: sizes, numbers and the mask, as plain integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..masks import Mask
from ..packed_layout import Layout
from ..request import Request, by_head, entries, per_batch
from ..similarity import Additive, Dot
from . import engine, workspace

NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""What the kernels read, and what they call it. They compute in float32."""
OPEN = 2**40
"""A window's side that is open: farther than any sequence is long."""
LINE = 32
"""Numbers between the starts of pieces of memory: a line of the cache, and more of it for float32."""
HUGE_PAGES = 2**25
"""Bytes of a block beyond which it asks for huge pages."""
FEWEST_ROWS = 16
"""Queries of a task below which starting it costs more than it spreads."""


def kernels() -> Any:
    assert engine.module is not None, "refusal comes first"
    return engine.module


class Plan(NamedTuple):
    """What the kernel is told besides q, k and v."""

    batches: int
    heads: int
    groups: int
    scale: float
    softcap: float
    mask: tuple[int, ...] | None
    held: tuple[Tensor, ...]
    """Tensors that the numbers of the mask point into."""
    layout: Layout | None = None
    """Of packed sequences: `batches` is then the number of equally costly ones (`Layout.alike`)."""

    @classmethod
    def of(cls, request: Request) -> Plan:
        batches, heads = entries(request)
        mask, held = (None, ()) if request.mask.open else _mask_numbers(request, batches)
        softcap = 0.0 if request.softcap is None else request.softcap
        scale = request.similarity.scale if isinstance(request.similarity, Dot) else 1.0
        return cls(batches, heads, request.groups, scale, softcap, mask, held)

    @property
    def masked(self) -> bool:
        return self.mask is not None

    def problem(self, q: Tensor, k: Tensor, v: Tensor, width: int) -> tuple[Any, ...]:
        """What is asked of a kernel: sizes, q, k, v, numbers, mask."""
        batches, queries, keys = self.counts(q, k)
        sizes = (batches, self.heads, self.groups, queries, keys, width, v.shape[-1])
        return sizes, view(q), view(k), view(v), (NUMBERS[v.dtype], self.scale, self.softcap), self.mask

    def counts(self, q: Tensor, k: Tensor) -> tuple[int, int, int]:
        """Batch entries, and queries and keys of each; of packed sequences those of the longest."""
        if self.layout is None:
            return self.batches, q.shape[-2], k.shape[-2]
        return self.layout.sequences, self.layout.most_queries, self.layout.most_keys

    @property
    def lengths(self) -> tuple[int, int, int] | None:
        """Packed sequences: how many, and pointers to their numbers of queries and of keys."""
        if self.layout is None:
            return None
        return self.layout.sequences, address(self.layout.queries), address(self.layout.keys)

    def rows_per_task(self, queries: int, threads: int, most: int) -> int:
        """Queries of one task: fewer than most where some threads would get nothing."""
        wanted = -(-4 * threads // max(1, self.batches * self.heads))  # parts of each head
        even = -(-queries // max(wanted, -(-queries // most)))
        return max(1, min(queries, max(even, FEWEST_ROWS)))

    def shares(self, keys: int, threads: int, fewest: int) -> int:
        """Shares of each head's keys: one where there are heads enough for all threads, else some four tasks for each
        thread, as the keys of a causal mask cost unequally."""
        heads = max(1, self.batches * self.heads)
        return 1 if threads == 1 or heads >= 4 * threads else max(1, min(-(-4 * threads // heads), keys // fewest))

    def ungroup(self, x: Tensor) -> Tensor:
        """Add up what the query heads of each key head found: (…, H, T, D) → (…, H / groups, T, D)."""
        return x if self.groups == 1 else x.unflatten(-3, (-1, self.groups)).sum(-3)


def four(x: Tensor, request: Request, groups: int = 1) -> Tensor:
    """`by_head`, the last dimension with unit stride."""
    return unit_rows(by_head(x, request, groups))


def unit_rows(x: Tensor) -> Tensor:
    """The last dimension with unit stride, numbers as they lie in memory (a lazy negation is carried out)."""
    x = x.resolve_neg()
    return x if x.stride()[-1] == 1 or x.shape[-1] == 1 else x.contiguous()


def channel_weights(request: Request, plan: Plan) -> Tensor:
    """The weights of additive scores, (B, H, D), broadcast by strides."""
    assert isinstance(request.similarity, Additive)
    w = request.similarity.weight.to(torch.float32)
    return unit_rows(w.expand(*request.lead, w.shape[-1]).reshape(plan.batches, plan.heads, w.shape[-1]))


def pieces(*shapes: tuple[int, ...], dtypes: Sequence[torch.dtype] | None = None) -> list[Tensor]:
    """Uninitialized memory for several tensors, of float32 or of `dtypes`, in one block of `workspace`."""
    sizes = [math.prod(shape) for shape in shapes]
    types = [torch.float32] * len(sizes) if dtypes is None else dtypes
    room = [-(-size // LINE) * LINE * dtype.itemsize for size, dtype in zip(sizes, types, strict=True)]
    whole = workspace.empty(sum(room), _use_huge_pages)
    parts = zip(whole.split(room), types, sizes, shapes, strict=True)
    return [piece.view(dtype)[:size].view(shape) for piece, dtype, size, shape in parts]


def _use_huge_pages(block: Tensor) -> None:
    """Large blocks ask the system for huge pages, which make the page faults of their first use few."""
    if len(block) > HUGE_PAGES:
        kernels().large_pages(address(block), len(block))


def addressable(x: Tensor) -> bool:
    """Whether the kernels can read a tensor: a plain one, dense, on the CPU, whose memory is there."""
    if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ or not x.is_cpu or x.is_neg():
        return False
    try:
        return x.untyped_storage().nbytes() > 0 or not x.numel()
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by torch.func: no memory of its own
        return False


def address(x: Tensor | None) -> int:
    """Where a tensor lies in memory; 0 for none. Every address that the kernels get comes from here.

    Raises:
        ValueError: for a tensor that the kernels cannot read, where they would crash.
    """
    if x is None:
        return 0
    if not addressable(x):
        raise ValueError(
            f"native: a tensor ({'×'.join(map(str, x.shape))}) must be a plain, dense one in CPU memory; got "
            f"{type(x).__name__} on {x.device}. Try backend='torch'."
        )
    return x.data_ptr()


def view(x: Tensor) -> tuple[int, int, int, int]:
    """Pointer and strides of batch, head and row, of x (B, H, T, ·), or of packed x (H, N, ·)."""
    *batch, head, row, _ = x.stride()
    return address(x), batch[0] if batch else 0, head, row


def rows_of(softmax: Tensor) -> tuple[int, int, int, int]:
    """Pointer to the highest scores, distance to the totals, strides of batch and head: (2, B, H, T), or (2, H, N)."""
    totals, *batch, head, _ = softmax.stride()
    return address(softmax), totals, batch[0] if batch else 0, head


def heads_inside(x: Tensor) -> bool:
    """Whether x (…, H, T, ·) lies as (…, T, H, ·), its heads side by side in a row, as a projection leaves them."""
    head, row, _ = x.stride()[-3:]
    return head < row


class Gradients(NamedTuple):
    """Room for the gradients of q, k and v."""

    dq: Tensor
    """(parts, …, H, Tq, padded D): each share of the keys has its own, and they are added up."""
    dk: Tensor
    """(…, H, Tk, padded D): one for each query head."""
    dv: Tensor
    """(…, H, Tk, padded Dv)"""

    @classmethod
    def room(cls, plan: Plan, q: Tensor, k: Tensor, v: Tensor, parts: int) -> Gradients:
        """Laid out as q, k and v are."""
        (*lead, heads, queries, width), keys, value_width = q.shape, k.shape[-2], v.shape[-1]
        # what is added up afterwards is rounded afterwards
        of_queries = q.dtype if parts == 1 else torch.float32
        of_keys = k.dtype if plan.groups == 1 else torch.float32
        padded, inside = kernels().padded, heads_inside(q) and heads_inside(k) and heads_inside(v)

        def laid(*shape: int) -> tuple[int, ...]:
            *first, h, t, d = shape
            return (*first, t, h, d) if inside else shape

        made = pieces(
            laid(parts, *lead, heads, queries, padded(width)),
            laid(*lead, heads, keys, padded(width)),
            laid(*lead, heads, keys, padded(value_width)),
            dtypes=(of_queries, of_keys, of_keys),
        )
        return cls(*(x.transpose(-3, -2) for x in made) if inside else made)

    def arguments(self) -> tuple[Any, ...]:
        """What the kernels are told of it."""
        dq, dk, dv = self
        return view(dq[0]), view(dk), view(dv), dq.stride(0), NUMBERS[dq.dtype], NUMBERS[dk.dtype]

    def zero(self) -> None:
        for x in self:
            x.zero_()

    def of(self, plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients themselves, of the shapes and dtypes of q, k and v."""
        dq = self.dq.squeeze(0) if len(self.dq) == 1 else self.dq.sum(0)
        dq, dk, dv = dq[..., : q.shape[-1]], plan.ungroup(self.dk), plan.ungroup(self.dv)
        return dq.to(q.dtype), dk[..., : k.shape[-1]].to(k.dtype), dv[..., : v.shape[-1]].to(v.dtype)


def _mask_numbers(request: Request, batches: int) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    mask = request.mask
    held: list[Tensor] = []

    def pointer(number: int | Tensor) -> int:
        held.append(per_batch(number, request, batches))
        return address(held[-1])

    left = OPEN if mask.left is None else mask.left
    right = OPEN if mask.right is None else mask.right
    offset = pointer(mask.offset) if isinstance(mask.offset, Tensor) or mask.offset else 0
    length = 0 if mask.lengths is None else pointer(mask.lengths)
    if mask.dense is None:
        return (left, right, offset, length, 0, 0, 0, 0, 0, 0), tuple(held)
    dense, kind = _dense(mask, request)
    held.append(dense)
    return (left, right, offset, length, kind, address(dense), *dense.stride()), tuple(held)


def _dense(mask: Mask, request: Request) -> tuple[Tensor, int]:
    """The dense part (B, H, Tq, Tk), broadcast by strides, and its kind: 1 boolean, 2 added."""
    assert mask.dense is not None
    dense = mask.dense.detach().resolve_neg()
    dense, kind = (dense.view(torch.uint8), 1) if dense.dtype == torch.bool else (dense.to(torch.float32), 2)
    return by_head(dense.expand(*dense.shape[:-2], request.queries, request.keys), request), kind
