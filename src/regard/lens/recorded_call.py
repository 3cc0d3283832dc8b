"""A recorded attention call: references to the model's tensors from which its weights can be recomputed.

Three problems with references are handled:

- The model is about to write into a tensor. `copy_storage` copies it first.
- The model wrote into a tensor without being noticed. `check` compares version counters and raises.
- A view keeps a much larger storage alive. `compact` copies the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..attention.attention_map import AttentionMap
from ..attention.request import Request
from ..attention.sink import SinkMap
from ..core.tensors import shape, version

Kind: TypeAlias = Literal["self", "causal", "cross"]
KINDS: tuple[Kind, ...] = ("self", "causal", "cross")

MIN_STORAGE_FRACTION = 0.75
"""Views smaller than this fraction of their storage are copied. A fused projection also stores values, for example."""


class Source(Protocol):
    """Provides the request of a call, either stored or computed when it is needed."""

    def tensors(self) -> Sequence[Tensor]:
        """Return the tensors that it references."""
        ...

    def request(self) -> Request:
        """Return the request, computing it if necessary."""
        ...

    def copy_storage(self, storage: int) -> Source:
        """Return an equal source with copies of the tensors in this storage."""
        ...


@dataclass(frozen=True)
class StoredRequest:
    """A source whose request is already known."""

    value: Request

    def tensors(self) -> Sequence[Tensor]:
        return [x for x in self.value.tensors if x is not None]

    def request(self) -> Request:
        return self.value

    def copy_storage(self, storage: int) -> StoredRequest:
        return StoredRequest(self.value.with_tensors([copy_if_in(x, storage) for x in self.value.tensors]))


@dataclass(frozen=True)
class Record:
    """The result of a recorder for one call of an attention function."""

    source: Source
    sink: Tensor | None = None
    """Scores of the attention sink: part of each row's softmax sum, but of no key. They broadcast to (*lead, Tq)."""
    cross: bool | None = None
    """Whether queries and keys come from different sequences; None if the call does not show it."""
    submodule: str = ""
    """Name of the attention module inside the calling module, if a fused function covers both."""


