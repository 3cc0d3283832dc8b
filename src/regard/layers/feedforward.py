"""Feed-forward layers, applied to each position separately."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from ..core.messages import check_sizes
from ..core.typed_call import same_type
from .dropout import Dropout

Activation = Callable[[Tensor], Tensor]
"""An elementwise function or module."""


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, the same at every position.

        y = W₂ · dropout(activation(W₁·x + b₁)) + b₂

    Shapes: (..., W) → (..., hidden) → (..., W). `up` is W₁, `down` is W₂.
    Paper: Vaswani et al. 2017, section 3.3. Raises ValueError for a size below 1.

    >>> import torch
    >>> tuple(FeedForward(6, 24, activation=torch.nn.functional.gelu)(torch.randn(2, 5, 6)).shape)
    (2, 5, 6)
    """

    def __init__(
        self, width: int, hidden: int, *, activation: Activation = F.relu, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes("feedforward", width=width, hidden=hidden)
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.activation(self.up(x)))  # (..., hidden)
        result: Tensor = self.down(x)  # (..., W)
        return result

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


class GatedFeedForward(nn.Module):
    """A feed-forward layer in which an activated projection gates another one.

        y = W₂ · dropout(activation(V·x) ⊙ W₁·x)

    Shapes: (..., W) → (..., hidden) → (..., W). `gate` is V, `up` is W₁, `down` is W₂.
    SwiGLU with the default activation; GEGLU with gelu, GLU with sigmoid, ReGLU with relu.
    Paper: Shazeer 2020, section 2, equation 6, where our `gate` is W and our `up` is V.

    >>> import torch
    >>> tuple(GatedFeedForward(6, 16)(torch.randn(2, 5, 6)).shape)
    (2, 5, 6)
    """

    def __init__(
        self, width: int, hidden: int, *, activation: Activation = F.silu, bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes("feedforward", width=width, hidden=hidden)
        self.gate = nn.Linear(width, hidden, bias)
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.activation(self.gate(x)) * self.up(x))  # (..., hidden)
        result: Tensor = self.down(x)  # (..., W)
        return result

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...
