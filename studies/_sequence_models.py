"""Three sequence models with one interface: recurrence, 1-D convolution and self-attention.

                 sequential steps      path between the first and the last entry
    recurrent    T                     T
    convolution  layers                layers until the receptive field covers it, else none
    attention    layers                1

All map (B, T, W) and lengths (B,), default T, to (B, T, W), with zeros in padding. Vaswani et al. 2017, table 1,
compares them. `steps(T)` counts the sequential operations. `path(T)` counts the operations between the first and the
last entry; it is ∞ if the first does not reach the last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention import masks
from regard.core.tensors import shape
from regard.layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention, SinusoidalPosition
from regard.layers.recurrent import cell_class, run_rnn


class Recurrent(nn.Module):
    """Bidirectional GRU or LSTM layers, half of the width in each direction (Schuster and Paliwal 1997).

    >>> model = Recurrent(8)
    >>> tuple(model(torch.randn(2, 5, 8), torch.tensor([5, 3])).shape), model.steps(5), model.path(5)
    ((2, 5, 8), 5, 5)
    """

    def __init__(self, width: int, layers: int = 1, *, cell: str = "gru", dropout: float = 0.0) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"recurrent: width ({width}) must be even, half for each direction; try {width + 1}.")
        self.width, self.layers = width, layers
        kind = cell_class("recurrent", cell)
        self.rnn = nn.ModuleList(kind(width, width // 2, batch_first=True, bidirectional=True) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        for rnn in self.rnn:
            if lengths is None:
                y = run_rnn(rnn, x)[0]  # (B, T, W)
            else:
                packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
                y = pad_packed_sequence(run_rnn(rnn, packed)[0], batch_first=True, total_length=length)[0]
            x = self.dropout(y)
        return x

    def steps(self, length: int) -> int:
        return length * self.layers

    def path(self, length: int) -> float:
        return length


class Convolution(nn.Module):
    """Residual layers of dilated 1-D convolutions. The dilation doubles from layer to layer.

        x ← x + dropout(relu(conv(norm(x)))),  dilated by 1, 2, 4, …

    Paper: van den Oord et al. 2016, section 2.1, but not causal; Bai et al. 2018.

    >>> model = Convolution(8, 2, kernel=3)
    >>> tuple(model(torch.randn(2, 5, 8), torch.tensor([5, 3])).shape), model.steps(5), model.path(4), model.path(9)
    ((2, 5, 8), 2, 2, inf)
    """

    def __init__(self, width: int, layers: int = 1, *, kernel: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"convolution: kernel ({kernel}) must be odd to be symmetric; try {kernel + 1}.")
        self.width, self.layers, self.kernel = width, layers, kernel
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, kernel, padding=(kernel // 2) * 2**layer, dilation=2**layer)
            for layer in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        valid = _valid(x, lengths)  # (B, T, 1)
        x = _cleared(x, valid)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            y = _cleared(norm(x), valid)  # zero the padding after the end, like the zero padding before the start
            x = x + self.dropout(F.relu(convolution(y.transpose(1, 2)).transpose(1, 2)))
        return _cleared(x, valid)

    def steps(self, length: int) -> int:
        return self.layers

    def path(self, length: int) -> float:
        reach, layers = 0, 0
        while layers < self.layers and reach < length - 1:
            reach += (self.kernel // 2) * 2**layers
            layers += 1
        return max(1, layers) if reach >= length - 1 else math.inf


class SelfAttention(nn.Module):
    """Encoder blocks over entries with position encodings (Vaswani et al. 2017, section 3.1).

    >>> model = SelfAttention(8, 2, heads=2)
    >>> tuple(model(torch.randn(2, 5, 8), torch.tensor([5, 3])).shape), model.steps(5), model.path(5)
    ((2, 5, 8), 2, 1)
    """

    def __init__(self, width: int, layers: int = 1, *, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.layers = width, layers
        self.position = SinusoidalPosition(width)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                MultiHeadAttention(width, heads), FeedForward(width, 4 * width), norm_first=True, dropout=dropout
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        valid = _valid(x, lengths)  # (B, T, 1)
        x = self.position(_cleared(x, valid))
        for block in self.blocks:
            x = block(x, lengths=lengths)
        return _cleared(self.norm(x), valid)

    def steps(self, length: int) -> int:
        return self.layers

    def path(self, length: int) -> float:
        return 1


def _valid(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    if lengths is None:
        return None
    if lengths.shape != x.shape[:1]:
        raise ValueError(f"sequence: lengths ({shape(lengths)}) must be one per sequence of x ({shape(x)}).")
    return masks.padding(lengths, x.shape[1]).unsqueeze(-1)  # (B, T, 1)


def _cleared(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else torch.where(valid, x, 0)
