"""The function mode of a watch. It reports attention calls and in-place writes."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..attention.step_report import report_step
from .flex_recorder import flex_attention, flex_call
from .recorders import RECORDERS
from .write_rules import WriteOption, write_rule

if TYPE_CHECKING:
    from .watch import Watch

is_compiling = torch.compiler.is_compiling
SOFTMAX = (
    torch.nn.functional.softmax,
    torch.softmax,
    Tensor.softmax,
    torch.special.softmax,
    torch._softmax,
    torch.ops.aten.softmax.int,  # this and the next: in programs of torch.export
    torch.ops.aten._softmax.default,
    torch.ops.aten._safe_softmax.default,
)


class CompiledCode:
    """The events in compiled code. It is not intercepted, but repeats assignments of attributes that were traced."""

    attended = False
    """Whether it computed attention while a watch was active, other than FlexAttention."""
    flex = False
    """Whether it computed FlexAttention. PyTorch's function does so itself, also if the caller does not compile it."""


compiled_code = CompiledCode()
_attention_functions: dict[Any, None] = dict.fromkeys((torch.ops.regard.dot.default, torch.ops.regard.packed.default))
"""The functions that a watch records, and those to which `regard.attend` is compiled."""
_flex_functions: dict[Any, None] = {}
"""The function to which FlexAttention is compiled, once it is imported: importing it would import the compiler."""


class _Mode(TorchFunctionMode):
    """Calls every function unchanged, and reports attention functions and in-place functions to the observer."""

    def __init__(self, observer: Watch) -> None:
        super().__init__()
        self._observer = weakref.ref(observer)
        _ignored.difference_update(RECORDERS)  # a recorder may have been added since
        _attention_functions.update(dict.fromkeys(RECORDERS))
        flex = sys.modules.get("torch._higher_order_ops.flex_attention")
        if flex is not None:
            _flex_functions[flex.flex_attention] = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling():  # checked first: torch.compile traces the following code
            if func in _attention_functions:
                compiled_code.attended = True  # the compiled code repeats this assignment in every call
            elif func in _flex_functions:
                compiled_code.flex = True
            return func(*args, **(kwargs or {}))
        if func in _ignored:  # nearly all calls: nothing else may happen for these
            if not kwargs:
                return func(*args)
            if "out" not in kwargs:
                return func(*args, **kwargs)
        observer, kwargs = self._observer(), kwargs or {}
        option = _options.get(func)
        if observer is None or (option is not None and not option.used(args, kwargs)):
            return func(*args, **kwargs)
        if func is report_step:
            func(*args)
            observer.record_step(*args)
            return None
        recorder = RECORDERS.get(func)
        if recorder is not None:
            result = func(*args, **kwargs)
            observer.record_call(recorder, args, kwargs, sys._getframe(1))
            return result
        if func in SOFTMAX:
            observer.notice_softmax(args, kwargs, sys._getframe(1))
            return func(*args, **kwargs)
        written = _before_call(observer, func, args, kwargs, sys._getframe(1))
        result = func(*args, **kwargs)
        if written:
            observer.after_write()
        return result


def _before_call(observer: Watch, func: Any, args: Any, kwargs: dict[str, Any], frame: FrameType) -> bool:
    """Report tensors that a function is about to overwrite. Return whether `after_write` must follow."""
    try:
        if func is Tensor.dim:
            flex = flex_call(frame)
            if flex is not None:
                observer.flex_noticed = True
                observer.record_call(flex_attention, (), flex, frame)
            return False
        targets = [kwargs["out"]] if "out" in kwargs else []
        rule = write_rule(func)
        if rule is not None:
            targets += rule(args, kwargs)
            if isinstance(rule, WriteOption) and len(_options) < MAX_IGNORED:
                _options[func] = rule
        if targets or rule is not None:
            return observer.before_write(
                x for target in targets for x in (target if isinstance(target, list | tuple) else [target])
            )
        if len(_ignored) < MAX_IGNORED:
            _ignored.add(func)
    except Exception as error:
        observer.add_missed(error)
    return False


MAX_IGNORED = 4096


_ignored: set[Any] = set()
"""Functions called so far that neither attend nor write in place: nearly all calls of a forward pass."""


_options: dict[Any, WriteOption] = {}
"""Functions called so far that write in place only if an argument asks for it."""


class _FastPaths:
    """Keeps PyTorch's fast paths enabled while a watch is active.

    nn.MultiheadAttention and nn.Transformer* take a slower path, which rounds differently, if
    `torch.overrides.has_torch_function` returns True. An active function mode causes that. While a watch is active, the
    function is replaced by one that ignores our modes. They then intercept the fast path itself.
    """

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0

    def open(self) -> None:
        with self.lock:
            if self.count == 0:
                self.original = torch.overrides.has_torch_function
                torch.overrides.has_torch_function = self.has_torch_function  # type: ignore[assignment]  # a bound method in place of a function
            self.count += 1

    def close(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                torch.overrides.has_torch_function = self.original

    def has_torch_function(self, relevant_args: Iterable[Any]) -> bool:
        if torch.compiler.is_compiling():
            return self.original(relevant_args)
        depth = torch._C._len_torch_function_stack()
        if not depth or any(not isinstance(torch._C._get_function_stack_at(i), _Mode) for i in range(depth)):
            return self.original(relevant_args)
        modes = [torch._C._pop_torch_function_stack() for _ in range(depth)]
        try:
            return self.original(relevant_args)
        finally:
            for mode in reversed(modes):
                torch._C._push_on_torch_function_stack(mode)


_fast_paths = _FastPaths()
