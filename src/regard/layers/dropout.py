"""Dropout with 8 random bits per element. It takes at most a quarter of the time of one random number per element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..attention.native.fused import LEVELS, LOWEST
from ..core.tensors import batched
from ..core.typed_call import same_type


class Dropout(nn.Module):
    """Zero random elements in training, and scale the others so that the mean is preserved.

        y = x · keep / (1 − p′),   keep ~ Bernoulli(1 − p′),   p′ = p rounded to 1/256

    Shapes: any. The scale uses p′, so that the mean is exact. The random numbers come from PyTorch's generator: the
    same seed, or generator state, gives the same mask.
    Paper: Srivastava et al. 2014. Differs from `nn.Dropout`: p is rounded (0.1 becomes 0.1016), and the same seed gives
    another mask. On a CPU, PyTorch draws the numbers one after another in one thread, 10 ns each, which is a tenth of
    the time of a training step. Here eight elements share two draws.

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
        """Number of byte values that drop their element."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.dropped:
            return x
        # compilers and other devices fuse the random numbers; dropping everything needs none
        if torch.compiler.is_compiling() or x.device.type != "cpu" or self.dropped == LEVELS:
            return nn.functional.dropout(x, self.dropped / LEVELS)
        result: Tensor = _Drop.apply(x, self.dropped)  # type: ignore[no-untyped-call]  # torch declares no types
        return result

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Drop(torch.autograd.Function):
    """Dropout that saves only the mask, one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        count = x.numel()
        # start at the lowest int64, so that all 64 bits are random; random_() would leave the sign bits at 0
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
    """Return x · keep · scale. Cast first: the product of a float and a byte tensor is not vectorized."""
    factors = keep.to(x.dtype)
    return factors * x * scale if batched(x) else factors.mul_(x).mul_(scale)
