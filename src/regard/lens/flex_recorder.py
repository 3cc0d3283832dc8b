"""FlexAttention, seen: a Python function that calls no one function of PyTorch's which would tell all of it.

Before it computes anything it asks its query for its number of dimensions; that call is seen, and the rest stands in
its frame. Code that torch.compile made of it asks nothing, and is not seen.
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
from .recorded_call import Found, Plain, four
from .recorders import plain

_ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa")
_first: dict[Any, int] = {}


def flex_call(frame: FrameType) -> dict[str, Any] | None:
    """The arguments of `flex_attention`, where it stands in this frame at the first such question."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is None or frame.f_code is not flex.flex_attention.__code__:
        return None
    if frame.f_lasti != _first.setdefault(frame.f_code, frame.f_lasti):
        return None
    known = frame.f_locals
    return {name: known[name] for name in _ARGUMENTS}


@dataclass(frozen=True)
class Masked:
    """A request whose mask is a function of positions, written out when somebody looks."""

    open: Request
    allowed: Callable[..., Tensor]
    batch: int
    heads: int
    captured: tuple[Tensor, ...] = ()
    """The tensors that `allowed` reads besides the positions."""

    def tensors(self) -> Sequence[Tensor]:
        return [self.open.q, self.open.k, *self.captured]

    def own(self, storage: int) -> Plain:
        return Plain(self.request()).own(storage)

    def request(self) -> Request:
        from torch.nn.attention.flex_attention import create_mask

        r = self.open
        dense = create_mask(self.allowed, self.batch, self.heads, r.queries, r.keys, device=str(r.device))
        return replace(r, mask=Mask(dense))


class _CapturedTensors(TorchFunctionMode):
    """Collects the tensors that a function reads and did not compute itself, wherever it gets them from."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self.captured: dict[int, Tensor] = {}
        self._computed = {id(x): x for x in arguments}  # kept, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and id(x) not in self._computed:
                self.captured[id(x)] = x
        result = func(*args, **(kwargs or {}))
        self._computed.update((id(x), x) for x in tree_leaves(result) if isinstance(x, Tensor))
        return result


def captured_tensors(mask_mod: Callable[..., Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """The tensors that a mask_mod reads: in its closure, in a module, or global. Found by a trial on one position."""
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
) -> Found:
    """As PyTorch's; a score_mod is code that no map can hold."""
    if score_mod is not None and score_mod.__name__ != "_identity":
        raise ValueError(
            f"the score_mod {score_mod.__name__!r} of FlexAttention changes scores by code; say it as softcap, window "
            "or an added mask of regard.attend"
        )
    query, key, value = plain("query", query), plain("key", key), plain("value", value)
    request = four(Request.of(query, key, value, scale=scale, enable_gqa=enable_gqa).kept())
    if block_mask is None or block_mask.mask_mod.__name__ == "noop_mask":
        return Found(Plain(request))
    batch, heads = block_mask.shape[:2]
    captured = captured_tensors(block_mask.mask_mod, request.device)
    return Found(Masked(request, block_mask.mask_mod, batch, heads, captured))
