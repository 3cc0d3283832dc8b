"""Kernels for decoding: the best next tokens of each hypothesis, and reordering of cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import engine
from .plan import address


def log_softmax_top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest log-probabilities of each row (N, V) and their ids, (N, count); `count` is clamped to V."""
    count = min(count, logits.shape[1])
    if engine.module is None or type(logits) is not Tensor or not logits.is_cpu or logits.stride(1) != 1:
        best = logits.max(-1, keepdim=True) if count == 1 else logits.topk(count)  # on ties, `max` returns the first
        return best.values - logits.logsumexp(-1, keepdim=True), best.indices
    values, ids = logits.new_empty(len(logits), count), torch.empty(len(logits), count, dtype=torch.long)
    outputs = address(values), address(ids)
    threads = torch.get_num_threads()
    engine.module.log_softmax_top_k(address(logits), *logits.shape, logits.stride(0), count, *outputs, threads)
    return values, ids


def reorder_rows(tables: Sequence[Tensor], rows: Tensor, *, each: int, length: int) -> bool:
    """Replace row i of every table by row rows[i] in place, and return whether that was possible.

    tables[0] (R, capacity), int32, stores for each position the row that wrote it. Two rows with the same writer have
    the same contents, and nothing is copied. The other tables (R, capacity, …) store the values; `length` positions are
    in use.

    It is possible if the `each` rows of a sentence come from rows of the same sentence, or from rows past the first
    len(rows): then no row is overwritten before it is read. Without the kernels it is never possible.
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
    module.reorder_rows(described, address(rows), count, each, length, torch.get_num_threads())
    return True
