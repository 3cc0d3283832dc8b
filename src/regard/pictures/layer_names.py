"""Short names of layers: the differing parts and the common pattern."""

from __future__ import annotations

from collections.abc import Sequence

from .fonts import CUT

MAX_LENGTH = 28


def split_common(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the differing part of each name and the common pattern; the pattern is empty for a single name.

    >>> split_common(["model.layers.0.self_attn", "model.layers.1.self_attn"])
    (['0', '1'], 'model.layers.*.self_attn')
    >>> split_common(["encoder.0", "decoder.0.cross"])
    (['encoder.0', 'decoder.0.cross'], '')
    """
    parts = [name.split(".") for name in names]
    least = min(len(part) for part in parts) - 1  # keep at least one part of every name
    head = next((i for i in range(least) if len({part[i] for part in parts}) > 1), max(least, 0))
    rest = least - head
    tail = next((i for i in range(rest) if len({part[-1 - i] for part in parts}) > 1), max(rest, 0))
    if len(names) == 1 or not head + tail:
        return [shorten(name) for name in names], ""
    inner = [".".join(part[head : len(part) - tail]) for part in parts]
    return [shorten(name) for name in inner], ".".join([*parts[0][:head], "*", *parts[0][len(parts[0]) - tail :]])


def shorten(name: str, limit: int = MAX_LENGTH) -> str:
    """Replace parts of a long name by an ellipsis, the longest first, but neither numbers nor the last part.

    If that is not enough, replace the middle of the name.

    >>> shorten("encoder.layer.11.attention.self"), shorten("a" * 20 + "b" * 20, 9)
    ('encoder.layer.11.….self', 'aaaa…bbbb')
    """
    parts = name.split(".")
    while len(".".join(parts)) > limit:
        words = [i for i, part in enumerate(parts[:-1]) if not part.isdecimal() and part != CUT]
        if not words:
            break
        longest = max(words, key=lambda i: len(parts[i]))
        parts[longest : longest + 1] = [CUT]
        parts = [part for i, part in enumerate(parts) if part != CUT or parts[i - 1 : i] != [CUT]]
    name, keep = ".".join(parts), (limit - 1) // 2
    return name if len(name) <= limit else name[:keep] + CUT + name[-keep:]
