"""regard: attention with fused CPU kernels, and maps of its weights at any length."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

from .attention import Additive, AttentionMap, Bilinear, attend, attend_packed, masks
from .attention import attention_map as _map
from .core import widget_hook as _widget_hook
from .core.lazy_names import lazy_names

if TYPE_CHECKING:
    from . import data as data
    from . import explain as explain
    from . import layers as layers
    from . import lens as lens
    from . import models as models
    from . import notebook as notebook
    from . import pictures as pictures
    from . import tasks as tasks
    from . import training as training
    from .lens.captures import load_capture
    from .lens.watch import watch
    from .pictures.heatmap import show_heatmaps
    from .tasks.trained_model import load
    from .training.train_functions import (
        train_image_classifier,
        train_language_model,
        train_masked_language_model,
        train_text_classifier,
        train_translator,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".lens.captures": ["load_capture"],
            ".lens.watch": ["watch"],
            ".pictures.heatmap": ["show_heatmaps"],
            ".tasks.trained_model": ["load"],
            ".training.train_functions": [
                "train_image_classifier",
                "train_language_model",
                "train_masked_language_model",
                "train_text_classifier",
                "train_translator",
            ],
        },
        ("data", "explain", "layers", "lens", "models", "notebook", "pictures", "tasks", "training"),
    )

__version__ = "0.2.0"
__all__ = [
    "Additive",
    "AttentionMap",
    "Bilinear",
    "attend",
    "attend_packed",
    "load",
    "load_capture",
    "masks",
    "show_heatmaps",
    "train_image_classifier",
    "train_language_model",
    "train_masked_language_model",
    "train_text_classifier",
    "train_translator",
    "watch",
]


def _pictures() -> ModuleType:
    from .pictures import heatmap  # imports matplotlib, so only on demand

    return heatmap


def _display() -> ModuleType:
    from .notebook import display  # imports the server, so only on demand

    return display


_map.pictures = _pictures
_widget_hook.display = _display


class _Registration(MetaPathFinder):
    """Import hook that imports `regard.huggingface` after transformers has imported its attention interface."""

    AWAITED = "transformers.modeling_utils"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.AWAITED else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # wraps the loader of one module
        return spec

    @staticmethod
    def register() -> None:
        with contextlib.suppress(ImportError):  # a version of transformers without an attention interface
            importlib.import_module("regard.huggingface")


if _Registration.AWAITED in sys.modules:
    _Registration.register()
else:
    sys.meta_path.insert(0, _Registration())
