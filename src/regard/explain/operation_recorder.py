"""Recording a computation: every operation that PyTorch was given, in the calls, stages and modules that it came from.

    frames      step 2 > context > similarity > matmul      what was under way: who calls whom
    operations  aten.bmm(a, b) → c                          every one, none can hide from the dispatcher

`attend` is served by the `reference` backend meanwhile, whose stages are operations: a fused kernel would be one. For
the same reason `nn.GRU` and `nn.LSTM` run by their equations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..attention import attend, reference
from ..attention.attend import serve
from ..attention.packed import attend_packed, attend_packed_impl
from ..attention.request import Request
from ..core.trace import listen
from .dimension_names import RECURRENT, Letters
from .recording import ALLOCATIONS, MOVES, Frame, Operation, Recording, Ref, Shown
from .recurrent_steps import CELLS, recurrence

_one = threading.Lock()
"""One explanation at a time: stages have one listener."""


class Recorder:
    """Records what runs in its block.

    >>> from torch.nn import functional as F
    >>> x, layer = torch.randn(3, 4), nn.Linear(4, 2)
    >>> with Recorder(layer, {"x": (x, "N W")}).recording() as recorder:
    ...     y = recorder.output(layer(x))
    >>> bool((recorder.found.replay()[0] == y).all()), recorder.found.orphans()
    (True, [])
    """

    def __init__(
        self, model: nn.Module | None, inputs: Mapping[str, tuple[Tensor, str]], sizes: Mapping[str, int] | None = None
    ) -> None:
        self.found = Recording()
        self.frames: list[Frame] = []
        self._model = model
        self._numbers: dict[int, int] = {}
        self._memory: dict[int, int] = {}  # storage → the operation that wrote to it last
        self._letters = Letters(sizes or {})
        self._stack: list[Frame] = []
        self._names: dict[nn.Module, list[str]] = {}
        for name, module in () if model is None else model.named_modules(remove_duplicate=False):
            self._names.setdefault(module, []).append(name)
        self._thread = 0
        for name, (tensor, letters) in inputs.items():
            self.input(name, tensor, letters)
        if model is not None:
            named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            for name, tensor in named:
                number = self._number(tensor)
                self.found.weights.setdefault(number, name)
                self._letters.weight(tensor, name, model)

    def input(self, name: str, tensor: Tensor, letters: str) -> Tensor:
        """Something given from outside, with a letter for each dimension."""
        self.found.inputs[self._number(tensor)] = name
        self._letters.give(tensor, letters)
        return tensor

    def output(self, tensor: Tensor) -> Tensor:
        """A tensor that is a result."""
        number = self._number(tensor)
        self.found.outputs.append(number)
        writer = self._memory.get(_storage(tensor))
        if writer is not None:
            self.found.writers[number] = writer
        return tensor

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        with _one, ExitStack() as stack:
            self._thread = threading.get_ident()
            before = listen(self._stage)
            stack.callback(listen, before)
            for module in self._names:
                if module is not self._model:
                    stack.callback(module.register_forward_pre_hook(self._enter).remove)
                    stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(_Operations(self))
            stack.enter_context(_Calls(self))
            yield self

    @contextmanager
    def frame(self, kind: str, name: str, of: Any = None, time: int | None = None) -> Iterator[Frame]:
        """A part of the computation under a name."""
        self._open(kind, name, of, time)
        try:
            yield self._stack[-1]
        finally:
            self._stack.pop()

    def step(self, number: int) -> AbstractContextManager[Frame]:
        """One step in time, from 1."""
        return self.frame("step", "step", time=number)

    def _open(self, kind: str, name: str, of: Any = None, time: int | None = None) -> Frame:
        parent = self._stack[-1] if self._stack else None
        time = parent.time if time is None and parent else time
        made = Frame(len(self.frames), parent, kind, name, of, time=time)
        self.frames.append(made)
        self._stack.append(made)
        return made

    def _enter(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() == self._thread:
            self._open("module", self._name(module), module)

    def _name(self, module: nn.Module) -> str:
        """Embeddings of source and target may be one: in a step it is the target's, the later name."""
        within = bool(self._stack) and self._stack[-1].time is not None
        return self._names[module][-1 if within else 0]

    def _leave(self, module: nn.Module, _: Any, given: Any) -> None:
        if threading.get_ident() == self._thread:
            self._gave(self._stack.pop(), given)

    def _gave(self, frame: Frame, given: Any) -> None:
        """What a part gave: the first of its tensors."""
        frame.made = tuple(map(self._shown, _tensors(given)[:1]))

    def _stage(self, name: str, of: Any) -> AbstractContextManager[Any]:
        if threading.get_ident() != self._thread:
            return nullcontext()
        if isinstance(of, nn.Module):
            return self.frame("module", self._name(of) if of in self._names else name, of)
        return self.frame("stage", name, of)

    def attention(self, args: Any, kwargs: Any) -> Any:
        """What `attend` gives, by the backend that has stages."""
        options = {name: value for name, value in kwargs.items() if name not in ("return_map", "backend")}
        with self.frame("attention", "attention") as frame:
            found = serve(Request.of(*args, **options), reference, bool(kwargs.get("return_map")))
            self._gave(frame, found)
        return found

    def recurrence(self, name: str, args: Any) -> tuple[Tensor, ...]:
        """What a recurrent layer gives, by its equations."""
        around = ""
        if self._model is not None and self._stack and self._stack[-1].kind == "module":
            around = type(self._model.get_submodule(self._stack[-1].name.rpartition(".")[0])).__name__
        letters = RECURRENT.get(around)

        def give(tensor: Tensor, what: str) -> None:
            if letters is not None:
                self._letters.give(tensor, " ".join(letters.get(one, one) for one in what.split()))

        return recurrence(name, args, give)

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """A call of PyTorch by our code."""
        name = name_of(function)
        base = name == "pow" and not isinstance(args[0], Tensor)  # aˣ, not xᵃ
        with self.frame("call", "rpow" if base else name, function) as frame:
            frame.given = tuple(map(self._shown, _tensors((args, kwargs))))
            frame.numbers = tuple(x for x in tree_leaves(args) if isinstance(x, int | float))
            found = function(*args, **kwargs)
            if name == "pad_packed_sequence":
                self._letters.unpacked(args[0], found[0], bool(args[2]))
            frame.made = tuple(map(self._shown, _tensors(found)))
        return found

    def operation(self, function: Any, args: Any, kwargs: Any) -> Any:
        """One operation of the dispatcher: what it reads, writes and gives."""
        found, number = self.found, len(self.found.operations)
        read = _tensors((args, kwargs))
        numbers = [self._number(x) for x in read]
        needs = {found.makers[n] for n in numbers if n in found.makers}
        needs |= {self._memory[_storage(x)] for x in read if _storage(x) in self._memory}
        sources = {n for n, x in zip(numbers, read, strict=True) if n not in found.makers}
        result = function(*args, **kwargs)
        if _plain(function) in ALLOCATIONS:  # otherwise a chart would show numbers left in memory
            result.zero_()
        given = list(tree_leaves(result))
        made = tuple(self._number(x) if isinstance(x, Tensor) else None for x in given)
        old = {_storage(x) for x in read}
        for tensor, name in zip(given, made, strict=True):
            if name is not None and name not in numbers:
                found.makers[name] = number
                if _storage(tensor) not in old:
                    self._memory[_storage(tensor)] = number
        written = _written(function, args, kwargs)
        for tensor in written:
            self._memory[_storage(tensor)] = number
        self._letters.follow(function, args, kwargs, given)
        frame = self._stack[-1] if self._stack else None
        if frame is None or frame.kind != "call":  # not by a function of PyTorch that can be seen
            with self.frame("call", _plain(function).strip("_"), function) as frame:
                frame.given, frame.made = tuple(map(self._shown, read)), tuple(map(self._shown, _tensors(given)))
        if function is torch.ops.aten.lift_fresh.default and frame.name in ("tensor", "as_tensor"):
            found.constants |= sources
        inputs, options = tree_map(self._refer, (args, kwargs))
        links = frozenset(needs), frozenset(sources), _plain(function) in MOVES
        found.operations.append(Operation(number, function, inputs, options, made, frame, *links))
        return result

    def letters_of(self, number: int) -> tuple[str, ...]:
        return self._letters.of(self.found.tensors[number])

    def look(self, number: int, letters: tuple[str, ...], tensor: Tensor) -> Shown:
        """A tensor as it is now."""
        return Shown(
            number, letters, tuple(tensor.shape), glimpse(tensor, IMAGE if tensor.ndim == 4 else SHOWN), frozenset()
        )

    def _refer(self, x: Any) -> Any:
        return Ref(self._number(x)) if isinstance(x, Tensor) else x

    def _number(self, tensor: Tensor) -> int:
        known = self._numbers.get(id(tensor))
        if known is None:
            known = self._numbers[id(tensor)] = len(self.found.tensors)
            self.found.tensors.append(tensor)
        return known

    def _shown(self, tensor: Tensor) -> Shown:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # looking is no operation
            number, place = self._number(tensor), _storage(tensor)
            needs = {self.found.makers.get(number), self._memory.get(place)} - {None}
            shape, values = tuple(tensor.shape), glimpse(tensor)
        return Shown(number, self._letters.of(tensor), shape, values, frozenset(n for n in needs if n is not None))


