"""Backends and the choice between them.

A backend is a module with a `name`, a function `refusal(request)` and a function `context(request)`. `refusal` returns
the reason why the backend cannot serve a request, or None. `context` returns the context and the statistic of its rows,
or None in place of the statistic, which a map then computes itself.

`auto` selects the native kernels whenever they support the request. They were the fastest at nearly every size on every
instruction set (`python -m bench auto`). The one exception is bfloat16 on processors with AMX
(`_sdpa_is_faster`).
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
    handles_nonfinite: bool
    """Whether the backend itself ignores NaN and ∞ in masked positions, and expects reduced requests. Otherwise
    `serve_without_nonfinite` removes them, and the backend reduces the request if it needs to."""

    def refusal(self, request: Request) -> str | None: ...

    def context(self, request: Request) -> tuple[Tensor, Statistic | Tensor | None]: ...


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (native, sdpa, blocked, reference)}

LARGEST_MASK = 2**24
"""Largest mask, in pairs, that is stored for SDPA. Above it, streaming keeps memory proportional to Tq + Tk."""
AMX_PAIRS = 64 * 64
"""Fewest pairs of a head for which the AMX tiles of SDPA are faster."""
LARGEST_WEIGHTS = 2**24
"""Most weights that SDPA may store. It stores them on a CPU under dropout or if a float mask requires a gradient."""


@dataclass(frozen=True)
class Choice:
    """A backend and the reason for choosing it."""

    backend: Backend
    why: str


REQUESTED = {name: Choice(backend, "it was requested") for name, backend in BACKENDS.items()}


def choose(request: Request, name: str = "auto") -> Choice:
    """Return the backend for a request. Raises ValueError if the named backend cannot serve it."""
    if name == "auto":
        return _automatic(request)
    if name not in BACKENDS:
        raise ValueError(f"attend: backend ({name!r}) must be auto or one of {', '.join(BACKENDS)}.")
    refusal = BACKENDS[name].refusal(request)
    if refusal is not None:
        raise ValueError(f"attend: backend ({name!r}) cannot serve this request: {refusal}. Try backend='auto'.")
    return REQUESTED[name]


@cache
def _has_amx() -> bool:
    """Return whether this processor has AMX (bfloat16 tile products) and PyTorch detects it."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())


def _sdpa_is_faster(request: Request) -> bool:
    """Return whether SDPA is faster for a bfloat16 request, because it uses AMX. The kernels compute in float32.

    SDPA's backward pass and its dense masks cost more than AMX gains, and so does a call with few pairs.
    """
    if request.q.dtype != torch.bfloat16 or not _has_amx() or torch.compiler.is_compiling():
        return False
    needs_gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in request.tensors)
    if needs_gradient or not (request.mask.open or request.mask.only_causal):
        return False
    few = request.queries <= native.FEW_QUERIES or request.queries * request.keys < AMX_PAIRS
    return not few and sdpa.refusal(request) is None


def _automatic(request: Request) -> Choice:
    """Return the first backend that supports the request and stores nothing of size Tq × Tk; else `reference`."""
    if _sdpa_is_faster(request):
        return Choice(BACKENDS["torch"], "this processor has AMX, which SDPA uses for bfloat16")
    native_refusal = native.refusal(request)
    if native_refusal is None:
        return Choice(BACKENDS["native"], "the native kernels serve it")
    refusal = sdpa.refusal(request) or _too_large(request)
    if refusal is None:
        return Choice(BACKENDS["torch"], f"SDPA serves it; native: {native_refusal}")
    blocked_refusal = blocked.refusal(request)
    if blocked_refusal is None:
        return Choice(BACKENDS["blocked"], f"{refusal}; native: {native_refusal}")
    return Choice(BACKENDS["reference"], f"{refusal}; blocked: {blocked_refusal}")


def _too_large(request: Request) -> str | None:
    """Return what SDPA would store that is too large and grows with Tq × Tk, or None."""
    if torch.compiler.is_compiling() or transformed():
        return None
    if not request.mask.open and sdpa.mask_pairs(request) > LARGEST_MASK:
        return f"SDPA would need a mask of {sdpa.mask_pairs(request):,} pairs"
    stored = sdpa.stored_weights(request)
    return f"SDPA would store {stored:,} weights" if stored > LARGEST_WEIGHTS else None
