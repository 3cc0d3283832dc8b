"""Record the attention of any model while it runs, without modifying the model.

A `TorchFunctionMode` intercepts PyTorch function calls of the current thread inside the `with` block. Attention
functions run unchanged; references to their queries and keys are stored. The calling module is read from the Python
stack. There are no hooks and no patched modules, so that neither the model nor PyTorch's fast paths behave differently.
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
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..attention.derivatives import unwrapped
from ..attention.step_report import DecodingStep
from ..core.messages import few
from ..core.process import keep_freed
from .decoding_steps import DecodingSteps
from .function_mode import _fast_paths, _Mode, compiled_code
from .generation_steps import MaskCopies, Steps, same_bits
from .grouped_heads import restore_grouped_heads
from .growing_cache import GrowingCache
from .layer_filter import LayerFilter, Layers
from .recorded_call import Call, Kind, Record, StoredRequest, compact, storage_pointer, storage_reference
from .recorders import regard_attend
from .seen import Seen
from .stored_parts import Keep, KeepOptions, parse_heads, select_heads
from .watched_modules import OwnershipError, WatchedModules


def watch(
    model: nn.Module,
    layers: Layers = None,
    heads: int | Sequence[int] | None = None,
    keep: Keep = None,
) -> Watch:
    """Record the attention of a model: `with regard.watch(model) as seen: model(…)`.

    Recorded by module name are calls of `scaled_dot_product_attention`, `nn.MultiheadAttention` and `nn.Transformer*`
    including their fast paths, FlexAttention (with a mask_mod, but without a score_mod) and `regard.attend`. This works
    in training and inference, under autocast and on any device. The outputs of the model are bit-identical. The watch
    stores references to queries, keys and masks, and copies a tensor before the model overwrites it.

    Args:
        model: any module. Calls outside it and calls in other threads are not recorded.
        layers: attention modules to record: indices in the order of their first call, names, or patterns ("decoder.*").
        heads: indices of the heads to record.
        keep: a dtype and/or a device to store queries and keys in, or "copy" to copy all tensors immediately.

    Raises:
        ValueError: if the model is compiled, scripted, or an nn.DataParallel, which cannot be recorded.

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
    return Watch(model, LayerFilter(layers), parse_heads(heads), KeepOptions(keep))


COMPILED = (
    "compiled code: a function compiled by torch.compile computed attention, and not all of its calls can be "
    "intercepted; run it inside torch.compiler.set_stance('force_eager')"
)
EXPLICIT = (
    "attention computed by matmul and softmax cannot be recorded; use scaled_dot_product_attention or regard.attend, "
    "or attn_implementation='sdpa' or 'regard' for a model of transformers"
)
MAX_FREED_BLOCK = 2**28
"""Largest freed block in bytes that the C library keeps, so that the next map does not fault in every page again."""


