"""Validation of requests. Checks raise ValueError: `attend: <name> (<value>) must <rule>; got <what>. <remedy>`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.tensors import _fits, autocast_dtype, broadcasts, dtype, readable, shape, shape_of, wide
from .masks import Mask, causal
from .similarity import Additive, Bilinear, Similarity, SimilarityArgument
from .tensor_types import causal_bias_offset, is_causal_bias, require_supported

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PLAIN = (Tensor, torch.nn.Parameter)
"""Tensor types whose memory may be read. A subclass may store its data elsewhere, or have none."""
WEIGHTINGS = ("softmax", "hard", "uniform")


def tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check types, dtypes, devices, and the dimensions that must match."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise ValueError(f"attend: {name} must be a tensor; got {type(x).__name__}. Try torch.as_tensor.")
        require_supported("attend", name, x)
        if x.ndim < 2:
            raise ValueError(
                f"attend: {name} ({shape(x)}) must have at least the dimensions (length, width); got {x.ndim}. "
                "For one vector use x[None]."
            )
        if x.dtype not in DTYPES:
            raise ValueError(
                f"attend: {name} ({shape(x)}) must be float64, float32, bfloat16 or float16; got {dtype(x)}. "
                "Token ids are embedded first."
            )
    for name, x in (("key", key), ("value", value)):
        cast = autocast_dtype(query.device) is not None and torch.float64 not in (x.dtype, query.dtype)
        if x.dtype != query.dtype and not cast:
            raise ValueError(
                f"attend: {name} must have the dtype of query ({dtype(query)}); got {dtype(x)}. "
                f"Try {name}.to(query.dtype)."
            )
        if x.device != query.device:
            raise ValueError(
                f"attend: {name} must be on the device of query ({query.device}); got {x.device}. "
                f"Try {name}.to(query.device)."
            )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"attend: value ({shape(value)}) must have one row for each key ({shape(key)}): "
            f"{key.shape[-2]} rows; got {value.shape[-2]}."
        )


def lead(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, tuple[int, ...]]:
    """Return the number of query heads per key head, and the leading dimensions of the result."""
    leads: list[tuple[int, ...]] = [query.shape[:-2], key.shape[:-2], value.shape[:-2]]
    groups = 1
    if enable_gqa and query.ndim >= 3 and key.ndim >= 3 and value.ndim >= 3:
        heads, shared, valued = (x[-1] for x in leads)
        if shared == 0 or heads % shared:
            raise ValueError(
                f"attend: the heads of query ({heads}) must be a multiple of those of key ({shared}) "
                f"under enable_gqa; got query {shape(query)}, key {shape(key)}."
            )
        if shared != valued:
            raise ValueError(
                f"attend: value must have as many heads as key ({shared}) under enable_gqa; got {valued} "
                f"in {shape(value)}."
            )
        groups = heads // shared
        leads = [leads[0], (*leads[1][:-1], heads), (*leads[2][:-1], heads)]
    if leads[0] == leads[1] == leads[2]:
        return groups, leads[0]
    try:
        return groups, torch.broadcast_shapes(*leads)
    except RuntimeError:
        raise ValueError(
            f"attend: the leading dimensions of query ({shape(query)}), key ({shape(key)}) and value ({shape(value)}) "
            f"must broadcast.{_gqa_remedy(query, key, enable_gqa)}"
        ) from None


def _gqa_remedy(query: Tensor, key: Tensor, enable_gqa: bool) -> str:
    if enable_gqa or query.ndim < 3 or key.ndim < 3 or not key.shape[-3] or query.shape[-3] % key.shape[-3]:
        return ""
    return f" For {query.shape[-3]} query heads that share {key.shape[-3]} key heads pass enable_gqa=True."


def widths(query: Tensor, key: Tensor, similarity: SimilarityArgument) -> None:
    """Check widths before a callable is tried. Bilinear and callable similarities may have different widths."""
    if (isinstance(similarity, (str, Additive))) and query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"attend: key ({shape(key)}) must be as wide as query ({query.shape[-1]}); got {key.shape[-1]}. "
            "regard.Bilinear(W) compares vectors of different widths."
        )


def options(dropout_p: float, softcap: float | None, weighting: str, window: Any) -> None:
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"attend: dropout_p ({dropout_p}) must lie in [0, 1]: it is the share of weights dropped.")
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise ValueError(f"attend: softcap ({softcap}) must be a positive number. None leaves scores uncapped.")
    if weighting not in WEIGHTINGS:
        raise ValueError(f"attend: weighting ({weighting!r}) must be one of {', '.join(WEIGHTINGS)}.")
    if window is None:
        return
    sides = tuple(window) if isinstance(window, (tuple, list)) else None
    if sides is None or len(sides) != 2 or any(not (s is None or (isinstance(s, int) and s >= 0)) for s in sides):
        raise ValueError(
            f"attend: window ({window!r}) must be (left, right), each a number of keys ≥ 0 or None for an open side."
        )


def parameters(similarity: Similarity, query: Tensor, key: Tensor, leading: Sequence[int]) -> None:
    """Check the shapes of a similarity's parameters."""
    if isinstance(similarity, Additive):
        _parameter("Additive(w): w", similarity.weight, (query.shape[-1],), query, leading)
    elif isinstance(similarity, Bilinear):
        _parameter("Bilinear(W): W", similarity.weight, (query.shape[-1], key.shape[-1]), query, leading)


