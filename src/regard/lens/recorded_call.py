"""One attention that was seen: what is needed to rebuild its weights, and nothing that the model did not hold anyway.

A call keeps references to the model's own tensors. Three things can go wrong with a reference, and each has its answer:
the model is about to write into it (`own`: it is copied just before), the model wrote into it where nobody could see
(`check`: version counters tell, and looking raises), or it pins far more memory than it is worth (`compact`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..attention.attention_map import AttentionMap
from ..attention.request import Request
from ..attention.sink import SinkMap

Kind: TypeAlias = Literal["self", "causal", "cross"]
KINDS: tuple[Kind, ...] = ("self", "causal", "cross")

WORTH = 0.75
"""A view of less than this share of its storage is copied: queries of a fused projection would pin the values too."""


class Source(Protocol):
    """Where the request of a call comes from: it is there, or the way to it is."""

    def tensors(self) -> Sequence[Tensor]:
        """What it refers to."""
        ...

    def request(self) -> Request: ...

    def own(self, storage: int) -> Source:
        """The same without referring to this storage."""
        ...


@dataclass(frozen=True)
class Plain:
    """A request that is there."""

    found: Request

    def tensors(self) -> Sequence[Tensor]:
        return [x for x in self.found.tensors if x is not None]

    def request(self) -> Request:
        return self.found

    def own(self, storage: int) -> Plain:
        return Plain(self.found.with_tensors([apart(x, storage) for x in self.found.tensors]))


@dataclass(frozen=True)
class Found:
    """What a recorder makes of somebody's call."""

    source: Source
    sink: Tensor | None = None
    """Scores that take part in each row's sum and belong to no key, broadcasting to (*lead, Tq)."""
    cross: bool | None = None
    """Whether queries and keys came from different places, where the call tells."""
    below: str = ""
    """The attending module inside the one that called, where the call reaches past it."""


class Call:
    """A found call by the name of its module.

    `name` is unique within what was seen; `module` is the module's own name, the same for all its calls.
    """

    def __init__(self, module: str, found: Found, hint: Kind | None = None) -> None:
        self.module = self.name = module
        self.hint = hint
        self.query_tokens: list[str] | None = None
        self.key_tokens: list[str] | None = None
        self.sink = found.sink
        self.storage: StorageWeakRef | None = None
        """The memory in which the model held its keys when the call was seen."""
        self.source = found.source
        self.renew()

    def renew(self) -> None:
        """Take everything it refers to as it is now for what was seen."""
        self._versions = [(x, version(x)) for x in self.tensors()]
        self._map: AttentionMap | None = None
        self._kind: Kind | None = None

    def tensors(self) -> Iterator[Tensor]:
        """Everything it refers to."""
        yield from self.source.tensors()
        if self.sink is not None:
            yield self.sink

    def set(self, source: Source) -> None:
        """Tell the same, or more, from now on by other means."""
        self.source = source
        self.renew()

    @property
    def request(self) -> Request:
        """The request, (B, H, Tq, Tk), found now if it was left for later."""
        self.check()
        if not isinstance(self.source, Plain):
            with torch.no_grad():
                self.set(Plain(self.source.request()))
        return self.source.request()

    def settle(self) -> None:
        """Find what was left for later, before an optimizer moves the weights it depends on."""
        _ = self.request

    def own(self, storage: int) -> None:
        """Copy what lies in this storage: the model is about to write into it."""
        with torch.no_grad():
            self.sink = apart(self.sink, storage)
            self.set(self.source.own(storage))

    def check(self) -> None:
        """Raise RuntimeError if something was overwritten or freed that is still needed."""
        for x, known in self._versions:
            change = "overwritten in place" if version(x) != known else "freed" if freed(x) else ""
            if change:
                raise RuntimeError(
                    f"watch: a tensor of {self.name} ({'×'.join(map(str, x.shape))}) must stay as it was when the call "
                    f"was seen; it was {change} since. Pass keep='copy' to watch."
                )

    @property
    def intact(self) -> bool:
        """Whether everything it refers to is as it was when the call was seen."""
        return all(version(x) == known and not freed(x) for x, known in self._versions)

    @property
    def map(self) -> AttentionMap:
        """Its weights, lazily; the same object each time."""
        if self._map is None:
            request = self.request
            self._map = AttentionMap(request) if self.sink is None else SinkMap(request, self.sink)
        self.check()
        self._map.query_tokens, self._map.key_tokens = self.query_tokens, self.key_tokens
        return self._map

    @property
    def kind(self) -> Kind:
        if self._kind is None:
            self._kind = self.hint or kind_of(self.request)
        return self._kind


def kind_of(request: Request) -> Kind:
    """By the mask and the lengths: causal if no query may look past its own position, counted from the lower right."""
    mask, rows, cols = request.mask, request.queries, request.keys
    if mask.right == 0 or (rows > 1 and _lower(mask.dense, rows, cols)):
        return "causal"
    return "self" if rows == cols else "cross"


def _lower(dense: Tensor | None, rows: int, cols: int) -> bool:
    if dense is None or dense.shape[-2] != rows or dense.shape[-1] != cols or cols < rows:
        return False
    allowed = dense if dense.dtype == torch.bool else dense > torch.finfo(dense.dtype).min / 2
    return not bool(allowed.triu(cols - rows + 1).any())


def four(request: Request) -> Request:
    """The same with leading dimensions (B, H): one alone is taken for the batch."""
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
    """The same with queries and keys that keep no more memory than their own."""
    q, k = _compact(request.q), _compact(request.k)
    return request if q is request.q and k is request.k else replace(request, q=q, k=k)


def _compact(x: Tensor) -> Tensor:
    if x.is_meta or 0 in x.stride() or x.nbytes >= WORTH * x.untyped_storage().nbytes():
        return x
    return x.clone(memory_format=torch.contiguous_format)


def place(x: Tensor) -> int:
    """Which storage a tensor lies in; 0 where that cannot be told."""
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # no storage: sparse, functional, fake
        return 0


def storage_of(x: Tensor) -> StorageWeakRef | None:
    """A weak reference to the memory of a tensor: while it is held, no other memory compares equal."""
    try:
        return StorageWeakRef(x.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return None


def freed(x: Tensor) -> bool:
    """Whether the memory of a tensor was given back, as FSDP does with weights that it gathered for one pass."""
    return x.is_cpu and x.layout is torch.strided and bool(x.numel()) and not x.untyped_storage().nbytes()


def apart(x: Tensor | None, storage: int) -> Tensor | None:
    return x.clone() if x is not None and place(x) == storage else x


def version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version
