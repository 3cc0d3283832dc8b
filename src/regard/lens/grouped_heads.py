"""Restore (B, H, Tq, Tk) from the grouped heads that transformers passes to scaled_dot_product_attention.

Query heads that share key heads are passed in one of three forms:

    enable_gqa=True          q (B, H, Tq, D), k (B, H / groups, Tk, D)       unchanged
    keys repeated            q (B, H, Tq, D), k (B, H, Tk, D)                copies of each key head
    heads packed as queries  q (B, H / groups, groups, D)                    for a step of one query

A map has one row for each query of each head. The steps of a generation can be joined only if all have the same form.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

from torch import Tensor

from ..attention.request import Request
from .generation_steps import same_bits
from .recorded_call import Record, StoredRequest


def restore_grouped_heads(record: Record, frame: FrameType | None) -> Record:
    """Return the call with its heads in the first form, if transformers passed another form."""
    sdpa = sys.modules.get("transformers.integrations.sdpa_attention")
    if sdpa is None or frame is None or not isinstance(record.source, StoredRequest):
        return record
    if frame.f_code is not sdpa.sdpa_attention_forward.__code__:
        return record
    arguments, request = frame.f_locals, record.source.value
    groups = getattr(arguments.get("module"), "num_key_value_groups", 1)
    if not isinstance(groups, int) or groups <= 1 or request.groups > 1 or len(request.lead) != 2:
        return record
    if arguments.get("q_length") == 1 and request.queries == groups:
        return replace(record, source=StoredRequest(_unpacked(request, groups)))
    return replace(record, source=StoredRequest(_unrepeated(request, groups)))


def _unpacked(request: Request, groups: int) -> Request:
    batch, heads = request.lead

    def one_query(x: Tensor) -> Tensor:
        return x.flatten(1, 2).unsqueeze(2)  # (B, H / groups, groups, ·) → (B, H, 1, ·)

    dense = request.mask.dense
    if dense is not None and dense.shape[-2] != 1:
        if dense.ndim != 4 or dense.shape[1] != heads:
            raise ValueError(f"heads are packed as queries, but the mask ({tuple(dense.shape)}) is not")
        dense = one_query(dense)
    mask = replace(request.mask, dense=dense)
    return replace(request, q=one_query(request.q), mask=mask, groups=groups, lead=(batch, heads * groups))


def _unrepeated(request: Request, groups: int) -> Request:
    k = request.k
    if k.shape[1] != request.lead[1] or k.shape[1] % groups:
        return request
    grouped = k.unflatten(1, (-1, groups))  # (B, H / groups, groups, Tk, D)
    if not all(same_bits(grouped[:, :, 0], grouped[:, :, i]) for i in range(1, groups)):
        return request
    return replace(request, k=grouped[:, :, 0], groups=groups)