def _parameter(name: str, x: Tensor, tail: tuple[int, ...], query: Tensor, leading: Sequence[int]) -> None:
    rule = " × ".join(map(str, tail))
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError(f"attend: {name} must be a float tensor of shape {rule}; got {type(x).__name__}.")
    require_supported("attend", name, x)
    lead_shape = x.shape[: x.ndim - len(tail)]
    if x.ndim < len(tail) or tuple(x.shape[len(lead_shape) :]) != tail or not broadcasts(lead_shape, leading):
        raise ValueError(
            f"attend: {name} ({shape(x)}) must be {rule}, the width of query and key, or one for each of the leading "
            f"dimensions {tuple(leading)}."
        )
    if x.device != query.device:
        raise ValueError(f"attend: {name} must be on the device of query ({query.device}); got {x.device}.")


def attn_mask(mask: Tensor | None, query: Tensor, key: Tensor, leading: Sequence[int]) -> Tensor | None:
    """Check a dense mask and return it with at least two dimensions."""
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        require_supported("attend", "attn_mask", mask)
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = dtype(mask) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"attend: attn_mask must be boolean (True = may attend) or float (added to the scores); got {got}. "
            "For 1 = attend, 0 = padding use regard.masks.from_ones(mask)."
        )
    if mask.device != query.device:
        raise ValueError(f"attend: attn_mask must be on the device of query ({query.device}); got {mask.device}.")
    target = (*leading, query.shape[-2], key.shape[-2])
    if not broadcasts(mask.shape, target):
        hint = ""
        if mask.ndim == 2 and len(leading) > 1 and tuple(mask.shape) == (leading[0], key.shape[-2]):
            hint = " A mask over keys, (B, Tk), is shaped by regard.masks.over_keys(mask)."
        raise ValueError(f"attend: attn_mask ({shape(mask)}) must broadcast to {shape_of(target)}.{hint}")
    return mask if mask.ndim >= 2 else mask.reshape(1, -1)


def causal_bias(
    mask: Any, is_causal: bool, window: Any, offset: Any, query: Tensor, key: Tensor
) -> tuple[Tensor | None, bool, Any]:
    """Return attn_mask, is_causal and causal_offset, with a `CausalBias` replaced by what it represents."""
    if not is_causal_bias(mask):
        return mask, is_causal, offset
    queries, keys = query.shape[-2], key.shape[-2]
    diagonal = causal_bias_offset(mask, queries, keys)
    if not is_causal and window is None:
        return None, True, diagonal
    return causal(queries, keys, offset=diagonal).to(query.device), is_causal, offset


def per_entry(name: str, number: Any, leading: Sequence[int], device: torch.device) -> int | Tensor:
    """Return an integer, or a tensor of one integer per entry, in a shape that broadcasts with the scores."""
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    x = number if isinstance(number, Tensor) else torch.as_tensor(number)
    require_supported("attend", name, x)
    if x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(f"attend: {name} ({shape(x)}) must be integers; got {dtype(x)}.")
    if x.ndim > len(leading) or any(not _fits(n, size) for n, size in zip(x.shape, leading[: x.ndim], strict=True)):
        raise ValueError(
            f"attend: {name} ({shape(x)}) must be one number, or one per batch entry, leading dimensions "
            f"{tuple(leading)}; got {shape(x)}."
        )
    return x.to(device).reshape(*x.shape, *(1,) * (len(leading) + 2 - x.ndim))


