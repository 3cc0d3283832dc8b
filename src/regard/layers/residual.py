"""Residual connections: the sum and the norm around each part of a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from torch import Tensor, nn

from ..attention import AttentionMap, PackedMaps
from ..attention.native import fused
from ..attention.native.fused import LEVELS
from ..core.tensors import is_unmodified
from ..core.typed_call import same_type
from .dropout import Dropout

Part: TypeAlias = Callable[..., Tensor | tuple[Tensor, AttentionMap | PackedMaps]]
"""A part of a block, such as a `MultiHeadAttention`: it returns its output, or (output, map)."""


def add_norm(x: Tensor, part: Tensor, dropout: Dropout, norm: nn.Module) -> Tensor:
    """Compute norm(x + dropout(part)), for tensors (..., W).

    >>> import torch
    >>> x, part = torch.randn(2, 5, 6)
    >>> norm = nn.LayerNorm(6)
    >>> torch.allclose(add_norm(x, part, Dropout(0.0), norm), norm(x + part), atol=1e-6)
    True
    """
    return add_and_norm(x, part, dropout, norm, keep_sum=False)[1]


def add_norm_(x: Tensor, part: Tensor, bias: Tensor, norm: nn.Module) -> Tensor:
    """Compute norm(x + part + bias) without gradient, in the memory of `part`: (N, W), (N, W), (W,) → (N, W)."""
    if not _fusable(norm) or not fused.served(x, part, bias, norm.weight, norm.bias):
        return part.copy_(norm(x + part + bias))
    return fused.add_norm_(x, part, bias, norm.weight, norm.bias, norm.eps)


def add_and_norm(
    x: Tensor, part: Tensor, dropout: Dropout, norm: nn.Module, *, keep_sum: bool = True
) -> tuple[Tensor, Tensor]:
    """Return x + dropout(part) and its norm, (..., W) each. If `keep_sum` is False, the first result is undefined."""
    all_dropped = dropout.training and dropout.dropped == LEVELS
    if (
        x.shape != part.shape
        or all_dropped
        or not (_fusable(norm) and is_unmodified(dropout, Dropout))
        or not fused.served(x, part, norm.weight, norm.bias)
    ):
        x = x + dropout(part)
        return x, norm(x)
    dropped = dropout.dropped if dropout.training else 0
    return fused.add_norm(x, part, norm.weight, norm.bias, epsilon=norm.eps, dropped=dropped, keep_sum=keep_sum)


def _fusable(norm: nn.Module) -> TypeGuard[nn.LayerNorm]:
    """Return whether `norm` is a plain layer norm over the last dimension, with weight and bias."""
    if not isinstance(norm, nn.LayerNorm) or not is_unmodified(norm, nn.LayerNorm):
        return False
    return norm.weight is not None and norm.bias is not None and norm.weight.ndim == 1


class Residual(nn.Module):
    """A residual connection around a part of a block.

        after:  norm(x + dropout(part(x)))      (Vaswani et al. 2017, section 5.4)
        before: x + dropout(part(norm(x)))      (Xiong et al. 2020, figure 1)

    Returns the new x and the second output of the part, such as a map, or None.

    >>> import torch
    >>> around = Residual(nn.Identity(), norm_first=True)
    >>> around(torch.ones(3), lambda x: 2 * x)
    (tensor([3., 3., 3.]), None)

    The same in two steps, around a part that is computed elsewhere:

    >>> x = torch.ones(3)
    >>> around.after(x, 2 * around.before(x))
    tensor([3., 3., 3.])
    """

    def __init__(self, norm: nn.Module, *, norm_first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.norm_first, self.dropout = norm, norm_first, Dropout(dropout)

    def forward(
        self, x: Tensor, part: Part, *inputs: object, **options: object
    ) -> tuple[Tensor, AttentionMap | PackedMaps | None]:
        """Return the new x, and the map of the part if it returns one."""
        y, attention_map = part_result(part(self.before(x), *inputs, **options))
        return self.after(x, y), attention_map

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the part."""
        normalized: Tensor = self.norm(x) if self.norm_first else x
        return normalized

    def after(self, x: Tensor, y: Tensor, *, fuse: bool = True) -> Tensor:
        """Return the new x from the output y of the part. fuse: use one kernel for dropout, sum and norm if it can."""
        if fuse and not self.norm_first:
            return add_norm(x, y, self.dropout, self.norm)
        x = x + self.dropout(y)
        normalized: Tensor = x if self.norm_first else self.norm(x)
        return normalized


def part_result(result: Any) -> tuple[Tensor, Any]:
    """Return (output, map) from the result of a part, which is both or only the output."""
    return result if isinstance(result, tuple) else (result, None)
