"""The loss of predicting tokens: the last layer and the cross-entropy in one, block by block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 256
"""Positions of a block: with 8,000 words its logits take 8 MB, which the cache keeps from product to gradient."""


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Σₙ −log softmax(W·hₙ + b)[wantedₙ], summed over the positions.

    With smoothing ε the wanted word has probability 1 − ε and all V share ε (Szegedy et al. 2016, section 7).
    Shapes: hidden (N, W), weight (V, W), bias (V,) or None, wanted (N,) → ().
    The logits (N, V) are never stored: each block gives its loss and its gradient at once, while it is in the cache.
    First derivatives only.

    >>> hidden, weight, wanted = torch.randn(5, 3), torch.randn(7, 3), torch.tensor([1, 6, 0, 2, 2])
    >>> plain = F.cross_entropy(hidden @ weight.T, wanted, reduction="sum", label_smoothing=0.1)
    >>> torch.allclose(cross_entropy(hidden, weight, None, wanted, 0.1), plain)
    True
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"cross-entropy: smoothing ({smoothing}) must lie in [0, 1): the share all words have.")
    if hidden.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        logits = F.linear(hidden, weight, bias)  # (N, V): elsewhere PyTorch's own are made for it
        return F.cross_entropy(logits.float(), wanted, reduction="sum", label_smoothing=smoothing)
    return _CrossEntropy.apply(hidden, weight, bias, wanted, smoothing)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, smoothing: float
    ) -> Tensor:
        learns = any(ctx.needs_input_grad)
        grads = [torch.zeros_like(x) if learns and x is not None else None for x in (hidden, weight, bias)]
        total = hidden.new_zeros(())
        for start in range(0, len(hidden), ROWS):
            rows = slice(start, start + ROWS)
            loss, excess = _block(F.linear(hidden[rows], weight, bias), wanted[rows, None], smoothing, learns)
            total += loss
            if excess is not None:
                _add_gradients(grads, rows, excess, hidden[rows], weight)
        ctx.save_for_backward(*grads)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if x is None else x * grad for x in ctx.saved_tensors), None, None


def _block(logits: Tensor, wanted: Tensor, smoothing: float, learns: bool) -> tuple[Tensor, Tensor | None]:
    """Loss of a block and, in the memory of its logits (n, V), softmax minus what is wanted."""
    share = smoothing / logits.shape[1]
    highest = logits.amax(1, keepdim=True)  # (n, 1)
    target = (1 - smoothing) * logits.gather(1, wanted) + share * logits.sum(1, keepdim=True)  # (n, 1)
    e = logits.sub_(highest).exp_()  # (n, V)
    total = e.sum(1, keepdim=True)  # (n, 1)
    loss = (highest + total.log() - target).sum()
    if not learns:
        return loss, None
    excess = e.div_(total).sub_(share)
    return loss, excess.scatter_add_(1, wanted, torch.full_like(total, smoothing - 1))


def _add_gradients(grads: list[Tensor | None], rows: slice, excess: Tensor, hidden: Tensor, weight: Tensor) -> None:
    of_hidden, of_weight, of_bias = grads
    assert of_hidden is not None and of_weight is not None
    torch.mm(excess, weight, out=of_hidden[rows])  # (n, W)
    of_weight.addmm_(excess.T, hidden)  # (V, W)
    if of_bias is not None:
        of_bias += excess.sum(0)  # (V,)
