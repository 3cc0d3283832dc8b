"""Show an observer, such as `regard.watch`, attention that a decoder computed without calling `attend`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_variadic


@dataclass(frozen=True, eq=False)
class DecodingStep:
    """Attention of all layers of a decoder to their caches. One object describes all steps with the same memory."""

    modules: tuple[nn.Module, ...]
    queries: tuple[Tensor, ...]
    """(B, H, 1, D) for each module. The next step overwrites them."""
    caches: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values, (B, Hkv, capacity, D), for each module. A step adds one position."""
    options: tuple[Mapping[str, object], ...]
    """Other arguments of `attend`, for each module."""


def report_step(step: DecodingStep, length: int) -> None:
    """Show an observer all calls of a step. Each query attends to the first `length` keys, unless a window is set."""
    if has_torch_function_variadic(*step.queries[:1]):
        handle_torch_function(report_step, step.queries[:1], step, length)
