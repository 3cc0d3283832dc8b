"""The part of a call that a watch stores: selected heads, and tensors in another dtype or on another device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..attention.request import Request

Keep: TypeAlias = torch.dtype | torch.device | str | Sequence[torch.dtype | torch.device | str] | None


class KeepOptions:
    """Parsed `keep` argument: converts and copies the tensors of a request."""

    def __init__(self, keep: Keep) -> None:
        self.dtype: torch.dtype | None = None
        self.device: torch.device | None = None
        self.copy = False
        for one in [] if keep is None else keep if isinstance(keep, list | tuple) else [keep]:
            if isinstance(one, torch.dtype) and one.is_floating_point:
                self.dtype = one
            elif one == "copy":
                self.copy = True
            elif isinstance(one, str | torch.device):
                self.device = torch.device(one)
            else:
                raise ValueError(f"watch: keep ({one!r}) must be a float dtype, a device, 'copy', or several of these.")
        self.enabled = self.dtype is not None or self.device is not None or self.copy
        self._moved: dict[Any, tuple[Tensor, Tensor]] = {}

    def __call__(self, request: Request) -> Request:
        if not self.enabled:
            return request
        q, k, v, dense, *parameters = request.tensors
        qk = [self._to(x, self.dtype) for x in (q, k)]
        return request.with_tensors([*qk, v, self._shared(dense), *(self._to(x, self.dtype) for x in parameters)])

    def _to(self, x: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
        return None if x is None else x.to(self.device or x.device, dtype or x.dtype, copy=self.copy)

    def _shared(self, x: Tensor | None) -> Tensor | None:
        """Convert a mask. A mask shared by several layers is converted once."""
        if x is None:
            return None
        identity = (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype)
        if identity not in self._moved:
            moved = self._to(x, None)
            assert moved is not None
            self._moved[identity] = (x, moved)  # the original is held, so that its address is not reused
        return self._moved[identity][1]


def select_heads(request: Request, heads: tuple[int, ...] | None) -> Request:
    if heads is None:
        return request
    count = request.lead[-1]
    if any(not -count <= head < count for head in heads):
        raise ValueError(f"heads {heads} must lie in 0…{count - 1}")
    selected = torch.tensor([head % count for head in heads])
    return request.select((*(slice(None) for _ in request.lead[:-1]), selected))


def parse_heads(heads: int | Sequence[int] | None) -> tuple[int, ...] | None:
    selected = None if heads is None else (heads,) if isinstance(heads, int) else tuple(int(head) for head in heads)
    if selected == ():
        raise ValueError("watch: heads must not be empty; None selects all.")
    return selected
