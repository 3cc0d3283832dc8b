"""regard: attention in every form the field uses, at fused-kernel speed, and visible at any size."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import _register
from .attention import Additive, AttentionMap, Bilinear, attend, attend_packed, masks
from .attention import map as _map

__version__ = "0.1.0"
__all__ = [
    "Additive",
    "AttentionMap",
    "Bilinear",
    "attend",
    "attend_packed",
    "load_capture",
    "masks",
    "show_heatmaps",
    "watch",
]


def _pictures() -> ModuleType:
    from .view import heatmap  # imports matplotlib: only when a picture is asked for

    return heatmap


_map.pictures = _pictures

_register.after_import("transformers.modeling_utils", "regard.huggingface")


def __getattr__(name: str) -> Any:
    if name == "show_heatmaps":
        return _pictures().show_heatmaps
    if name == "watch":
        from .view.watch import watch

        return watch
    if name == "load_capture":
        from .view.capture import load_capture

        return load_capture
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
