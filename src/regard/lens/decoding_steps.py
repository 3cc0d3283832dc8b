"""Steps of a decoder that reports the attention of all its layers at once.

Recording each layer separately would take more than a twentieth of the time of a step. Here a step is checked once and
only its queries are copied. The steps are added to the maps when these are needed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from ..attention.masks import OPEN
from ..attention.step_report import DecodingStep
from .generation_steps import Step, Steps
from .recorded_call import Call, Source


@dataclass
class _Queries:
    """The queries of consecutive steps. The calls that they continue refer to this object."""

    keys: Sequence[Tensor]
    """The cached keys of each layer, (B, Hkv, capacity, D)."""
    first: int
    """Number of keys of the first step."""
    steps: list[list[Tensor]] = field(default_factory=list)
    """Copies of the queries, (B, H, 1, D) for each layer of each step."""

    def continued(self, layer: int, source: Source) -> Source:
        """Return the source of a layer's call with these steps added."""
        if not self.steps:
            return source
        assert isinstance(source, Steps)
        new = [Step(queries[layer], OPEN, 0, self.first + index) for index, queries in enumerate(self.steps)]
        with torch._C.DisableTorchFunction():
            k = self.keys[layer][:, :, : new[-1].keys].detach()  # (B, Hkv, keys, D)
        return Steps((*source.steps, *new), (), replace(source.last, k=k), source.storage)


class DecodingSteps:
    """Consecutive steps with the same memory, and the calls that they continue."""

    def __init__(self, calls: Sequence[tuple[int, Call]], step: DecodingStep, length: int) -> None:
        self._step, self._length = weakref.ref(step), length  # it holds values, which maps do not need
        self._versions = [known for _, call in calls for known in call.versions]
        self._queries = _Queries([key for key, _ in step.caches], length + 1)
        self._calls = [(weakref.ref(call), partial(self._queries.continued, layer)) for layer, call in calls]
        for (_, call), (_, pending) in zip(calls, self._calls, strict=True):
            call.defer(pending)

    @classmethod
    def of(cls, calls: Sequence[Call | None], step: DecodingStep, length: int) -> DecodingSteps | None:
        """Return the steps for calls that end with this one, or None if the next step must be recorded call by call.

        A call is None if its layer is not recorded.
        """
        layers = [(index, call) for index, call in enumerate(calls) if call is not None]
        if not layers or not all(_ends_with(call, step, index, length) for index, call in layers):
            return None
        return cls(layers, step, length)

    def extend(self, step: DecodingStep, length: int) -> bool:
        """Record a step if it continues these ones, and return whether it does."""
        if step is not self._step() or length != self._length + 1 or torch._C._is_any_autocast_enabled():
            return False
        for reference, pending in self._calls:
            call = reference()
            # a call is changed if its map is accessed, if it is copied before a write, and by a new call of its module
            if call is None or not call.defers(pending):
                return False
        with torch._C.DisableTorchFunction():
            if any(x._version != known for x, known in self._versions):
                return False
            self._queries.steps.append([q.clone() for q in step.queries])
        self._length = length
        return True


def _ends_with(call: Call, step: DecodingStep, index: int, length: int) -> bool:
    """Return whether a call refers to the whole keys of this step in their cache, and is complete and unmasked."""
    source, key = call.source, step.caches[index][0]
    if not isinstance(source, Steps) or call.sink is not None or source.dropped or not call.intact:
        return False
    last, k = source.steps[-1], source.last.k
    same = k.data_ptr() == key.data_ptr() and k.stride() == key.stride() and k.dtype == key.dtype
    whole = same and k.shape == (*key.shape[:2], length, key.shape[3])
    counted = not any(x.is_inference() for x in call.tensors())  # these have no version counter
    return whole and counted and last.mask is OPEN and (last.first, last.keys) == (0, length)
