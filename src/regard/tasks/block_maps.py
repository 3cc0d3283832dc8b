"""The attention maps of the blocks of a model for one input, with their names and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..attention import AttentionMap


def block_maps(
    maps: Sequence[AttentionMap], query: Sequence[str] | None = None, key: Sequence[str] | None = None
) -> list[AttentionMap]:
    """Return the maps (H, Tq, Tk) of the first entry of a batch, named block 0, block 1, …, with their tokens.

    >>> import regard, torch
    >>> x = torch.randn(1, 2, 3, 4)
    >>> _, m = regard.attend(x, x, x, return_map=True)
    >>> [(one.layer, one.shape) for one in block_maps([m], "abc", "abc")]
    [('block 0', (2, 3, 3))]
    """
    result = []
    for number, m in enumerate(maps):
        entry = m.at(0).tokens(query=query, key=key)
        entry.layer = f"block {number}"
        result.append(entry)
    return result
