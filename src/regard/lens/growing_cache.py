"""A fast path that records one more step of a generation whose cache appends keys in place.

The general path validates the call, finds its module on the stack and compares all keys. Here the keys are in the
memory of the previous step, which the watch protects from being overwritten, so they need not be compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.masks import OPEN
from .generation_steps import Step, Steps
from .recorded_call import Call

Options = tuple[tuple[Any, ...], dict[str, Any]]
TENSORS = 3
"""Number of tensors among the arguments of an attention function: query, key and value."""


class GrowingCache:
    """The latest step of a generation, and the properties that the next step must share with it."""

    def __init__(self, call: Call, module: nn.Module, recorder: Any, q: Tensor, k: Tensor, options: Options) -> None:
        self._call, self._module, self._recorder = weakref.ref(call), weakref.ref(module), recorder
        self._q, self._options = (q.shape, q.dtype), options
        self._k = (k.stride(), k.dtype, k.shape[:-2], k.shape[-1])

    @classmethod
    def of(
        cls, call: Call, module: nn.Module, recorder: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> GrowingCache | None:
        """Return the state after a call that was just recorded, or None if the next step needs the general path."""
        source, options = call.source, _options(args, kwargs)
        if not isinstance(source, Steps) or options is None or call.sink is not None or source.dropped:
            return None
        q, k, last, step = args[0], args[1], source.last, source.steps[-1]
        # equal keys: heads were neither repeated by the model nor selected
        same = last.k.data_ptr() == k.data_ptr() and last.k.stride() == k.stride() and last.k.shape == k.shape
        whole = same and q.shape[-2] == 1 and step.first == 0 and step.keys == k.shape[-2]
        return cls(call, module, recorder, q, k, options) if whole and step.mask is OPEN else None

    def extend(
        self,
        latest: Mapping[str, weakref.ref[Call]],
        recorder: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        frame: FrameType | None,
    ) -> bool:
        """Record a call if it is the next step, and return whether it is. `latest`: the latest call of each module."""
        call, q, k = self._call(), args[0], args[1]
        if call is None or latest.get(call.module) != self._call or recorder is not self._recorder:
            return False
        if (q.shape, q.dtype) != self._q:
            return False
        source = call.source
        sizes = k.shape
        if not isinstance(source, Steps) or sizes[-2] != source.last.k.shape[-2] + 1:
            return False
        if (k.stride(), k.dtype, sizes[:-2], sizes[-1]) != self._k or source.last.k.data_ptr() != k.data_ptr():
            return False
        if _options(args, kwargs) != self._options or not call.intact or _nearest_module(frame) is not self._module():
            return False
        step = Step(q.detach().clone(), OPEN, 0, sizes[-2])
        last = replace(source.last, k=k.detach())
        call.set_source(Steps((*source.steps, step), (), last, source.storage))
        return True


def _options(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Options | None:
    """Return the arguments other than tensors, without the position of the query; None if one is not a plain value."""
    if len(args) < TENSORS or torch._C._is_any_autocast_enabled() or any(type(x) is not Tensor for x in args[:TENSORS]):
        return None
    others = {name: value for name, value in kwargs.items() if name != "causal_offset"}  # the mask is open
    plain = all(value is None or isinstance(value, int | float | str) for value in (*args[TENSORS:], *others.values()))
    return (tuple(args[TENSORS:]), others) if plain else None


def _nearest_module(frame: FrameType | None) -> nn.Module | None:
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, nn.Module):
            return first
        frame = frame.f_back
    return None
