"""Watching: the attention of any model while it runs, without touching the model.

A `TorchFunctionMode` sees the calls of PyTorch's functions in this thread for as long as the block lasts. Attention
functions are passed on as they are and their queries and keys remembered; which module called is read from the stack.
No hooks, no patched modules: nothing that a model, or PyTorch's fast paths, could tell from not being watched.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..attention.request import Request
from ..core.process import keep_freed
from .function_mode import _fast_paths, _Mode
from .generation_steps import MaskCopies, Steps, same_bits
from .grouped_heads import regrouped
from .recorded_call import Call, Found, Kind, Plain, compact, place, storage_of
from .seen import Layers, Seen, choice

Keep: TypeAlias = torch.dtype | torch.device | str | Sequence[torch.dtype | torch.device | str] | None


def watch(
    model: nn.Module,
    layers: Layers = None,
    heads: int | Sequence[int] | None = None,
    keep: Keep = None,
) -> Watch:
    """See the attention of a model: `with regard.watch(model) as seen: model(…)`.

    It sees, by module name, calls of `scaled_dot_product_attention`, `nn.MultiheadAttention` and `nn.Transformer*` with
    their fast paths, FlexAttention (its mask_mod; a score_mod is refused by name) and `regard.attend`, in training and
    inference, under autocast, on any device. The model computes what it would have computed, to the bit. What is kept
    are references to queries, keys and masks; copies are made of what the model is about to overwrite.

    Args:
        model: any module; calls outside it are not seen, nor calls in other threads.
        layers: which attending modules: numbers in the order of their first call, names, or patterns ("decoder.*").
        heads: which heads.
        keep: a dtype and/or a device to keep queries and keys in, or "copy" to copy everything at once.

    Raises:
        ValueError: for a model that runs where Python cannot follow (compiled, scripted, nn.DataParallel).

    >>> import regard
    >>> model = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with regard.watch(nn.ModuleDict({"attention": model})) as seen:
    ...     y, weights = model(x, x, x, average_attn_weights=False)
    >>> torch.allclose(seen["attention"].dense(), weights, atol=1e-6)
    True
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"watch: model must be a torch.nn.Module; got {type(model).__name__}.")
    return Watch(model, choice(layers), _heads(heads), _Keeping(keep))


KEPT = 2**28
"""Bytes of a piece that the C library keeps when maps are freed: the next look would pay for every page anew."""