class Watch:
    """Context manager returned by `watch`. Entering it returns a `Seen`."""

    def __init__(self, model: nn.Module, layers: LayerFilter, heads: tuple[int, ...] | None, keep: KeepOptions) -> None:
        self._model: nn.Module | None = model
        self._layers, self._heads, self._keep = layers, heads, keep
        self._mode: _Mode | None = None
        self._seen = Seen()

    def __enter__(self) -> Seen:
        model, self._model = self._model, None
        if model is None:
            raise ValueError("watch: a watch must be entered only once. Create another: regard.watch(model).")
        self._modules = WatchedModules(model)
        self._numbers: dict[str, int] = {}
        self._latest: dict[str, weakref.ref[Call]] = {}
        self._calls_by_storage: dict[int, list[weakref.ref[Call]]] = {}
        self._unresolved: list[weakref.ref[Call]] = []
        self._unaffected: list[Call] = []
        self._growing: dict[int, GrowingCache] = {}
        self._decoding: DecodingSteps | None = None
        self._masks = MaskCopies()
        self._mode = _Mode(self)
        self._compiled_before = compiled_code.attended, compiled_code.flex
        compiled_code.attended = compiled_code.flex = self.flex_noticed = False
        keep_freed(MAX_FREED_BLOCK)
        _fast_paths.open()
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch declares no types
        return self._seen

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._mode is not None
        self._mode.__exit__(kind, error, at)  # type: ignore[no-untyped-call]  # torch declares no types
        _fast_paths.close()
        if compiled_code.attended or (compiled_code.flex and not self.flex_noticed):
            self.add_missed(_NotInterceptedError(COMPILED))
        compiled_code.attended |= self._compiled_before[0]
        compiled_code.flex |= self._compiled_before[1]
        for reference in self._unresolved:
            if (call := reference()) is not None:
                self._try(call, call.resolve)
        unmatched = self._layers.unmatched(list(self._numbers)) if self._numbers and error is None else []
        if unmatched:
            warnings.warn(
                f"watch: layers ({', '.join(map(str, unmatched))}) must select attention modules; there are "
                f"{len(self._numbers)}: {few(list(self._numbers), 5)}.",
                stacklevel=2,
            )
        if self._seen.missed and error is None:
            reasons = "; ".join(self._seen.missed[:3])
            warnings.warn(
                f"watch: {len(self._seen.missed)} attention calls could not be recorded (seen.missed): {reasons}.",
                stacklevel=2,
            )
        self._seen = Seen()  # drop the reference; the caller has its own

    def record_call(self, recorder: Any, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType | None) -> None:
        """Record a call made inside the model. Never raises: a model must not fail because it is watched."""
        name = "the model"
        try:
            if torch._C._current_graph_task_id() != -1:
                return  # checkpointing recomputes the forward pass during backward
            keys = storage_pointer(args[1]) if len(args) > 1 and type(args[1]) is Tensor else 0
            growing = self._growing.get(keys)
            if growing is not None and growing.extend(self._latest, recorder, args, kwargs, frame):
                return
            own, module = self._modules.caller(frame)
            if module is None:
                return
            name, grad_enabled = own or type(module).__name__, torch.is_grad_enabled()
            with torch.no_grad() if grad_enabled else nullcontext():
                record: Record = restore_grouped_heads(recorder(*args, **kwargs), frame)
                if record.submodule:
                    name = f"{own}.{record.submodule}".lstrip(".")
                number = self._numbers.setdefault(name, len(self._numbers))
                if not self._layers(name, number):
                    return
                call = self._add(name, module, record, grad_enabled)
                after = GrowingCache.of(call, module, recorder, args, kwargs)
                if after is not None:
                    self._growing[keys] = after
        except Exception as error:
            self.add_missed(error, name)

    def notice_softmax(self, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType | None) -> None:
        """List a softmax over keys as missed attention: the last of four dimensions, or any in an attention module.

        Never raises.
        """
        try:
            scores = args[0] if args else kwargs.get("input")
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            if not isinstance(scores, Tensor) or scores.ndim < 3 or dim not in (-1, scores.ndim - 1):
                return
            if torch._C._current_graph_task_id() != -1:
                return  # a recomputation of a checkpoint
            own, module = self._modules.caller(frame)
            if isinstance(module, nn.Softmax):
                own, module = self._modules.parent(own)
            if module is None:
                return
            name, kind = own or type(module).__name__, type(module).__name__.lower()
            if scores.ndim == 4 or "attention" in kind or "attn" in kind:
                self.add_missed(_NotInterceptedError(f"{name}: {EXPLICIT}"))
        except Exception as error:
            self.add_missed(error)

    def record_step(self, step: DecodingStep, length: int) -> None:
        """Record one call for each module of a decoder. Never raises.

        Steps that continue the previous one are recorded together, and added to the maps when these are needed.
        """
        try:
            if self._decoding is not None and self._decoding.extend(step, length):
                return
            self._decoding = None
            for index in range(len(step.modules)):
                _record_layer(step.modules[index], self, step, index, length)
            self._decoding = DecodingSteps.of(self._recorded_layers(step), step, length)
        except Exception as error:
            self.add_missed(error)

    def _recorded_layers(self, step: DecodingStep) -> list[Call | None]:
        """Return the latest call of each module, or None for modules that are not selected."""
        calls: list[Call | None] = []
        for module in step.modules:
            name = self._modules.name(module)
            if name is None or (name in self._numbers and not self._layers(name, self._numbers[name])):
                calls.append(None)  # outside the model, or not selected: no later step is recorded either
            elif (call := self._latest.get(name, lambda: None)()) is not None:
                calls.append(call)
            else:
                return []
        return calls

    def add_missed(self, error: Exception, name: str = "the model") -> None:
        """Add an attention call that could not be recorded, with the reason."""
        complete = isinstance(error, OwnershipError | _NotInterceptedError)
        reason = str(error) if complete else f"{name}: {str(error) or type(error).__name__}"
        if reason not in self._seen.missed:
            self._seen.missed.append(reason)

    def _try(self, call: Call, action: Callable[[], None]) -> None:
        """Run an action that keeps a call valid. If it fails, remove the call and list it as missed."""
        try:
            action()
        except Exception as error:
            self._seen.remove(call)
            self.add_missed(error, call.name)

    def _add(self, name: str, module: nn.Module, record: Record, grad_enabled: bool) -> Call:
        """Add a call, or append it to the call that it continues. Return that call."""
        source, storage = record.source, None
        before = self._latest.get(name, lambda: None)()
        if isinstance(source, StoredRequest):
            storage = storage_reference(source.value.k)
            whole = self._heads is None and not self._keep.enabled
            # keys in the memory of the previous step need neither be copied nor compared
            if whole and before is not None and self._continues(before, record, storage):
                self._track(before)
                return before
            source = StoredRequest(self._keep(compact(select_heads(source.value, self._heads))))
        elif self._heads is not None or self._keep.enabled or _distributed():
            source = StoredRequest(self._keep(select_heads(source.request(), self._heads)))
        record = replace(record, source=source)
        if before is not None and self._continues(before, record, storage):
            self._track(before)
            return before
        call = Call(name, record, _hint(name, module, record))
        call.storage = storage
        self._seen.add(call)
        self._latest[name] = weakref.ref(call)
        self._track(call)
        if grad_enabled and not isinstance(source, StoredRequest):
            self._unresolved.append(weakref.ref(call))
        return call

    def _continues(self, before: Call, record: Record, storage: StorageWeakRef | None) -> bool:
        """If the call continues a generation, append it to the previous steps and return True."""
        source = before.source
        if isinstance(source, StoredRequest):
            source = Steps.of(source.value, before.storage)
        if not isinstance(source, Steps) or not isinstance(record.source, StoredRequest):
            return False
        if not before.intact or not _same_sink(before.sink, record.sink):
            return False
        after = source.extended(record.source.value, storage, self._masks)
        if after is not None:
            before.set_source(after)
        return after is not None

    def _track(self, call: Call) -> None:
        """Register the storages of the call's tensors, to copy them before they are overwritten."""
        for x in call.tensors():
            calls = self._calls_by_storage.setdefault(storage_pointer(x), [])
            if not any(reference() is call for reference in calls):
                calls.append(weakref.ref(call))

    def before_write(self, targets: Iterable[Any]) -> bool:
        """Copy recorded tensors that `targets`, which are about to be overwritten, overlap in memory.

        Returns:
            Whether `after_write` must be called, because a recorded tensor is in a storage that is written elsewhere.
        """
        self._unaffected = []
        for x in targets:
            if isinstance(x, Tensor):
                storage = storage_pointer(x := unwrapped(x))
                for reference in self._calls_by_storage.pop(storage, ()):
                    if (call := reference()) is None:
                        continue
                    if call.intact and call.is_apart_from(x, storage):
                        self._calls_by_storage.setdefault(storage, []).append(reference)
                        self._unaffected.append(call)
                    else:
                        self._try(call, partial(self._copy_storage, call, storage))
        return bool(self._unaffected)

    def after_write(self) -> None:
        """Accept the new versions of tensors whose storage was written to, but not in their part of it."""
        for call in self._unaffected:
            call.update_versions()

    def _copy_storage(self, call: Call, storage: int) -> None:
        call.copy_storage(storage)
        self._track(call)


