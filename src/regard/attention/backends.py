"""Backends and the choice between them.

A backend is a module with a `name`, a `refusal(request)`, which says in words why it cannot serve (or None), and a
`context(request)`, which returns the context and the statistic of its rows (or None, when a map is to find it itself).

`auto` takes the native kernels wherever they serve, as they were the fastest at nearly every size on every instruction
set (`python -m bench auto`). The one exception is a rule about the processor, not about sizes: see `_sdpa_is_faster`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from ..core.tensors import transformed
from . import blocked, reference, sdpa
from .native import backend as native
from .request import Request
from .statistic import Statistic


class Backend(Protocol):
    name: str
    isolates: bool
    """Whether it leaves out by itself what is masked and not finite, and takes requests that are reduced; else
    `isolated` does the first, and the backend reduces a request where it needs to."""

    def refusal(self, request: Request) -> str | None: ...

    def context(self, request: Request) -> tuple[Tensor, Statistic | Tensor | None]: ...


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (native, sdpa, blocked, reference)}

LARGEST_MASK = 2**24
"""Pairs of a mask that may be stored for SDPA's sake. Beyond it, streaming keeps memory in proportion to Tq + Tk."""
LARGEST_WEIGHTS = 2**24
"""Weights that SDPA may store, as it does on a CPU under dropout or for a float mask that wants a gradient."""


@dataclass(frozen=True)
class Choice:
    backend: Backend
    why: str


ASKED = {name: Choice(backend, "it was asked for") for name, backend in BACKENDS.items()}


def choose(request: Request, name: str = "auto") -> Choice:
    """The backend for a request; raises ValueError when the one that was named cannot serve it."""
    if name == "auto":
        return _automatic(request)
    if name not in BACKENDS:
        raise ValueError(f"attend: backend ({name!r}) must be auto or one of {', '.join(BACKENDS)}.")
    refusal = BACKENDS[name].refusal(request)
    if refusal is not None:
        raise ValueError(f"attend: backend ({name!r}) cannot serve this request: {refusal}. Try backend='auto'.")
    return ASKED[name]


@cache
def _has_amx() -> bool:
    """Whether this processor multiplies tiles of bfloat16 in hardware (AMX), and PyTorch knows it."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())


def _sdpa_is_faster(request: Request) -> bool:
    """bfloat16 on a processor with AMX: SDPA's products use its tiles; the native kernels compute in float32."""
    if request.q.dtype != torch.bfloat16 or not _has_amx():
        return False
    return sdpa.refusal(request) is None and _too_large(request) is None


def _automatic(request: Request) -> Choice:
    """The first that serves, of those that store nothing that grows with Tq × Tk."""
    if _sdpa_is_faster(request):
        return Choice(BACKENDS["torch"], "this processor has AMX, which SDPA uses for bfloat16")
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