class Call:
    """A recorded call with the name of its module.

    `name` is unique within a `Seen`. `module` is the name of the module, the same for all its calls.
    """

    def __init__(self, module: str, record: Record, hint: Kind | None = None) -> None:
        self.module = self.name = module
        self.hint = hint
        self.query_tokens: list[str] | None = None
        self.key_tokens: list[str] | None = None
        self.sink = record.sink
        self.storage: StorageWeakRef | None = None
        """The storage of the keys in the model at the time of the call."""
        self._source = record.source
        self._pending: Callable[[Source], Source] | None = None
        self.reset()

    def reset(self) -> None:
        """Record the current tensor versions and clear cached results."""
        self._versions = [(x, version(x)) for x in self.tensors()]
        self._map: AttentionMap | None = None
        self._kind: Kind | None = None

    def update_versions(self) -> None:
        """Record the current tensor versions, after a write that did not reach these tensors."""
        self._versions = [(x, version(x)) for x, _ in self._versions]
        if self._map is not None:
            self._map.guarded()

    def __getstate__(self) -> dict[str, Any]:
        # copies of tensors have versions of their own, and no call of the model continues a copy
        copied = {"_source": StoredRequest(self.request), "_pending": None, "storage": None, "_map": None}
        return {**self.__dict__, **copied, "_versions": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.reset()

    def is_apart_from(self, written: Tensor, storage: int) -> bool:
        """Return whether the tensors in this storage certainly do not overlap `written`, a view of it."""
        return all(is_apart(x, written) for x in self.tensors() if storage_pointer(x) == storage)

    def tensors(self) -> Iterator[Tensor]:
        """Yield all referenced tensors."""
        yield from self.source.tensors()
        if self.sink is not None:
            yield self.sink

    @property
    def source(self) -> Source:
        """The source, with all pending steps. Those of a call that is not intact stay pending; `check` raises."""
        if self._pending is not None and self.intact:
            self.set_source(self._pending(self._source))
        return self._source

    def set_source(self, source: Source) -> None:
        """Replace the source."""
        self._source, self._pending = source, None
        self.reset()

    def defer(self, pending: Callable[[Source], Source]) -> None:
        """Let `pending` add later steps to the source when it is needed. They are in the memory of the source."""
        self._pending = pending

    def defers(self, pending: Callable[[Source], Source]) -> bool:
        """Return whether `pending` will still add its steps: the source was neither read nor replaced since."""
        return self._pending is pending

    @property
    def versions(self) -> Sequence[tuple[Tensor, int]]:
        """The referenced tensors with their version counters at the time of the call."""
        return self._versions

    @property
    def request(self) -> Request:
        """The request, (B, H, Tq, Tk). It is computed on first access if necessary."""
        self.check()
        if not isinstance(self.source, StoredRequest):
            with torch.no_grad():
                self.set_source(StoredRequest(self.source.request()))
        return self.source.request()

    def resolve(self) -> None:
        """Compute the request now, before an optimizer changes the weights it depends on."""
        _ = self.request

    def copy_storage(self, storage: int) -> None:
        """Copy the tensors in this storage, because the model is about to write into it.

        Raises RuntimeError if a tensor was overwritten before, so that a copy would be wrong.
        """
        self.check()
        with torch.no_grad():
            self.sink = copy_if_in(self.sink, storage)
            self.set_source(self.source.copy_storage(storage))

    def check(self) -> None:
        """Raise RuntimeError if a referenced tensor was overwritten or freed."""
        for x, known in self._versions:
            change = "overwritten in place" if version(x) != known else "freed" if freed(x) else ""
            if change:
                raise RuntimeError(
                    f"watch: a tensor of {self.name} ({shape(x)}) must not change after the call "
                    f"was recorded; it was {change}. Pass keep='copy' to watch."
                )

    @property
    def intact(self) -> bool:
        """Whether no referenced tensor was overwritten or freed since the call was recorded."""
        return all(version(x) == known and not freed(x) for x, known in self._versions)

    @property
    def map(self) -> AttentionMap:
        """The attention map; weights are computed lazily. Repeated access returns the same object."""
        if self._map is None:
            request = self.request
            unguarded = AttentionMap(request) if self.sink is None else SinkMap(request, self.sink)
            self._map = unguarded.guarded()
        self.check()
        self._map.query_tokens, self._map.key_tokens = self.query_tokens, self.key_tokens
        self._map.layer = self.name
        return self._map

    @property
    def kind(self) -> Kind:
        """The kind given by the module, or else inferred from the request."""
        if self._kind is None:
            self._kind = self.hint or kind_of(self.request)
        return self._kind


def kind_of(request: Request) -> Kind:
    """Infer the kind from mask and lengths.

    It is causal if no query may attend past its position, with the last query at the position of the last key.
    """
    mask, rows, cols = request.mask, request.queries, request.keys
    if mask.right == 0 or (rows > 1 and _is_lower_triangular(mask.dense, rows, cols)):
        return "causal"
    return "self" if rows == cols else "cross"


def _is_lower_triangular(dense: Tensor | None, rows: int, cols: int) -> bool:
    if dense is None or dense.shape[-2] != rows or dense.shape[-1] != cols or cols < rows:
        return False
    allowed = dense if dense.dtype == torch.bool else dense > torch.finfo(dense.dtype).min / 2
    return not bool(allowed.triu(cols - rows + 1).any())


def with_batch_and_heads(request: Request) -> Request:
    """Return the request with leading dimensions (B, H). A single leading dimension is the batch."""
    lead = len(request.lead)
    if lead >= 2:
        return request

    def lift(x: Tensor) -> Tensor:
        return x.unsqueeze(1) if lead == 1 and x.ndim == 3 else x

    m = request.mask
    mask = replace(
        m,
        dense=None if m.dense is None else lift(m.dense),
        offset=lift(m.offset) if isinstance(m.offset, Tensor) else m.offset,
        lengths=lift(m.lengths) if isinstance(m.lengths, Tensor) else m.lengths,
    )
    return replace(request, q=lift(request.q), k=lift(request.k), mask=mask, lead=(*request.lead, 1, 1)[:2])


def compact(request: Request) -> Request:
    """Return the request with copies of queries and keys that are small views of large storages."""
    q, k = _compact(request.q), _compact(request.k)
    return request if q is request.q and k is request.k else replace(request, q=q, k=k)


def _compact(x: Tensor) -> Tensor:
    if x.is_meta or 0 in x.stride() or x.nbytes >= MIN_STORAGE_FRACTION * x.untyped_storage().nbytes():
        return x
    return x.clone(memory_format=torch.contiguous_format)


def is_apart(one: Tensor, other: Tensor) -> bool:
    """Return whether two views of a storage are certainly disjoint: slices of one tensor along a single dimension.

    >>> cache = torch.zeros(2, 8, 3)
    >>> is_apart(cache[:, :5], cache[:, 5:6]), is_apart(cache[:, :5], cache[:, 4:5])
    (True, False)
    """
    if one.stride() != other.stride() or one.dtype != other.dtype:
        return False
    shift = other.storage_offset() - one.storage_offset()
    for dim, step in enumerate(one.stride()):
        distance = shift // step if step and shift % step == 0 else 0
        if distance and (distance >= one.shape[dim] or -distance >= other.shape[dim]):
            sizes = [max(a, b) for a, b in zip(one.shape, other.shape, strict=True)]
            sizes[dim] = abs(distance) + (other if distance > 0 else one).shape[dim]  # from the first to the last
            if _unique_addresses(sizes, one.stride()):
                return True
    return False


def _unique_addresses(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether no two indices of a tensor have the same address."""
    reach = 0  # largest address of the dimensions with smaller strides
    for step, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += (size - 1) * step
    return True


def storage_pointer(x: Tensor) -> int:
    """Return the data pointer of a tensor's storage, or 0 if it has none."""
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # no storage: sparse, functional, fake
        return 0


def storage_reference(x: Tensor) -> StorageWeakRef | None:
    """Return a weak reference to a tensor's storage. While it exists, no other storage compares equal to it."""
    try:
        return StorageWeakRef(x.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return None


def freed(x: Tensor) -> bool:
    """Return whether the memory of a tensor was freed, as FSDP does with weights gathered for one pass."""
    return x.is_cpu and x.layout is torch.strided and bool(x.numel()) and not x.untyped_storage().nbytes()


def copy_if_in(x: Tensor | None, storage: int) -> Tensor | None:
    """Return a copy of `x` if it is in this storage, else `x`."""
    return x.clone() if x is not None and storage_pointer(x) == storage else x
