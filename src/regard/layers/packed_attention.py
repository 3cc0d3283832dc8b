"""What layers need for packed sequences: the operator with its options, and each token's place in its own sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..attention import attend, attend_packed
from ..attention.packed import token_positions

Lengths = Tensor | Sequence[int]
"""(B,): the tokens of each sequence."""
Packing = Lengths | tuple[Lengths, Lengths]
"""Lengths; in cross-attention those of queries and those of keys."""

BOUND = ("scale", "weighting", "softcap", "window", "backend")
"""Options of `attend` that a layer may have bound, and that are the same for packed sequences."""


def operator(where: str, given: Callable[..., Any]) -> Callable[..., Any]:
    """`attend_packed` with the options that are bound to a layer's `attend`.

    >>> operator("multihead", partial(attend, window=(3, 0))).keywords
    {'window': (3, 0)}
    """
    if given is attend:
        return attend_packed
    if isinstance(given, partial) and given.func is attend and not given.args:
        other = [name for name in given.keywords if name not in BOUND]
        if not other:
            return partial(attend_packed, **given.keywords)
        raise ValueError(
            f"{where}: attend may have {', '.join(BOUND)} bound where sequences are packed; got {', '.join(other)}. "
            "Pass a padded batch with lengths."
        )
    name = getattr(given, "__name__", type(given).__name__)
    raise ValueError(
        f"{where}: attend ({name}) must be regard.attend, perhaps with options bound, where sequences are packed. Pass "
        "a padded batch with lengths."
    )


def tell(position: Callable[[Tensor, Any], Tensor] | None, x: Tensor, lengths: Lengths) -> Tensor:
    """x (N, H, D), told where each token stands in its own sequence: every token is a batch entry, 1 long."""
    if position is None:
        return x
    at = token_positions(torch.as_tensor(lengths, dtype=torch.int64, device=x.device), len(x))  # (N,)
    return position(x.unsqueeze(2), at).squeeze(2)


def pair_of(where: str, packed: Packing, itself: bool = False) -> tuple[Lengths, Lengths]:
    """The lengths of queries and of keys: one and the same in self-attention, a pair in cross-attention."""
    if itself:
        return cast(Lengths, packed), cast(Lengths, packed)
    if not isinstance(packed, tuple) or len(packed) != 2:
        raise ValueError(
            f"{where}: packed must be (lengths, lengths of the keys) in cross-attention; got {type(packed).__name__}."
        )
    return cast(tuple[Lengths, Lengths], packed)


def refuse(where: str, **given: Any) -> None:
    """Options that speak of a padded batch or of a single step of decoding."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{where}: {name} must be None where sequences are packed; got {type(value).__name__}. Pass a padded "
                "batch with lengths."
            )
