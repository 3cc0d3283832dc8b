"""Dropout whose mask takes 8 random bits an element, a quarter of the time or less of drawing a number for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention.native.fused import LEVELS, LOWEST


class Dropout(nn.Module):
    """Zeroes elements at random in training, and scales the others so that the mean stays.

        y = x · keep / (1 − p′),   keep ~ Bernoulli(1 − p′),   p′ = p rounded to 1/256

    Shapes: any. The scale is that of p′, so that the mean is exact. The random numbers come from PyTorch's generator:
    the same seed, or state of the generator, gives the same mask.
    Paper: Srivastava et al. 2014. Differs from `nn.Dropout`: p is rounded (0.1 is 0.1016) and the mask is another for
    the same seed. On a CPU PyTorch draws one number after the other on one thread, 10 ns each,
    which is a tenth of the time of a training step; here eight elements share two draws.

    >>> _ = torch.manual_seed(0)
    >>> Dropout(0.5)(torch.ones(8)).unique()
    tensor([0., 2.])
    >>> Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout: p ({p}) must lie in [0, 1]: it is the share of elements dropped.")
        self.p = p
        self.dropped = round(p * LEVELS)
        """Values of a byte that drop their element."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.dropped:
            return x
        # what traces, and other devices, have kernels that fuse the draw; all or nothing needs none
        if torch.compiler.is_compiling() or x.device.type != "cpu" or self.dropped == LEVELS:
            return nn.functional.dropout(x, self.dropped / LEVELS)
        return _Drop.apply(x, self.dropped)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Drop(torch.autograd.Function):
    """It keeps the mask alone, a byte an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        count = x.numel()
        # from the lowest number on: all 64 bits are random, where random_() would leave each eighth sign bit at 0
        drawn = torch.empty(-(-count // 8), dtype=torch.int64).random_(LOWEST, None)
        keep = drawn.view(torch.uint8)[:count].view(x.shape).ge_(dropped)
        ctx.save_for_backward(keep)
        ctx.scale = LEVELS / (LEVELS - dropped)
        return _masked(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return _masked(grad, keep, ctx.scale), None


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x · keep · scale. Cast first: a product of a float and a byte is not vectorised."""
    return keep.to(x.dtype).mul_(x).mul_(scale)