class _Operations(TorchDispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.operation(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Sees the outermost calls: while one is under way the mode is off."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is attend:
            with self:
                return self.recorder.attention(args, kwargs or {})
        if func is attend_packed:  # its own operations are recorded, those of a padded batch
            with self:
                return attend_packed_impl(*args, **(kwargs or {}))
        if (name := name_of(func)) in CELLS:
            with self:
                return self.recorder.recurrence(name, args)
        return self.recorder.call(func, args, kwargs or {})


SHOWN = 20
"""Rows and columns of a matrix that are shown."""
IMAGE = 32
"""Those of an image that is given."""
LEADING = 4
"""Matrices of a larger tensor that are shown, such as heads."""


def glimpse(tensor: Tensor, shown: int = SHOWN) -> Tensor:
    """The first cells of a tensor: (matrices, rows, columns), float64.

    >>> tuple(glimpse(torch.zeros(1, 8, 30, 5)).shape)
    (4, 20, 5)
    """
    rows, columns = ([1, 1, *tensor.shape])[-2:]
    flat = tensor.detach().reshape(-1, rows, columns) if tensor.numel() else tensor.new_zeros(0, rows, columns)
    return flat[:LEADING, :shown, :shown].to(torch.float64, copy=True)


def name_of(function: Any) -> str:
    """The plain name of a function of PyTorch.

    >>> name_of(Tensor.__matmul__), name_of(Tensor.add_), name_of(torch.nn.functional.linear)
    ('matmul', 'add', 'linear')
    """
    name = getattr(function, "__name__", None) or str(function)
    if name in ("__get__", "__set__"):
        name = (resolve_name(function) or name).split(".")[-2 if name == "__get__" else -1]
    name = name.strip("_")
    return {"rmatmul": "matmul", "radd": "add", "rmul": "mul", "rsub": "rsub", "truediv": "div"}.get(name, name)


def _plain(function: Any) -> str:
    """aten.transpose.int → transpose; what writes in place keeps its underscore."""
    return str(function.overloadpacket.__name__)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _written(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation writes to."""
    found = []
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            found += _tensors(given)
    return found
