"""Import optional packages that benchmarks compare with, without making them visible to other imports."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(sys.prefix) / "peers"
"""Folder where the setup installs timm and the torchvision that it needs.

The torchvision of the package index has CUDA kernels, which cannot be loaded with a CPU-only torch. If it were on the
normal path, transformers would import it and fail.
"""
_declared: list[torch.library.Library] = []


def installed(name: str) -> bool:
    """Return whether `load` can import a package."""
    with _peers_on_path(name):
        return importlib.util.find_spec(name) is not None


def load(name: str) -> Any:
    """Import a package such as timm or transformers; raise ImportError if it is not installed.

    timm and transformers import torchvision if it is installed. That import fails on operators that the missing
    kernels would define, so they are declared here. The models compared never call them.
    """
    with _peers_on_path(name):
        if importlib.util.find_spec("torchvision") and not _declared:
            try:
                importlib.import_module("torchvision")
            except RuntimeError:
                library = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                _declared.append(library)
        return importlib.import_module(name)


@contextmanager
def _peers_on_path(name: str) -> Iterator[None]:
    """For timm, also search `FOLDER`. Afterwards, hide the torchvision found there from other packages."""
    if name != "timm" or importlib.util.find_spec("timm"):
        yield
        return
    sys.path.append(str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        for module in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
            if str(getattr(sys.modules[module], "__file__", None)).startswith(str(FOLDER)):
                del sys.modules[module]
