"""Products of many rows with the weights of a linear layer, without gradients, by oneDNN or by PyTorch's operators."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from .fused import are_dense

Epilogue = Literal["store", "add", "gate"]
EPILOGUES: tuple[Epilogue, ...] = ("store", "add", "gate")
"""Uses of a product: y = product, y += product, or y = silu(gate) · up for weights [gate; up]."""


def linear_(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, epilogue: Epilogue = "store") -> None:
    """Write x·Wᵀ + bias, followed by `epilogue`, to y: (N, in), (out, in), (out,) → (N, out).

    For a gate: weight (2·out, in), bias (2·out,). PyTorch's own product of two float32 matrices uses MKL. On an AMD
    EPYC with AVX-512, oneDNN takes 0.9 of its time, and includes the sum or the gate.

    >>> y = torch.ones(1, 2)
    >>> linear_(torch.ones(1, 3), torch.eye(2, 3), None, y, "add")
    >>> y
    tensor([[2., 2.]])
    """
    if epilogue == "gate":
        (gate, up), biases = weight.tensor_split(2), (None, None) if bias is None else bias.tensor_split(2)
        if _onednn_serves(x, weight, y):
            gated = onednn().default(x, gate, biases[0], "swish", [], "")  # (N, out)
            y.copy_(onednn().binary(x, gated, up, biases[1], "mul"))
        else:
            torch.mul(F.silu(F.linear(x, gate, biases[0]), inplace=True), F.linear(x, up, biases[1]), out=y)
    elif _onednn_serves(x, weight, y):
        if epilogue == "add":
            y.copy_(onednn().binary(x, y, weight, bias, "add"))
        else:
            y.copy_(onednn().default(x, weight, bias, "none", [], ""))
    elif epilogue == "add":
        y.addmm_(x, weight.T)
        if bias is not None:
            y.add_(bias)
    elif bias is None:
        torch.mm(x, weight.T, out=y)
    else:
        torch.addmm(bias, x, weight.T, out=y)


def onednn() -> Any:
    """Return PyTorch's operator for a linear layer of oneDNN, or None if it is missing, disabled or slow here.

    It is what `torch.compile` uses for frozen weights. With SSE only, MKL is faster.
    """
    return _operator() if torch.backends.mkldnn.enabled else None


@cache
def _operator() -> Any:
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return operator if operator is not None and {"default", "binary"} <= set(operator.overloads()) else None


def _onednn_serves(*tensors: Tensor) -> bool:
    return onednn() is not None and are_dense(*tensors)
