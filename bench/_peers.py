"""Packages of others, for comparison: what may be absent, and what must not be on the path of everything else."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

APART = Path(sys.prefix) / "peers"
"""Where set-up installs timm and the torchvision it needs.

The torchvision of the package index has kernels for CUDA, which do not load beside a torch without CUDA. transformers
imports torchvision wherever it is installed, and would fail too.
"""
_declared: list[torch.library.Library] = []


def installed(name: str) -> bool:
    """Whether `load` can import a package."""
    with _searched(name):
        return importlib.util.find_spec(name) is not None


def load(name: str) -> Any:
    """Import a package such as timm or transformers; raises ImportError if it is not installed.

    timm and transformers import torchvision if there is one, and the import ends at operators that its kernels would
    define. They are declared here; the models compared never call them.
    """
    with _searched(name):
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
def _searched(name: str) -> Iterator[None]:
    """For timm, search `APART` too; afterwards no other package sees the torchvision there."""
    if name != "timm" or importlib.util.find_spec("timm"):
        yield
        return
    sys.path.append(str(APART))
    try:
        yield
    finally:
        sys.path.remove(str(APART))
        for module in [key for key in sys.modules if key.partition(".")[0] == "torchvision"]:
            if str(getattr(sys.modules[module], "__file__", None)).startswith(str(APART)):
                del sys.modules[module]
