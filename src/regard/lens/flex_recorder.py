"""Recorder of FlexAttention.

`flex_attention` is a Python function and does not call a single PyTorch function with all its arguments. The first
function that it calls is `query.dim()`. The function mode intercepts that call and reads the arguments from the frame.
Code compiled by torch.compile does not make this call and is not recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..attention.masks import Mask
from ..attention.request import Request
from .recorded_call import Record, StoredRequest, with_batch_and_heads
from .recorders import plain_tensor

_ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa")
_first_instruction: dict[Any, int] = {}
"""Bytecode offset of the first call of `query.dim()`, by code object."""


def flex_call(frame: FrameType) -> dict[str, Any] | None:
    """Return the arguments of `flex_attention` if `frame` is at its first call of `query.dim()`, else None."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is None or frame.f_code is not flex.flex_attention.__code__:
        return None
    if frame.f_lasti != _first_instruction.setdefault(frame.f_code, frame.f_lasti):
        return None
    arguments = frame.f_locals
    return {name: arguments[name] for name in _ARGUMENTS}


@dataclass(frozen=True)
class Masked:
    """A request whose mask is a function of positions. The mask is materialized when the request is needed."""

    open: Request
    allowed: Callable[..., Tensor]
    batch: int
    heads: int
    captured: tuple[Tensor, ...] = ()
    """Tensors that `allowed` reads in addition to the positions."""

    def tensors(self) -> Sequence[Tensor]:
        return [self.open.q, self.open.k, *self.captured]

    def copy_storage(self, storage: int) -> StoredRequest:
        return StoredRequest(self.request()).copy_storage(storage)

    def request(self) -> Request:
        from torch.nn.attention.flex_attention import create_mask

        r = self.open
        dense = create_mask(self.allowed, self.batch, self.heads, r.queries, r.keys, device=str(r.device))
        return replace(r, mask=Mask(dense))


class _CapturedTensors(TorchFunctionMode):
    """Collects the tensors that a function reads but did not compute itself."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self.captured: dict[int, Tensor] = {}
        self._computed = {id(x): x for x in arguments}  # held, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and id(x) not in self._computed:
                self.captured[id(x)] = x
        result = func(*args, **(kwargs or {}))
        self._computed.update((id(x), x) for x in tree_leaves(result) if isinstance(x, Tensor))
        return result


def captured_tensors(mask_mod: Callable[..., Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Return the tensors that a mask_mod reads from its closure, a module or globals, by calling it on one position."""
    position = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)]
    with torch.no_grad(), _CapturedTensors(position) as mode:
        mask_mod(*position)
    return tuple(mode.captured.values())


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
) -> Record:
    """Record `torch.nn.attention.flex_attention.flex_attention`. A score_mod is code, which a map cannot store."""
    if score_mod is not None and score_mod.__name__ != "_identity":
        raise ValueError(
            f"the score_mod {score_mod.__name__!r} of FlexAttention changes scores by code; use softcap, window or an "
            "additive mask of regard.attend instead"
        )
    query, key, value = plain_tensor("query", query), plain_tensor("key", key), plain_tensor("value", value)
    request = with_batch_and_heads(Request.of(query, key, value, scale=scale, enable_gqa=enable_gqa).kept())
    if block_mask is None or block_mask.mask_mod.__name__ == "noop_mask":
        return Record(StoredRequest(request))
    batch, heads = block_mask.shape[:2]
    captured = captured_tensors(block_mask.mask_mod, request.device)
    return Record(Masked(request, block_mask.mask_mod, batch, heads, captured))
