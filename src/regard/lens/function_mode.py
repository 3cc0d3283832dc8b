"""The function mode of a watch: it reports calls that attend or write in place."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .flex_recorder import flex_attention, flex_call
from .recorders import RECORDERS

if TYPE_CHECKING:
    from .watch import Watch


class _Mode(TorchFunctionMode):
    """Passes every function on; reports to the observer those that attend and those that write in place."""

    def __init__(self, observer: Watch) -> None:
        super().__init__()
        self._observer = weakref.ref(observer)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # asked first: torch.compile traces what follows
            return func(*args, **kwargs)
        passed = func in _indifferent and "out" not in kwargs and func not in RECORDERS
        observer = None if passed else self._observer()
        if observer is None:
            return func(*args, **kwargs)
        recorder = _notice(observer, func, args, kwargs, sys._getframe(1))
        result = func(*args, **kwargs)
        if recorder is not None:
            observer.saw(recorder, args, kwargs, sys._getframe(1))
        return result


def _notice(observer: Watch, func: Any, args: Any, kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Before a function runs: the recorder of one that attends; what it is about to overwrite is copied."""
    try:
        if func is Tensor.dim:
            flex = flex_call(frame)
            if flex is not None:
                observer.saw(flex_attention, (), flex, frame)
            return None
        recorder = RECORDERS.get(func)
        if recorder is not None:
            return recorder
        if _writes(func) or "out" in kwargs:
            targets = [kwargs.get("out"), *args[:1]]
            observer.writes(x for target in targets for x in (target if isinstance(target, list | tuple) else [target]))
        elif len(_indifferent) < MOST_REMEMBERED:
            _indifferent.add(func)
    except Exception as error:
        observer.miss(error)
    return None


MOST_REMEMBERED = 4096


_indifferent: set[Any] = set()
"""Functions met so far that neither attend nor write: nearly all calls of a forward pass."""


@lru_cache(maxsize=8192)
def _writes(func: Any) -> bool:
    """Whether a function writes into its first argument, by PyTorch's custom of naming."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in ("__setitem__", "__set__") or (name.startswith("__i") and name not in ("__index__", "__int__"))
    return name.split(".")[0].endswith("_")


class _FastPaths:
    """Keeps PyTorch's fast paths open while somebody watches.

    nn.MultiheadAttention and nn.Transformer* take a slower path, with other roundings, where
    `torch.overrides.has_torch_function` says that somebody wants to see their calls. While a block lasts that function
    is replaced by one that says so of everybody but us; our mode then sees the call of the fast path itself.
    """

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0

    def open(self) -> None:
        with self.lock:
            if self.count == 0:
                self.original = torch.overrides.has_torch_function
                torch.overrides.has_torch_function = self.answer  # type: ignore[assignment]
            self.count += 1

    def close(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                torch.overrides.has_torch_function = self.original

    def answer(self, given: Iterable[Any]) -> bool:
        if torch.compiler.is_compiling():
            return self.original(given)
        depth = torch._C._len_torch_function_stack()
        if not depth or any(not isinstance(torch._C._get_function_stack_at(i), _Mode) for i in range(depth)):
            return self.original(given)
        modes = [torch._C._pop_torch_function_stack() for _ in range(depth)]
        try:
            return self.original(given)
        finally:
            for mode in reversed(modes):
                torch._C._push_on_torch_function_stack(mode)


_fast_paths = _FastPaths()
