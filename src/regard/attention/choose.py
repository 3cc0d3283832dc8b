"""Backends and the choice between them.

A backend is a module with a `name`, a `refusal(request)`, which says in words why it cannot serve (or None), and a
`context(request)`, which returns the context and the statistic of its rows (or None, when a map is to find it itself).

`auto` takes what was measured to be the fastest near the request (`measured.py`); where the table does not speak of
it, the first that serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from . import blocked, native, native_observe, observe, reference, sdpa
from .masks import OPEN, transformed
from .measured import KINDS, Line, nearest
from .request import Request
from .similarity import Dot
from .statistic import Statistic


class Backend(Protocol):
    name: str
    isolates: bool
    """Whether it leaves out by itself what is masked and not finite; else `isolated` does it."""

    def refusal(self, request: Request) -> str | None: ...

    def context(self, request: Request) -> tuple[Tensor, Statistic | Tensor | None]: ...


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (native, sdpa, blocked, reference)}

LARGEST_MASK = 2**24
"""Pairs of a mask that may be stored for SDPA's sake. Beyond it, streaming keeps memory in proportion to Tq + Tk."""
LARGEST_WEIGHTS = 2**24
"""Weights that SDPA may store, as it does on a CPU under dropout or for a float mask that wants a gradient."""


LARGEST_EXPLICIT = 2**20
"""Weights that `reference` may store where it was measured to be the fastest: 4 MiB."""


@dataclass(frozen=True)
class Choice:
    backend: Backend
    why: str


ASKED = {name: Choice(backend, "it was asked for") for name, backend in BACKENDS.items()}


def choose(request: Request, name: str = "auto") -> Choice:
    """The backend for a request; raises ValueError when the one that was named cannot serve it."""
    if name == "auto":
        return _fastest(request) or _first(request)
    if name not in BACKENDS:
        raise ValueError(f"attend: backend ({name!r}) must be auto or one of {', '.join(BACKENDS)}.")
    refusal = BACKENDS[name].refusal(request)
    if refusal is not None:
        raise ValueError(f"attend: backend ({name!r}) cannot serve this request: {refusal}. Try backend='auto'.")
    return ASKED[name]


def observer(request: Request, statistic: Statistic | None = None) -> ModuleType:
    """Who computes the views of a map: a module with the verbs of `observe`; `statistic` where a view takes it."""
    return observe if native_observe.refusal(request, statistic) else native_observe


def _fastest(request: Request) -> Choice | None:
    """What was measured to be the fastest; None for a request that the table does not speak of."""
    line = _line(request)
    if line is None:
        return None
    for name in line.order:
        if name == "reference" and not _explicit(request):
            continue
        if BACKENDS[name].refusal(request) is None:
            return _measured(name, line)
    return None


def _explicit(request: Request) -> bool:
    """Whether `reference` may serve: its weights are few, and its keys not repeated for heads that share them."""
    return request.groups == 1 and request.entries * request.queries * request.keys <= LARGEST_EXPLICIT


@cache
def _measured(name: str, line: Line) -> Choice:
    return Choice(BACKENDS[name], line.words)


def _line(request: Request) -> Line | None:
    """The table is for dot products with an open or a causal mask, on the CPU. While tracing, sizes may be symbols."""
    q, mask = request.q, request.mask
    plain = isinstance(request.similarity, Dot) and request.softcap is None and not (request.hard or request.dropout_p)
    if not plain or not (mask is OPEN or mask.only_causal) or not (q.is_cpu or q.is_meta):
        return None
    kind = KINDS.get(q.dtype)
    if kind is None or torch.compiler.is_compiling() or transformed():
        return None
    wanted = q.requires_grad or request.k.requires_grad or request.value.requires_grad
    *_, queries, width = q.shape
    gradient = wanted and torch.is_grad_enabled()
    return nearest(kind, mask is not OPEN, gradient, request.entries, queries, request.keys, width)


def _first(request: Request) -> Choice:
    """The first that serves, of those that store nothing that grows with Tq × Tk."""
    unserved = native.refusal(request)
    if unserved is None:
        return Choice(BACKENDS["native"], "the native kernels serve it")
    refusal = sdpa.refusal(request) or _too_large(request)
    if refusal is None:
        return Choice(BACKENDS["torch"], f"SDPA serves it; native: {unserved}")
    streaming = blocked.refusal(request)
    if streaming is None:
        return Choice(BACKENDS["blocked"], f"{refusal}; native: {unserved}")
    return Choice(BACKENDS["reference"], f"{refusal}; blocked: {streaming}")


def _too_large(request: Request) -> str | None:
    """Where SDPA would store what grows with Tq × Tk."""
    if torch.compiler.is_compiling() or transformed():
        return None
    if not request.mask.open and sdpa.mask_pairs(request) > LARGEST_MASK:
        return f"SDPA would need a mask of {sdpa.mask_pairs(request):,} pairs"
    stored = sdpa.stored_weights(request)
    return f"SDPA would store {stored:,} weights" if stored > LARGEST_WEIGHTS else None