def lengths(number: Any, key: Tensor, leading: Sequence[int]) -> int | Tensor:
    valid = per_entry("lengths", number, leading, key.device)
    if isinstance(valid, Tensor) and (not readable(valid) or valid.numel() == 0):
        return valid
    low, high = (valid, valid) if isinstance(valid, int) else (int(valid.min()), int(valid.max()))
    if low < 0 or high > key.shape[-2]:
        raise ValueError(
            f"attend: lengths ({low if low < 0 else high}) must lie in 0…{key.shape[-2]}, the number of keys in "
            f"key ({shape(key)})."
        )
    return valid


def parts(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mask: Mask,
    similarity: Similarity,
    softcap: float | None,
    groups: int,
    leading: Sequence[int],
) -> None:
    """Check the fields of a request that was not created by `Request.of`, such as one read from a file."""
    tensors(q, k, k if v is None else v)
    widths(q, k, "dot")
    if groups < 1 or (groups > 1 and k.ndim < 3):
        raise ValueError(f"attend: groups ({groups}) must be 1, or more where key ({shape(k)}) has heads.")
    for name, x, share in (("query", q, 1), ("key", k, groups), ("value", v, groups)):
        if x is None:
            continue
        shared_lead = x.shape[:-2] if share == 1 else (*x.shape[:-3], x.shape[-3] * share)
        if not broadcasts(shared_lead, leading):
            raise ValueError(
                f"attend: {name} ({shape_of(shared_lead)}) must broadcast to the leading {tuple(leading)}."
            )
    window = None if mask.left is None and mask.right is None else (mask.left, mask.right)
    options(0.0, softcap, "softmax", window)
    parameters(similarity, q, k, leading)
    attn_mask(mask.dense, q, k, leading)
    _stored_number("causal_offset", mask.offset, (*leading, q.shape[-2], 1), q.device)
    _stored_number("lengths", mask.lengths, (*leading, 1, 1), q.device)


def numbers(similarity: Similarity, mask: Mask, k: Tensor) -> None:
    """Check the values of numbers in a request, which a file may contain in any form."""
    scale = getattr(similarity, "scale", 1.0)
    if not math.isfinite(scale):
        raise ValueError(f"attend: scale ({scale}) must be a finite number.")
    if isinstance(mask.lengths, Tensor):
        lengths(mask.lengths.flatten(), k, (mask.lengths.numel(),))
    elif mask.lengths is not None:
        lengths(mask.lengths, k, ())


def _stored_number(name: str, number: int | Tensor | None, target: Sequence[int], device: torch.device) -> None:
    if not isinstance(number, Tensor):
        return
    if number.dtype.is_floating_point or number.dtype == torch.bool or number.device != device:
        raise ValueError(f"attend: {name} must be integers on {device}; got {dtype(number)} on {number.device}.")
    if number.ndim != len(target) or not broadcasts(number.shape, target):
        raise ValueError(f"attend: {name} ({shape(number)}) must broadcast to {shape_of(target)}.")


def finite(*xs: Tensor) -> bool:
    """Return whether all elements are finite, from one sum per tensor.

    Also return False if reading would synchronize a device or break a trace, and if a sum overflows. Callers then use
    the code path that is correct for all numbers.
    """
    if not readable(*xs) or not all(x.is_cpu and type(x) in PLAIN for x in xs):
        return False
    with torch.no_grad():
        # a sum in bfloat16 has the range of float32, and takes a sixth of the time of a sum that converts
        dtypes = (None if x.dtype == torch.bfloat16 else wide(x.dtype) for x in xs)
        return all(math.isfinite(x.sum(dtype=dtype).item()) for x, dtype in zip(xs, dtypes, strict=True))


def nonfinite_rows(x: Tensor) -> Tensor:
    """Return which rows of x (..., T, D) contain NaN or ∞: (..., T, 1)."""
    return ~x.isfinite().all(-1, keepdim=True)
