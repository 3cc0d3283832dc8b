"""Helpers of layers for packed sequences: the packed operator, and the position of each token in its sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..attention import attend, attend_packed
from ..attention.packed import token_positions
from ..attention.packed_layout import Lengths

Packing = Lengths | tuple[Lengths, Lengths]
"""Lengths of the sequences; in cross-attention, those of the queries and those of the keys."""

BOUND = ("scale", "weighting", "softcap", "window", "backend")
"""Options of `attend` that a layer may bind and that `attend_packed` also has."""


def packed_operator(where: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `attend_packed` with the options that are bound to a layer's `attend`.

    >>> packed_operator("multihead", partial(attend, window=(3, 0))).keywords
    {'window': (3, 0)}
    """
    if function is attend:
        return attend_packed
    if isinstance(function, partial) and function.func is attend and not function.args:
        other = [name for name in function.keywords if name not in BOUND]
        if not other:
            return partial(attend_packed, **function.keywords)
        raise ValueError(
            f"{where}: attend may have {', '.join(BOUND)} bound if sequences are packed; got {', '.join(other)}. "
            "Pass a padded batch with lengths."
        )
    name = getattr(function, "__name__", type(function).__name__)
    raise ValueError(
        f"{where}: attend ({name}) must be regard.attend, with or without options, if sequences are packed. Pass "
        "a padded batch with lengths."
    )


def apply_position(position: Callable[[Tensor, Any], Tensor] | None, x: Tensor, lengths: Lengths) -> Tensor:
    """Apply `position` to x (N, H, D). Each token is passed as a batch entry of length 1."""
    if position is None:
        return x
    positions = token_positions(torch.as_tensor(lengths, dtype=torch.int64, device=x.device), len(x))  # (N,)
    return position(x.unsqueeze(2), positions).squeeze(2)


def length_pair(where: str, packed: Packing, is_self_attention: bool = False) -> tuple[Lengths, Lengths]:
    """Return the lengths of queries and keys: the same in self-attention, a pair in cross-attention."""
    if is_self_attention:
        return cast(Lengths, packed), cast(Lengths, packed)
    if not isinstance(packed, tuple) or len(packed) != 2:
        raise ValueError(
            f"{where}: packed must be (lengths, lengths of the keys) in cross-attention; got {type(packed).__name__}."
        )
    return cast(tuple[Lengths, Lengths], packed)


def require_none(where: str, **options: Any) -> None:
    """Raise ValueError for options of padded batches and of decoding steps that are not None."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"{where}: {name} must be None if sequences are packed; got {type(value).__name__}. Pass a padded "
                "batch with lengths."
            )
