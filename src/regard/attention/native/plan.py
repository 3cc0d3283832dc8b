"""Arguments of the native kernels other than tensors: sizes, parameters and the mask, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.tensors import shape
from ..masks import Mask
from ..packed_layout import Layout
from ..request import Request, by_head, entries, per_batch
from ..similarity import Additive, Dot
from . import engine, workspace

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Dtypes that the kernels read, and their codes. The kernels compute in float32."""
OPEN = 2**40
"""An open side of a window: larger than any sequence."""
ALIGNMENT = 32
"""Alignment of tensors in a block, in elements: at least one cache line."""
HUGE_PAGES = 2**25
"""Blocks larger than this, in bytes, request huge pages."""
FEWEST_ROWS = 16
"""Fewest queries per task: below this, starting a task costs more than it gains."""


def kernels() -> Any:
    assert engine.module is not None, "refusal comes first"
    return engine.module


class Plan(NamedTuple):
    """Arguments of a kernel other than q, k and v."""

    batches: int
    heads: int
    groups: int
    scale: float
    softcap: float
    mask: tuple[int, ...] | None
    tensors: tuple[Tensor, ...]
    """Tensors that the pointers in `mask` refer to."""
    layout: Layout | None = None
    """Layout of packed sequences. `batches` is then their effective number (`Layout.effective_sequences`)."""

    @classmethod
    def of(cls, request: Request) -> Plan:
        batches, heads = entries(request)
        mask, tensors = (None, ()) if request.mask.open else _mask_numbers(request, batches)
        softcap = 0.0 if request.softcap is None else request.softcap
        scale = request.similarity.scale if isinstance(request.similarity, Dot) else 1.0
        return cls(batches, heads, request.groups, scale, softcap, mask, tensors)

    @property
    def masked(self) -> bool:
        return self.mask is not None

    def problem(self, q: Tensor, k: Tensor, v: Tensor, width: int) -> tuple[Any, ...]:
        """Return the problem description of a kernel: sizes, q, k, v, parameters, mask."""
        batches, queries, keys = self.counts(q, k)
        sizes = (batches, self.heads, self.groups, queries, keys, width, v.shape[-1])
        return sizes, view(q), view(k), view(v), (DTYPE_CODES[v.dtype], self.scale, self.softcap), self.mask

    def counts(self, q: Tensor, k: Tensor) -> tuple[int, int, int]:
        """Return the number of batch entries, and of queries and keys of each; for packed sequences, of the longest."""
        if self.layout is None:
            return self.batches, q.shape[-2], k.shape[-2]
        return self.layout.sequences, self.layout.most_queries, self.layout.most_keys

    @property
    def lengths(self) -> tuple[int, int, int] | None:
        """Number of packed sequences, and pointers to their lengths of queries and keys; None if not packed."""
        if self.layout is None:
            return None
        return self.layout.sequences, address(self.layout.queries), address(self.layout.keys)

    def rows_per_task(self, queries: int, threads: int, most: int) -> int:
        """Return the number of queries per task: at most `most`, and fewer if some threads would be idle."""
        wanted = -(-4 * threads // max(1, self.batches * self.heads))  # parts of each head
        even = -(-queries // max(wanted, -(-queries // most)))
        return max(1, min(queries, max(even, FEWEST_ROWS)))

    def key_parts(self, keys: int, threads: int, fewest: int) -> int:
        """Return into how many parts the keys of each head are divided.

        It is one if there are enough heads for all threads. Otherwise there are about four tasks per thread, because
        the cost of keys varies under a causal mask.
        """
        heads = max(1, self.batches * self.heads)
        return 1 if threads == 1 or heads >= 4 * threads else max(1, min(-(-4 * threads // heads), keys // fewest))

    def ungroup(self, x: Tensor) -> Tensor:
        """Sum over the query heads of each key head: (…, H, T, D) → (…, H / groups, T, D)."""
        return x if self.groups == 1 else x.unflatten(-3, (-1, self.groups)).sum(-3)


def unit_rows_by_head(x: Tensor, request: Request, groups: int = 1) -> Tensor:
    """Return `by_head(x)` with unit stride in the last dimension."""
    return unit_rows(by_head(x, request, groups))


def unit_rows(x: Tensor) -> Tensor:
    """Return x with unit stride in the last dimension and without a lazy negation, copied if necessary."""
    x = x.resolve_neg()
    return x if x.stride()[-1] == 1 or x.shape[-1] == 1 else x.contiguous()


def channel_weights(request: Request, plan: Plan) -> Tensor:
    """Return the weights of additive scores, (B, H, D), broadcast by strides."""
    assert isinstance(request.similarity, Additive)
    w = request.similarity.weight.to(torch.float32)
    return unit_rows(w.expand(*request.lead, w.shape[-1]).reshape(plan.batches, plan.heads, w.shape[-1]))


def allocate(*shapes: tuple[int, ...], dtypes: Sequence[torch.dtype] | None = None) -> list[Tensor]:
    """Return uninitialized tensors, float32 or of `dtypes`, in one block of `workspace`."""
    sizes = [math.prod(shape) for shape in shapes]
    types = [torch.float32] * len(sizes) if dtypes is None else dtypes
    nbytes = [-(-size // ALIGNMENT) * ALIGNMENT * dtype.itemsize for size, dtype in zip(sizes, types, strict=True)]
    whole = workspace.empty(sum(nbytes), _use_huge_pages)
    parts = zip(whole.split(nbytes), types, sizes, shapes, strict=True)
    return [memory.view(dtype)[:size].view(shape) for memory, dtype, size, shape in parts]


def _use_huge_pages(block: Tensor) -> None:
    """Request huge pages for a large block, to reduce page faults on first use."""
    if len(block) > HUGE_PAGES:
        kernels().large_pages(address(block), len(block))


def addressable(x: Tensor) -> bool:
    """Return whether the kernels can read a tensor: plain, dense, on the CPU, with allocated memory."""
    if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ or not x.is_cpu or x.is_neg():
        return False
    try:
        return x.untyped_storage().nbytes() > 0 or not x.numel()
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by torch.func: no memory of its own
        return False


def address(x: Tensor | None) -> int:
    """Return the address of a tensor; 0 for None. Every address that the kernels get comes from here.

    Raises:
        ValueError: if the kernels cannot read the tensor. They would crash.
    """
    if x is None:
        return 0
    if not addressable(x):
        raise ValueError(
            f"native: a tensor ({shape(x)}) must be a plain, dense one in CPU memory; got "
            f"{type(x).__name__} on {x.device}. Try backend='torch'."
        )
    return x.data_ptr()


def view(x: Tensor) -> tuple[int, int, int, int]:
    """Return pointer and strides of batch, head and row of x (B, H, T, ·), or of packed x (H, N, ·)."""
    *batch, head, row, _ = x.stride()
    return address(x), batch[0] if batch else 0, head, row


def rows_of(softmax: Tensor) -> tuple[int, int, int, int]:
    """Return pointer to the highest scores, offset of the totals, and strides of batch and head.

    softmax: (2, B, H, T), or (2, H, N) if packed.
    """
    totals, *batch, head, _ = softmax.stride()
    return address(softmax), totals, batch[0] if batch else 0, head


def heads_in_rows(x: Tensor) -> bool:
    """Return whether x (…, H, T, ·) has the memory layout (…, T, H, ·), as the output of a projection has."""
    head, row, _ = x.stride()[-3:]
    return head < row


class Gradients(NamedTuple):
    """Memory for the gradients of q, k and v."""

    dq: Tensor
    """(parts, …, H, Tq, padded D): one per part of the keys, to be summed."""
    dk: Tensor
    """(…, H, Tk, padded D): one per query head."""
    dv: Tensor
    """(…, H, Tk, padded Dv)"""

    @classmethod
    def allocate(cls, plan: Plan, q: Tensor, k: Tensor, v: Tensor, parts: int) -> Gradients:
        """Allocate gradients with the memory layout of q, k and v."""
        (*lead, heads, queries, width), keys, value_width = q.shape, k.shape[-2], v.shape[-1]
        # gradients that are summed afterwards stay in float32 until then
        query_dtype = q.dtype if parts == 1 else torch.float32
        key_dtype = k.dtype if plan.groups == 1 else torch.float32
        padded, heads_last = kernels().padded, heads_in_rows(q) and heads_in_rows(k) and heads_in_rows(v)

        def layout(*shape: int) -> tuple[int, ...]:
            *first, h, t, d = shape
            return (*first, t, h, d) if heads_last else shape

        gradients = allocate(
            layout(parts, *lead, heads, queries, padded(width)),
            layout(*lead, heads, keys, padded(width)),
            layout(*lead, heads, keys, padded(value_width)),
            dtypes=(query_dtype, key_dtype, key_dtype),
        )
        return cls(*(x.transpose(-3, -2) for x in gradients) if heads_last else gradients)

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of the kernels."""
        dq, dk, dv = self
        return view(dq[0]), view(dk), view(dv), dq.stride(0), DTYPE_CODES[dq.dtype], DTYPE_CODES[dk.dtype]

    def zero(self) -> None:
        for x in self:
            x.zero_()

    def finish(self, plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum the parts and return gradients with the shapes and dtypes of q, k and v."""
        dq = self.dq.squeeze(0) if len(self.dq) == 1 else self.dq.sum(0)
        dq, dk, dv = dq[..., : q.shape[-1]], plan.ungroup(self.dk), plan.ungroup(self.dv)
        return dq.to(q.dtype), dk[..., : k.shape[-1]].to(k.dtype), dv[..., : v.shape[-1]].to(v.dtype)


def _mask_numbers(request: Request, batches: int) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    mask = request.mask
    tensors: list[Tensor] = []

    def pointer(number: int | Tensor) -> int:
        tensors.append(per_batch(number, request, batches))
        return address(tensors[-1])

    left = OPEN if mask.left is None else mask.left
    right = OPEN if mask.right is None else mask.right
    offset = pointer(mask.offset) if isinstance(mask.offset, Tensor) or mask.offset else 0
    length = 0 if mask.lengths is None else pointer(mask.lengths)
    if mask.dense is None:
        return (left, right, offset, length, 0, 0, 0, 0, 0, 0), tuple(tensors)
    dense, kind = _dense(mask, request)
    tensors.append(dense)
    return (left, right, offset, length, kind, address(dense), *dense.stride()), tuple(tensors)


def _dense(mask: Mask, request: Request) -> tuple[Tensor, int]:
    """Return the dense mask (B, H, Tq, Tk), broadcast by strides, and its kind: 1 boolean, 2 float."""
    assert mask.dense is not None
    dense = mask.dense.detach().resolve_neg()
    dense, kind = (dense.view(torch.uint8), 1) if dense.dtype == torch.bool else (dense.to(torch.float32), 2)
    return by_head(dense.expand(*dense.shape[:-2], request.queries, request.keys), request), kind
