"""Grouped heads as transformers hands them to scaled_dot_product_attention, brought back to (B, H, Tq, Tk).

Query heads that share key heads reach that function in one of three forms:

    enable_gqa=True          q (B, H, Tq, D), k (B, H / groups, Tk, D)       as they are
    keys repeated            q (B, H, Tq, D), k (B, H, Tk, D)                copies of each key head
    heads packed as queries  q (B, H / groups, groups, D)                    for a step of one query

A map has one row for each query of each head, and the steps of a generation can be joined only if all have one form.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

from torch import Tensor

from ..attention.request import Request
from .generation_steps import same_bits
from .recorded_call import Found, Plain


def regrouped(found: Found, frame: FrameType | None) -> Found:
    """A call with its heads as the first form has them, where transformers made another one of it."""
    sdpa = sys.modules.get("transformers.integrations.sdpa_attention")
    if sdpa is None or frame is None or not isinstance(found.source, Plain):
        return found
    if frame.f_code is not sdpa.sdpa_attention_forward.__code__:
        return found
    known, request = frame.f_locals, found.source.found
    groups = getattr(known.get("module"), "num_key_value_groups", 1)
    if not isinstance(groups, int) or groups <= 1 or request.groups > 1 or len(request.lead) != 2:
        return found
    if known.get("q_length") == 1 and request.queries == groups:
        return replace(found, source=Plain(_unpacked(request, groups)))
    return replace(found, source=Plain(_unrepeated(request, groups)))


def _unpacked(request: Request, groups: int) -> Request:
    batch, heads = request.lead

    def one_query(x: Tensor) -> Tensor:
        return x.flatten(1, 2).unsqueeze(2)  # (B, H / groups, groups, ·) → (B, H, 1, ·)

    dense = request.mask.dense
    if dense is not None and dense.shape[-2] != 1:
        if dense.ndim != 4 or dense.shape[1] != heads:
            raise ValueError(f"heads are packed as queries, and the mask ({tuple(dense.shape)}) is not")
        dense = one_query(dense)
    mask = replace(request.mask, dense=dense)
    return replace(request, q=one_query(request.q), mask=mask, groups=groups, lead=(batch, heads * groups))


def _unrepeated(request: Request, groups: int) -> Request:
    k = request.k
    if k.shape[1] != request.lead[1] or k.shape[1] % groups:
        return request
    each = k.unflatten(1, (-1, groups))  # (B, H / groups, groups, Tk, D)
    if not all(same_bits(each[:, :, 0], each[:, :, i]) for i in range(1, groups)):
        return request
    return replace(request, k=each[:, :, 0], groups=groups)
