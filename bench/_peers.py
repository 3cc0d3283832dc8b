"""Vision Transformers of others, for comparison."""

import importlib
import importlib.util
from typing import Any

import torch

_declared: list[torch.library.Library] = []


def load(name: str) -> Any:
    """A package that may not be there, such as timm or transformers; raises ImportError where it is not.

    Both import torchvision if it is installed, and the one of the package index has kernels for CUDA: beside a torch
    without, they do not load, and the import ends at operators that nobody defined. Declared, they are never called.
    """
    if importlib.util.find_spec("torchvision") and not _declared:
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(library)
    return importlib.import_module(name)
