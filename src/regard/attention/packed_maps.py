"""Maps of packed sequences: one per sequence, or one map of the padded batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

import torch

from .attention_map import AttentionMap
from .packed_layout import Layout, padded
from .request import Request


class PackedMaps(Sequence[AttentionMap]):
    """The B lazy, exact maps that `attend_packed` returns with the context.

        maps[b]          map of sequence b                      (H, Tq, Tk), without padding
        maps.padded()    map of the padded batch                (B, H, longest Tq, longest Tk), 0 in padding

    >>> import regard
    >>> x = torch.randn(9, 4, 8)
    >>> _, maps = regard.attend_packed(x, x, x, [3, 2, 4], return_maps=True)
    >>> len(maps), maps[1].shape, maps.padded().shape, maps.padded(5, 6).shape
    (3, (4, 2, 2), (3, 4, 4, 4), (3, 4, 5, 6))
    >>> bool(maps.padded()[1, :, 2:].any())                           # the second sequence has two tokens
    False
    """

    def __init__(self, request: Request, layout: Layout) -> None:
        self._whole = AttentionMap(request.kept()).guarded()  # q (H, Nq, D), k (H, Nk, D)
        self._layout = layout

    def __len__(self) -> int:
        return self._layout.sequences

    @overload
    def __getitem__(self, index: int) -> AttentionMap: ...
    @overload
    def __getitem__(self, index: slice) -> list[AttentionMap]: ...
    def __getitem__(self, index: int | slice) -> AttentionMap | list[AttentionMap]:
        return self._maps[index]

    def __repr__(self) -> str:
        return f"PackedMaps({list(self._maps)!r})"

    @cached_property
    def _maps(self) -> list[AttentionMap]:
        return list(self._each())

    def _each(self) -> Iterator[AttentionMap]:
        kept, layout, query, key = self._whole.request, self._layout, 0, 0
        offsets = [0] * len(self) if layout.offsets is None else layout.offsets.tolist()
        for queries, keys, offset in zip(layout.queries.tolist(), layout.keys.tolist(), offsets, strict=True):
            rows, cols = slice(query, query + queries), slice(key, key + keys)
            mask = replace(kept.mask, offset=offset) if kept.mask.positional else kept.mask
            yield AttentionMap(replace(kept, q=kept.q[:, rows], k=kept.k[:, cols], mask=mask)).guarded()
            query, key = rows.stop, cols.stop

    @torch.no_grad()
    def padded(self, queries: int | None = None, keys: int | None = None) -> AttentionMap:
        """Return one map (B, H, queries, keys), by default as long as the longest sequence. Padding has weight 0.

        Raises:
            ValueError: if a size is smaller than the longest sequence.
        """
        layout = self._layout
        queries, keys = layout.most_queries if queries is None else queries, layout.most_keys if keys is None else keys
        for name, size, most in (("queries", queries, layout.most_queries), ("keys", keys, layout.most_keys)):
            if size < most:
                raise ValueError(f"packed maps: {name} ({size}) must be at least the longest sequence ({most}).")
        batch = padded(self._whole.request, layout._replace(most_queries=queries, most_keys=keys))
        if len(self) * queries == self._whole.request.queries:
            return AttentionMap(batch).guarded()
        row = torch.arange(queries, device=batch.device).unsqueeze(-1)  # (queries, 1)
        valid = row < layout.queries.to(batch.device).reshape(-1, 1, 1, 1)  # (B, 1, queries, 1)
        return AttentionMap(replace(batch, mask=replace(batch.mask, dense=valid))).guarded()
