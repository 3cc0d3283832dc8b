"""Cross-entropy of token predictions: the last linear layer and the loss fused, block by block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 256
"""Number of positions in a block. With 8,000 words the logits take 8 MB and stay in the CPU cache."""


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Compute Σₙ −log softmax(W·hₙ + b)[labelsₙ], summed over the positions.

    With smoothing ε, the correct word has probability 1 − ε and all V words share ε (Szegedy et al. 2016, section 7).
    Shapes: hidden (N, W), weight (V, W), bias (V,) or None, labels (N,) → ().
    The logits (N, V) are never stored. Each block computes its loss and gradient while its logits are in the cache.
    Under create_graph=True the backward pass stores the logits.

    >>> hidden, weight, labels = torch.randn(5, 3), torch.randn(7, 3), torch.tensor([1, 6, 0, 2, 2])
    >>> plain = F.cross_entropy(hidden @ weight.T, labels, reduction="sum", label_smoothing=0.1)
    >>> torch.allclose(cross_entropy(hidden, weight, None, labels, 0.1), plain)
    True
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"cross-entropy: smoothing ({smoothing}) must lie in [0, 1): the share of all words.")
    if hidden.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        logits = F.linear(hidden, weight, bias)  # (N, V): PyTorch's own kernel is fast on other devices
        return F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=smoothing)
    if not torch.is_grad_enabled():  # needs_input_grad of a function ignores this mode
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    result: Tensor = _CrossEntropy.apply(hidden, weight, bias, labels, smoothing)  # type: ignore[no-untyped-call]  # torch declares no types
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        grads = [torch.zeros_like(x) if needs_grad and x is not None else None for x in (hidden, weight, bias)]
        total = hidden.new_zeros(())
        for start in range(0, len(hidden), ROWS):
            rows = slice(start, start + ROWS)
            loss, residual = _block(F.linear(hidden[rows], weight, bias), labels[rows, None], smoothing, needs_grad)
            total += loss
            if residual is not None:
                _add_gradients(grads, rows, residual, hidden[rows], weight)
        ctx.save_for_backward(*grads, hidden, weight, bias, labels)
        ctx.smoothing = smoothing
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *grads, hidden, weight, bias, labels = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *(None if x is None else x * grad for x in grads), None, None
        # under create_graph=True the gradients need a graph of their own; views, so that no input is part of another's
        inputs = [x if x is None else x.view_as(x) for x in (hidden, weight, bias)]
        needed_grads = zip(inputs, ctx.needs_input_grad[:3], strict=True)
        wanted = [x for x, needed in needed_grads if x is not None and needed]
        logits = F.linear(*inputs)  # type: ignore[arg-type]  # only the bias may be None
        loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=ctx.smoothing)
        gradients = dict(zip(map(id, wanted), torch.autograd.grad(loss, wanted, grad, create_graph=True), strict=True))
        return *(gradients.get(id(x)) for x in inputs), None, None


def _block(logits: Tensor, labels: Tensor, smoothing: float, needs_grad: bool) -> tuple[Tensor, Tensor | None]:
    """Return the loss of a block, and softmax minus target probabilities, in the memory of the logits (n, V)."""
    share = smoothing / logits.shape[1]
    highest = logits.amax(1, keepdim=True)  # (n, 1)
    target = (1 - smoothing) * logits.gather(1, labels) + share * logits.sum(1, keepdim=True)  # (n, 1)
    e = logits.sub_(highest).exp_()  # (n, V)
    total = e.sum(1, keepdim=True)  # (n, 1)
    loss = (highest + total.log() - target).sum()
    if not needs_grad:
        return loss, None
    residual = e.div_(total).sub_(share)
    return loss, residual.scatter_add_(1, labels, torch.full_like(total, smoothing - 1))


def _add_gradients(grads: list[Tensor | None], rows: slice, residual: Tensor, hidden: Tensor, weight: Tensor) -> None:
    hidden_grad, weight_grad, bias_grad = grads
    assert hidden_grad is not None and weight_grad is not None
    torch.mm(residual, weight, out=hidden_grad[rows])  # (n, W)
    weight_grad.addmm_(residual.T, hidden)  # (V, W)
    if bias_grad is not None:
        bias_grad += residual.sum(0)  # (V,)