class Watch:
    """The block: use it in a `with`, which gives a `Seen`."""

    def __init__(self, model: nn.Module, wanted: choice, heads: tuple[int, ...] | None, keeping: _Keeping) -> None:
        self._model: nn.Module | None = model
        self._wanted, self._heads, self._keeping = wanted, heads, keeping
        self._mode: _Mode | None = None
        self._seen = Seen()

    def __enter__(self) -> Seen:
        model, self._model = self._model, None
        if model is None:
            raise ValueError("watch: a watch must be entered once. Make another: regard.watch(model).")
        self._names, self._numbers = _names(model), dict[str, int]()
        self._root = weakref.ref(model)
        self._foreign: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._latest: dict[str, weakref.ref[Call]] = {}
        self._places: dict[int, list[weakref.ref[Call]]] = {}
        self._unsettled: list[weakref.ref[Call]] = []
        self._masks = MaskCopies()
        self._mode = _Mode(self)
        keep_freed(KEPT)
        _fast_paths.open()
        self._mode.__enter__()
        return self._seen

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._mode is not None
        self._mode.__exit__(kind, error, at)
        _fast_paths.close()
        for reference in self._unsettled:
            if (call := reference()) is not None:
                self._try(call, call.settle)
        if self._seen.missed and error is None:
            few = "; ".join(self._seen.missed[:3])
            warnings.warn(
                f"watch: {len(self._seen.missed)} calls of attention could not be kept (seen.missed): {few}.",
                stacklevel=2,
            )
        self._seen = Seen()  # whoever wanted it has it

    def saw(self, recorder: Any, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType | None) -> None:
        """Keep a call that was made inside the model. It never raises: a model must not fail because it is watched."""
        name = "the model"
        try:
            if torch._C._current_graph_task_id() != -1:
                return  # a checkpoint computes again in the backward pass what was seen in the forward pass
            own, module = self._caller(frame)
            if module is None:
                return
            name, learns = own or type(module).__name__, torch.is_grad_enabled()
            with torch.no_grad() if learns else nullcontext():
                found: Found = regrouped(recorder(*args, **kwargs), frame)
                if found.below:
                    name = f"{own}.{found.below}".lstrip(".")
                number = self._numbers.setdefault(name, len(self._numbers))
                if self._wanted(name, number):
                    self._add(name, module, found, learns)
        except Exception as error:
            self.miss(error, name)

    def miss(self, error: Exception, name: str = "the model") -> None:
        """List attention that could not be kept, with the reason."""
        words = str(error) if isinstance(error, _Elsewhere) else f"{name}: {str(error) or type(error).__name__}"
        if words not in self._seen.missed:
            self._seen.missed.append(words)

    def _try(self, call: Call, action: Callable[[], None]) -> None:
        """Do what a call needs to stay readable. Where that fails, it is listed as missed, and not seen."""
        try:
            action()
        except Exception as error:
            self._seen.remove(call)
            self.miss(error, call.name)

    def _add(self, name: str, module: nn.Module, found: Found, learns: bool) -> None:
        source, storage = found.source, None
        if isinstance(source, Plain):
            storage = storage_of(source.found.k)
            source = Plain(self._keeping(compact(_of_heads(source.found, self._heads))))
        elif self._heads is not None or self._keeping.asked or _distributed():
            source = Plain(self._keeping(_of_heads(source.request(), self._heads)))
        before = self._latest.get(name, lambda: None)()
        found = replace(found, source=source)
        if before is not None and self._continues(before, found, storage):
            self._refer(before)
            return
        call = Call(name, found, _hint(name, module, found))
        call.storage = storage
        self._seen.add(call)
        self._latest[name] = weakref.ref(call)
        self._refer(call)
        if learns and not isinstance(source, Plain):
            self._unsettled.append(weakref.ref(call))

    def _continues(self, before: Call, found: Found, storage: StorageWeakRef | None) -> bool:
        """Whether a call is a further step of a generation; then it is joined to those before."""
        source = before.source
        if isinstance(source, Plain):
            source = Steps.of(source.found, before.storage)
        if not isinstance(source, Steps) or not isinstance(found.source, Plain):
            return False
        if not before.intact or not _same_sink(before.sink, found.sink):
            return False
        after = source.followed(found.source.found, storage, self._masks)
        if after is not None:
            before.set(after)
        return after is not None

    def _refer(self, call: Call) -> None:
        """Remember where its tensors lie, to copy them before they are overwritten."""
        for x in call.tensors():
            known = self._places.setdefault(place(x), [])
            if not any(reference() is call for reference in known):
                known.append(weakref.ref(call))

    def writes(self, targets: Iterable[Any]) -> None:
        """Something is about to be written to."""
        for x in targets:
            if isinstance(x, Tensor):
                for reference in self._places.pop(place(x), ()):
                    if (call := reference()) is not None:
                        self._try(call, partial(self._own, call, place(x)))

    def _own(self, call: Call, storage: int) -> None:
        call.own(storage)
        self._refer(call)

    def _caller(self, frame: FrameType | None) -> tuple[str, nn.Module | None]:
        """The innermost module of the model on the stack: the first argument of a function, by whatever name.

        None for a call outside the model: one in the forward pass of another model, even if a method of this one, such
        as `generate`, called that. Raises _Elsewhere where modules of this model and of others are mixed up.
        """
        name, module, foreign = "", None, None
        while frame is not None:
            code = frame.f_code
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            if isinstance(first, nn.Module):
                known, runs = self._name(first), code is _CALL or code.co_name == "forward"
                if known is None:
                    foreign = foreign or (first if runs else None)
                elif foreign is None:
                    if module is None:
                        name, module = known, first
                    if not known:
                        break  # the model itself
                elif runs:  # another module, but inside the forward pass of this model
                    if module is None:
                        raise _Elsewhere(
                            f"{known or type(first).__name__}: it calls a {type(foreign).__name__} which attends and "
                            "is none of the model's modules; register it, as an attribute or in an nn.ModuleList"
                        )
                    return name, module
            frame = frame.f_back
        if module is not None and foreign is not None and frame is None:
            raise _Elsewhere(
                f"{name}: it was called by a {type(foreign).__name__}, outside the model; watch that instead"
            )
        return name, module

    def _name(self, module: nn.Module) -> str | None:
        """The name of a module in the model; None for a module of something else."""
        if module not in self._names and module not in self._foreign:
            root = self._root()
            if root is not None:
                self._names.update(_names(root))  # it may have been registered since the block was entered
            if module not in self._names:
                self._foreign.add(module)
        return self._names.get(module)


