"""Short names for layers: what tells them apart, and what they share."""

from __future__ import annotations

from collections.abc import Sequence

from .fonts import CUT

MOST = 28


def shared(names: Sequence[str]) -> tuple[list[str], str]:
    """What is different in each name, and the pattern of all; nothing is shared by one name alone.

    >>> shared(["model.layers.0.self_attn", "model.layers.1.self_attn"])
    (['0', '1'], 'model.layers.*.self_attn')
    >>> shared(["encoder.0", "decoder.0.cross"])
    (['encoder.0', 'decoder.0.cross'], '')
    """
    parts = [name.split(".") for name in names]
    least = min(len(part) for part in parts) - 1  # something stays of every name
    head = next((i for i in range(least) if len({part[i] for part in parts}) > 1), max(least, 0))
    rest = least - head
    tail = next((i for i in range(rest) if len({part[-1 - i] for part in parts}) > 1), max(rest, 0))
    if len(names) == 1 or not head + tail:
        return [shorten(name) for name in names], ""
    inner = [".".join(part[head : len(part) - tail]) for part in parts]
    return [shorten(name) for name in inner], ".".join([*parts[0][:head], "*", *parts[0][len(parts[0]) - tail :]])


def shorten(name: str, most: int = MOST) -> str:
    """A long name without its middle.

    >>> shorten("a" * 20 + "b" * 20, 9)
    'aaaa…bbbb'
    """
    keep = (most - 1) // 2
    return name if len(name) <= most else name[:keep] + CUT + name[-keep:]
