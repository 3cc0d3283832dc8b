"""Kernels of decoding: the best next tokens of each hypothesis, and reordering of cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import engine
from .plan import address

BLOCK = 64
"""Ids that `top_k` looks at together."""
ROWS = 32
"""Hypotheses whose probabilities are added up together."""


def log_softmax_top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest log-probabilities of each row (N, V) and their ids, (N, count) each; all where there are no more.

    The logits may be overwritten.
    """
    count = min(count, logits.shape[1])
    if engine.module is None or type(logits) is not Tensor or not logits.is_cpu or logits.stride(1) != 1:
        return _by_torch(logits, count)
    values, ids = logits.new_empty(len(logits), count), torch.empty(len(logits), count, dtype=torch.long)
    outputs = address(values), address(ids)
    engine.module.best(address(logits), *logits.shape, logits.stride(0), count, *outputs, torch.get_num_threads())
    return values, ids


def _by_torch(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, ids = top_k(logits, count)
    highest = values.amax(-1, keepdim=True)  # (N, 1)
    rest = torch.empty_like(highest)
    # in place, since fresh memory costs more than the sums, and some rows at a time, which stay in the cache
    for part, most, total in zip(logits.split(ROWS), highest.split(ROWS), rest.split(ROWS), strict=True):
        torch.sum(part.sub_(most).exp_(), -1, keepdim=True, out=total)
    return values - highest - rest.log_(), ids


def top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest `count` of each row and where they are, (N, V) → (N, count) each; all where there are no more.

    The best of a row lie in the blocks with the best maxima: only these are looked through, at a third of the time of
    a `topk` over all.

    >>> values, indices = top_k(torch.arange(5000.0)[None], 2)
    >>> indices.sort().values.tolist()
    [[4998, 4999]]
    """
    rows, size = scores.shape
    count = min(count, size)
    blocks = size // BLOCK
    if count == 1:
        highest = scores.max(-1, keepdim=True)  # the first, where several are
        return highest.values, highest.indices
    if blocks < 4 * count:
        found = scores.topk(count, sorted=False)
        return found.values, found.indices
    parts = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (N, blocks, 64)
    best = parts.amax(-1).topk(count, sorted=False).indices.sort(-1).values  # (N, count)
    chosen = parts.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).flatten(1)  # (N, count · 64)
    tail = scores[:, blocks * BLOCK :]  # (N, size − blocks · 64)
    values, place = torch.cat((chosen, tail), 1).topk(count, sorted=False)  # (N, count)
    block = torch.cat((best, best.new_full((rows, 1), blocks)), 1)  # (N, count + 1): the tail is one more
    which = place.div(BLOCK, rounding_mode="floor")
    return values, block.gather(1, which) * BLOCK + place - which * BLOCK


def reorder_rows(tables: Sequence[Tensor], rows: Tensor, *, each: int, length: int) -> bool:
    """Replace row i of every table by row rows[i] in place, and return whether that was possible.

    tables[0] (R, room), int32, holds for each position the row that wrote it; where two rows name the same writer, they
    hold the same, and nothing is copied. The other tables (R, room, …) hold the values; `length` positions are in use.

    It is possible if the rows of a sentence, `each` of them, come from its own, or from one that is not among the first
    len(rows) any more: then no row is overwritten before it is read. Without the kernels it never is.
    """
    count, module = len(rows), engine.module
    if module is None or not rows.is_cpu or not 0 < count <= len(tables[0]):
        return False
    if not all(type(table) is Tensor for table in tables):
        return False
    own = rows.div(each, rounding_mode="floor") == torch.arange(count).div_(each, rounding_mode="floor")
    if not (own | (rows >= count)).all():
        return False
    described = [(address(table), table.stride(0), table.stride(1), table.itemsize) for table in tables]
    rows = rows.contiguous()
    module.move(described, address(rows), count, each, length, torch.get_num_threads())
    return True
