"""Bounds of model settings in one table. They are checked before anything is allocated, and all errors are reported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from ..core.messages import nearest

SIZES: Mapping[str, tuple[int, int]] = {
    "width": (1, 2**16),
    "hidden": (1, 2**18),
    "encoder_hidden": (1, 2**16),
    "heads": (1, 2**10),
    "kv_heads": (1, 2**10),
    "layers": (1, 2**10),
    "encoder_layers": (1, 2**10),
    "decoder_layers": (1, 2**10),
    "blocks": (1, 2**10),
    "positions": (1, 2**24),
    "segments": (1, 2**16),
    "vocabulary": (0, 2**22),
    "source_vocabulary": (0, 2**22),
    "target_vocabulary": (0, 2**22),
    "classes": (0, 2**20),
    "channels": (1, 2**12),
    "patch": (1, 2**12),
    "stem": (0, 2**12),
    "kernel": (1, 2**12),
    "window": (1, 2**24),
}
"""Minimum and maximum of each size. A vocabulary of 0 is taken from the data."""
SHARES = ("dropout", "attention_dropout", "head_dropout")
"""Settings from 0 to below 1."""
PARAMETERS = 20_000_000_000
"""Maximum number of parameters of a model: more do not fit into the memory of any supported machine."""


def out_of_bounds(where: str, config: Any) -> list[str]:
    """Return an error for each size and share of a config that is out of bounds.

    >>> from regard.models import TransformerConfig
    >>> out_of_bounds("transformer", TransformerConfig(width=0, heads=9999))
    ['transformer: width (0) must be at least 1.', 'transformer: heads (9999) must be at most 1,024.']
    """
    problems = []
    for name in (item.name for item in fields(config)):
        value = getattr(config, name)
        if value is None:  # the model chooses
            continue
        if name in SIZES:
            low, high = SIZES[name]
            if value < low:
                problems.append(f"{where}: {name} ({value}) must be at least {low}.")
            elif value > high:
                problems.append(f"{where}: {name} ({value}) must be at most {high:,}.")
        elif name in SHARES and not 0 <= value < 1:
            problems.append(f"{where}: {name} ({value}) must lie in [0, 1): it is the share that is dropped.")
    return problems


def unknown_name(where: str, config: Any, choices: Mapping[str, Collection[str]]) -> list[str]:
    """Return an error for each setting that is not one of its choices."""
    return [
        f"{where}: {name} ({value!r}) must be one of {', '.join(known)}."
        for name, known in choices.items()
        if (value := getattr(config, name)) not in known
    ]


def uneven_heads(where: str, width: int, heads: int) -> list[str]:
    """Return an error if the width is not divisible by the number of heads."""
    if heads < 1 or width < 1 or width % heads == 0:
        return []
    return [f"{where}: width ({width}) must be divisible by heads ({heads}); try {nearest(width, heads)}."]


def odd_rotary_width(where: str, width: int, heads: int) -> list[str]:
    """Return an error if the width per head is odd: rotary positions rotate pairs of numbers."""
    each = width // heads
    if each % 2 == 0:
        return []
    return [f"{where}: width / heads ({each}) must be even for rotary positions: they rotate pairs of numbers."]


def too_large(where: str, parameters: int) -> list[str]:
    """Return an error if a model has too many parameters. `parameters` may omit small ones."""
    if parameters <= PARAMETERS:
        return []
    return [f"{where}: sizes must give a model of at most {PARAMETERS:,} parameters; got about {parameters:,}."]