_CALL = nn.Module._call_impl.__code__


class _Elsewhere(Exception):
    """Attention of which it is unclear whether it belongs to the model."""


class _Keeping:
    """What `keep` asks for."""

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
        self.asked = self.dtype is not None or self.device is not None or self.copy
        self._moved: dict[Any, tuple[Tensor, Tensor]] = {}

    def __call__(self, request: Request) -> Request:
        if not self.asked:
            return request
        q, k, v, dense, *parameters = request.tensors
        made = [self._to(x, self.dtype) for x in (q, k)]
        return request.with_tensors([*made, v, self._shared(dense), *(self._to(x, self.dtype) for x in parameters)])

    def _to(self, x: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
        return None if x is None else x.to(self.device or x.device, dtype or x.dtype, copy=self.copy)

    def _shared(self, x: Tensor | None) -> Tensor | None:
        """A mask that many layers share is moved once."""
        if x is None:
            return None
        known = (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype)
        if known not in self._moved:
            moved = self._to(x, None)
            assert moved is not None
            self._moved[known] = (x, moved)  # the first is held, so that no other takes its place in memory
        return self._moved[known][1]


def _distributed() -> bool:
    """Whether weights may be gathered for one pass and freed after it (FSDP): what needs them is computed at once."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _same_sink(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two sinks are the same score for every query."""
    if one is None or other is None:
        return one is other
    return one.shape[-1] == 1 and one.shape == other.shape and one.dtype == other.dtype and same_bits(one, other)


def _of_heads(request: Request, heads: tuple[int, ...] | None) -> Request:
    if heads is None:
        return request
    count = request.lead[-1]
    if any(not -count <= head < count for head in heads):
        raise ValueError(f"heads {heads} must lie in 0…{count - 1}")
    chosen = torch.tensor([head % count for head in heads])
    return request.select((*(slice(None) for _ in request.lead[:-1]), chosen))


def _heads(heads: int | Sequence[int] | None) -> tuple[int, ...] | None:
    chosen = None if heads is None else (heads,) if isinstance(heads, int) else tuple(int(head) for head in heads)
    if chosen == ():
        raise ValueError("watch: heads (none) must be at least one; None keeps all.")
    return chosen


_CROSS = ("cross", "encoder_attn", "encdecattention", "multihead_attn")


def _hint(name: str, module: nn.Module, found: Found) -> Kind | None:
    """What the call or its module tells of the kind: queries and keys alone may not."""
    if found.cross or _says(module, "is_cross_attention"):
        return "cross"
    if any(part in name.lower() for part in _CROSS):
        return "cross"
    one = isinstance(found.source, Plain) and found.source.found.queries == 1
    if one and _says(module, "is_causal"):
        return "causal"
    return None


def _says(module: nn.Module, name: str) -> bool:
    """Whether an attribute is True. One that is missing is not asked for: that costs nn.Module an exception."""
    return (name in module.__dict__ or hasattr(type(module), name)) and getattr(module, name) is True


def _names(model: nn.Module) -> weakref.WeakKeyDictionary[nn.Module, str]:
    """The modules of a model by name; raises ValueError for one that runs where Python cannot follow."""
    names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
    for name, module in model.named_modules():
        if why := _beyond(module):
            raise ValueError(f"watch: {name or 'the model'} ({type(module).__name__}) must run in {why}")
        names[module] = name if "_orig_mod" not in name else _plain(name)
    return names


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _beyond(module: nn.Module) -> str:
    """Why Python cannot follow a module; nothing where it can."""
    if (type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None) and not _eager():
        return (
            "Python; it is compiled, and compiled code calls no function that could be seen. Watch the model it was "
            "made from (model._orig_mod), or run inside torch.compiler.set_stance('force_eager')."
        )
    if isinstance(module, torch.jit.ScriptModule):
        return "Python; it is scripted. Watch the module it was made from."
    if isinstance(module, nn.DataParallel) and len(module.device_ids or ()) > 1:
        return "this thread; it runs copies in others. Watch model.module."
    return ""


def _eager() -> bool:
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._stance.stance == "force_eager"