def _record_layer(module: nn.Module, observer: Watch, step: DecodingStep, index: int, length: int) -> None:
    """Record the call of one module at a step. The watch reads the module from this frame to name the map."""
    with torch._C.DisableTorchFunction():
        k, v = (cache[:, :, :length] for cache in step.caches[index])  # (B, Hkv, length, D)
        q = step.queries[index].clone()  # the next step overwrites it
    options = {"causal_offset": length - 1, **step.options[index]}
    observer.record_call(regard_attend, (q, k, v), options, sys._getframe())


class _NotInterceptedError(Exception):
    """Attention was computed by code that cannot be intercepted."""


def _distributed() -> bool:
    """Return whether weights may be freed after each pass (FSDP). Requests are then computed immediately."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _same_sink(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two sinks have the same score for every query."""
    if one is None or other is None:
        return one is other
    return one.shape[-1] == 1 and one.shape == other.shape and one.dtype == other.dtype and same_bits(one, other)


_CROSS = ("cross", "encoder_attn", "encdecattention", "multihead_attn")


def _hint(name: str, module: nn.Module, record: Record) -> Kind | None:
    """Return the kind of attention if the call or its module shows it. The shapes alone may be ambiguous."""
    if record.cross or _is_true(module, "is_cross_attention"):
        return "cross"
    if any(part in name.lower() for part in _CROSS):
        return "cross"
    one = isinstance(record.source, StoredRequest) and record.source.value.queries == 1
    if one and _is_true(module, "is_causal"):
        return "causal"
    return None


def _is_true(module: nn.Module, name: str) -> bool:
    """Return whether an attribute exists and is True, without the cost of an AttributeError in nn.Module."""
    return (name in module.__dict__ or hasattr(type(module), name)) and getattr(module, name) is True
