"""Record every PyTorch operation of a computation, with the calls, stages and modules it belongs to.

    frames      step 2 > context > similarity > matmul      the call stack
    operations  aten.bmm(a, b) → c                          every operation of the dispatcher

While recording, `attend` uses the `reference` backend, whose stages are separate operations; a fused kernel would be a
single one. For the same reason `nn.GRU` and `nn.LSTM` run by their equations.
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
from ..core.trace import set_listener
from .dimension_names import RECURRENT, Letters
from .recording import ALLOCATIONS, MOVES, Frame, Operation, Recording, Ref, TensorView
from .recurrent_steps import CELLS, recurrence

_lock = threading.Lock()
"""Only one recording at a time, because stages have a single listener."""


class Recorder:
    """Records the operations that run inside its `with` block.

    >>> from torch.nn import functional as F
    >>> x, layer = torch.randn(3, 4), nn.Linear(4, 2)
    >>> with Recorder(layer, {"x": (x, "N W")}).recording() as recorder:
    ...     y = recorder.output(layer(x))
    >>> bool((recorder.result.replay()[0] == y).all()), recorder.result.orphans()
    (True, [])
    """

    def __init__(
        self, model: nn.Module | None, inputs: Mapping[str, tuple[Tensor, str]], sizes: Mapping[str, int] | None = None
    ) -> None:
        self.result = Recording()
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
                self.result.weights.setdefault(number, name)
                self._letters.weight(tensor, name, model)

    def input(self, name: str, tensor: Tensor, letters: str) -> Tensor:
        """Register an input with a letter for each dimension."""
        self.result.inputs[self._number(tensor)] = name
        self._letters.assign(tensor, letters)
        return tensor

    def output(self, tensor: Tensor) -> Tensor:
        """Register an output."""
        number = self._number(tensor)
        self.result.outputs.append(number)
        writer = self._memory.get(_storage(tensor))
        if writer is not None:
            self.result.writers[number] = writer
        return tensor

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Record all operations inside the block."""
        with _lock, ExitStack() as stack:
            self._thread = threading.get_ident()
            before = set_listener(self._on_stage)
            stack.callback(set_listener, before)
            for module in self._names:
                if module is not self._model:
                    stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                    stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(_Operations(self))
            stack.enter_context(_Calls(self))
            yield self

    @contextmanager
    def frame(self, kind: str, name: str, of: Any = None, time: int | None = None) -> Iterator[Frame]:
        """Open a named frame around the block."""
        self._open(kind, name, of, time)
        try:
            yield self._stack[-1]
        finally:
            self._stack.pop()

    def step(self, number: int) -> AbstractContextManager[Frame]:
        """Open a frame for a time step, counted from 1."""
        return self.frame("step", "step", time=number)

    def _open(self, kind: str, name: str, of: Any = None, time: int | None = None) -> Frame:
        parent = self._stack[-1] if self._stack else None
        time = parent.time if time is None and parent else time
        frame = Frame(len(self.frames), parent, kind, name, of, time=time)
        self.frames.append(frame)
        self._stack.append(frame)
        return frame

    def _enter(self, module: nn.Module, _: Any, options: dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            self._open("module", self._name(module), module).causal = bool(options.get("is_causal"))

    def _name(self, module: nn.Module) -> str:
        """Return the name of a module. In a decoder step, a shared embedding has its last name, that of the target."""
        within = bool(self._stack) and self._stack[-1].time is not None
        return self._names[module][-1 if within else 0]

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        if threading.get_ident() == self._thread:
            self._set_output(self._stack.pop(), output)

    def _set_output(self, frame: Frame, output: Any) -> None:
        """Store the first tensor of an output."""
        frame.outputs = tuple(map(self._view, _tensors(output)[:1]))

    def _on_stage(self, name: str, of: Any) -> AbstractContextManager[Any]:
        if threading.get_ident() != self._thread:
            return nullcontext()
        if isinstance(of, nn.Module):
            return self.frame("module", self._name(of) if of in self._names else name, of)
        return self.frame("stage", name, of)

    def attention(self, args: Any, kwargs: Any) -> Any:
        """Compute `attend` with the reference backend, which has stages."""
        options = {name: value for name, value in kwargs.items() if name not in ("return_map", "backend")}
        with self.frame("attention", "attention") as frame:
            result = serve(Request.of(*args, **options), reference, bool(kwargs.get("return_map")))
            self._set_output(frame, result)
        return result

    def recurrence(self, name: str, args: Any) -> tuple[Tensor, ...]:
        """Compute a recurrent layer by its equations."""
        around = ""
        if self._model is not None and self._stack and self._stack[-1].kind == "module":
            around = type(self._model.get_submodule(self._stack[-1].name.rpartition(".")[0])).__name__
        letters = RECURRENT.get(around)

        def assign(tensor: Tensor, dimensions: str) -> None:
            if letters is not None:
                self._letters.assign(tensor, " ".join(letters.get(one, one) for one in dimensions.split()))

        return recurrence(name, args, assign)

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Record a call of a PyTorch function."""
        name = name_of(function)
        base = name == "pow" and not isinstance(args[0], Tensor)  # aˣ, not xᵃ
        with self.frame("call", "rpow" if base else name, function) as frame:
            frame.inputs = tuple(map(self._view, _tensors((args, kwargs))))
            frame.numbers = tuple(x for x in tree_leaves(args) if isinstance(x, int | float))
            result = function(*args, **kwargs)
            if name == "pad_packed_sequence":
                self._letters.unpacked(args[0], result[0], bool(args[2]))
            frame.outputs = tuple(map(self._view, _tensors(result)))
        return result

    def operation(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run and record one operation of the dispatcher."""
        recording, number = self.result, len(self.result.operations)
        read = _tensors((args, kwargs))
        numbers = [self._number(x) for x in read]
        needs = {recording.makers[n] for n in numbers if n in recording.makers}
        needs |= {self._memory[_storage(x)] for x in read if _storage(x) in self._memory}
        sources = {n for n, x in zip(numbers, read, strict=True) if n not in recording.makers}
        result = function(*args, **kwargs)
        if _operation_name(function) in ALLOCATIONS:  # otherwise a chart would show uninitialized memory
            result.zero_()
        leaves = list(tree_leaves(result))
        outputs = tuple(self._number(x) if isinstance(x, Tensor) else None for x in leaves)
        old = {_storage(x) for x in read}
        for tensor, output in zip(leaves, outputs, strict=True):
            if output is not None and output not in numbers:
                recording.makers[output] = number
                if _storage(tensor) not in old:
                    self._memory[_storage(tensor)] = number
        written = _written(function, args, kwargs)
        for tensor in written:
            self._memory[_storage(tensor)] = number
        self._letters.follow(function, args, kwargs, leaves)
        frame = self._stack[-1] if self._stack else None
        if frame is None or frame.kind != "call":  # not called through an overridable PyTorch function
            with self.frame("call", _operation_name(function).strip("_"), function) as frame:
                frame.inputs, frame.outputs = tuple(map(self._view, read)), tuple(map(self._view, _tensors(leaves)))
        if function is torch.ops.aten.lift_fresh.default and frame.name in ("tensor", "as_tensor"):
            recording.constants |= sources
        inputs, options = tree_map(self._reference, (args, kwargs))
        links = frozenset(needs), frozenset(sources), _operation_name(function) in MOVES
        recording.operations.append(Operation(number, function, inputs, options, outputs, frame, *links))
        return result

    def letters_of(self, number: int) -> tuple[str, ...]:
        """Return the letters of a tensor, by its number."""
        return self._letters.of(self.result.tensors[number])

    def view(self, number: int) -> TensorView:
        """Return the current values of a tensor, by its number."""
        tensor = self.result.tensors[number]
        cells = first_cells(tensor, MAX_IMAGE_SIDE if tensor.ndim == 4 else MAX_SIDE)
        return TensorView(number, self.letters_of(number), tuple(tensor.shape), cells, frozenset())

    def _reference(self, x: Any) -> Any:
        return Ref(self._number(x)) if isinstance(x, Tensor) else x

    def _number(self, tensor: Tensor) -> int:
        known = self._numbers.get(id(tensor))
        if known is None:
            known = self._numbers[id(tensor)] = len(self.result.tensors)
            self.result.tensors.append(tensor)
        return known

    def _view(self, tensor: Tensor) -> TensorView:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # do not record these calls
            number = self._number(tensor)
            needs = {self.result.makers.get(number), self._memory.get(_storage(tensor))} - {None}
            shape, values = tuple(tensor.shape), first_cells(tensor)
        return TensorView(number, self._letters.of(tensor), shape, values, frozenset(n for n in needs if n is not None))


class _Operations(TorchDispatchMode):
    """Reports every operation of the dispatcher."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch declares no types
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.operation(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Reports the outermost function calls. The mode is disabled during each call."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is attend:
            with self:
                return self.recorder.attention(args, kwargs or {})
        if func is attend_packed:  # recorded through the operations of its padded batch
            with self:
                return attend_packed_impl(*args, **(kwargs or {}))
        if (name := name_of(func)) in CELLS:
            with self:
                return self.recorder.recurrence(name, args)
        return self.recorder.call(func, args, kwargs or {})


MAX_SIDE = 20
"""Maximum number of rows and columns in the view of a matrix."""
MAX_IMAGE_SIDE = 32
"""Maximum number of rows and columns in the view of an image."""
MAX_MATRICES = 4
"""Maximum number of matrices, such as heads, in the view of a larger tensor."""


def first_cells(tensor: Tensor, size: int = MAX_SIDE) -> Tensor:
    """Copy the first cells of a tensor: (matrices, rows, columns), float64.

    >>> tuple(first_cells(torch.zeros(1, 8, 30, 5)).shape)
    (4, 20, 5)
    """
    rows, columns = ([1, 1, *tensor.shape])[-2:]
    flat = tensor.detach().reshape(-1, rows, columns) if tensor.numel() else tensor.new_zeros(0, rows, columns)
    return flat[:MAX_MATRICES, :size, :size].to(torch.float64, copy=True)


def name_of(function: Any) -> str:
    """Return the base name of a PyTorch function.

    >>> name_of(Tensor.__matmul__), name_of(Tensor.add_), name_of(torch.nn.functional.linear)
    ('matmul', 'add', 'linear')
    """
    name = getattr(function, "__name__", None) or str(function)
    if name in ("__get__", "__set__"):
        name = (resolve_name(function) or name).split(".")[-2 if name == "__get__" else -1]
    name = name.strip("_")
    return {"rmatmul": "matmul", "radd": "add", "rmul": "mul", "rsub": "rsub", "truediv": "div"}.get(name, name)


def _operation_name(function: Any) -> str:
    """Return the name without overload: aten.transpose.int → transpose. In-place operations keep their underscore."""
    return str(function.overloadpacket.__name__)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _written(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operation writes to."""
    tensors = []
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            tensors += _tensors(value)
    return tensors
