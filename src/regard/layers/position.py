"""Positional encodings: attention is independent of the order of its inputs, so each entry gets its position.

    SinusoidalPosition, LearnedPosition    added to embeddings, once, before the first block
    RotaryPosition                         rotates queries and keys, in every block: MultiHeadAttention(position=...)

All take an `offset`, the position of the first entry: a number, or one per batch entry. It is negative for sequences
padded on the left. No table is a buffer: converting a module to another dtype does not reduce the precision of its
angles, and checkpoints do not contain them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..core.messages import check_sizes
from ..core.tensors import dtype, shape, traced
from ..core.typed_call import same_type

Layout: TypeAlias = Literal["interleaved", "halves"]
Offset: TypeAlias = int | Tensor
Bands: TypeAlias = tuple[float, float, int]
PRECISIONS = (torch.float32, torch.float64)

_LAYOUTS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Callable[[Tensor, Tensor], Tensor]]] = {
    "interleaved": (lambda x: (x[..., 0::2], x[..., 1::2]), lambda a, b: torch.stack((a, b), -1).flatten(-2)),
    "halves": (lambda x: x.tensor_split(2, -1), lambda a, b: torch.cat((a, b), -1)),  # type: ignore[dict-item, return-value]  # two parts of a split into two
}
"""Functions that split a vector of width W into W/2 pairs, and that join the pairs again."""


def sinusoids(position: Tensor, width: int, *, base: float = 10000.0, layout: Layout = "interleaved") -> Tensor:
    """Compute sines and cosines of decreasing frequency, one row per position (Vaswani et al. 2017, section 3.5).

        P[p, 2i] = sin(p / base^(2i/W)),   P[p, 2i+1] = cos(p / base^(2i/W))

    Shapes: position (...) → (..., W), float64 (float32 on devices without it).
    Layout "halves" has all sines first, then all cosines, as in Marian and Fairseq.

    >>> sinusoids(torch.arange(2), 4).float()
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    angle = _angles(position, _Frequencies(width, base))  # (..., W/2)
    return _LAYOUTS[layout][1](angle.sin(), angle.cos())  # (..., W)


class SinusoidalPosition(nn.Module):
    """Add `sinusoids` to embeddings. It works for positions beyond those seen in training.

        y[p] = x[p] + P[p + offset]

    Shapes: (*lead, T, W) → (*lead, T, W).
    Paper: Vaswani et al. 2017, section 3.5. Raises ValueError for an odd width.

    >>> SinusoidalPosition(4)(torch.zeros(1, 1, 4), offset=1)
    tensor([[[0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    def __init__(self, width: int, *, base: float = 10000.0, layout: Layout = "interleaved") -> None:
        super().__init__()
        if width < 2 or width % 2:
            near = "2" if width < 2 else f"{width - 1} or {width + 1}"
            raise ValueError(f"sinusoidal position: width ({width}) must be even, for sines and cosines; try {near}.")
        _check_common("sinusoidal position", base, layout)
        self.width, self.base, self.layout = width, base, layout

    def forward(self, x: Tensor, offset: Offset = 0) -> Tensor:
        _check_width("sinusoidal position", x, self.width)
        position = _positions("sinusoidal position", x, offset)  # (T,) or (B, …, T)
        return x + sinusoids(position, self.width, base=self.base, layout=self.layout).to(x.dtype)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def extra_repr(self) -> str:
        return f"{self.width}, base={self.base:g}, layout={self.layout!r}"


class LearnedPosition(nn.Module):
    """Add one learned vector per position, for positions 0 … length − 1.

        y[p] = x[p] + table[p + offset]

    Shapes: (*lead, T, W) → (*lead, T, W). `weight` (length, W) has the name used by `nn.Embedding` checkpoints.
    Entries left of position 0 (negative offset of a batch entry) are padding and get the first vector.
    Paper: Gehring et al. 2017, section 3.1; Devlin et al. 2019.

    Raises:
        ValueError: for a position beyond the table, which has no learned vector.

    >>> tuple(LearnedPosition(6, length=512)(torch.zeros(2, 5, 6), offset=507).shape)
    (2, 5, 6)
    """

    def __init__(self, width: int, *, length: int) -> None:
        super().__init__()
        check_sizes("learned position", width=width, length=length)
        self.width, self.length = width, length
        self.weight = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.weight, std=0.02)  # as in BERT and ViT

    def forward(self, x: Tensor, offset: Offset = 0) -> Tensor:
        _check_width("learned position", x, self.width)
        if isinstance(offset, int):
            if offset < 0:
                raise ValueError(
                    f"learned position: offset ({offset}) must be at least 0. Padding on the left has one offset per "
                    "batch entry: pass a tensor."
                )
            self._check_range(offset, offset + x.shape[-2])
            return x + self.weight[offset : offset + x.shape[-2]].to(x.dtype)  # (T, W)
        position = _positions("learned position", x, offset)  # (B, …, T)
        if not torch.compiler.is_compiling() and not x.is_meta and offset.numel():
            highest = int(offset.max())
            self._check_range(highest, highest + x.shape[-2])
        return x + self.weight[position.clamp(min=0)].to(x.dtype)  # (B, …, T, W)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def _check_range(self, offset: int, end: int) -> None:
        if end > self.length:
            raise ValueError(
                f"learned position: length ({self.length}) must reach every entry; got {end - offset} from offset "
                f"{offset}, the last at position {end - 1}. Cut the input, build it with length={end}, or use "
                "SinusoidalPosition or RotaryPosition, which have no limit."
            )

    def extra_repr(self) -> str:
        return f"{self.width}, length={self.length}"


class RotaryPosition(nn.Module):
    """Rotate each pair of channels by an angle proportional to the position, so that q·k depends on the distance only.

        (a, b) → (a·cos pθᵢ − b·sin pθᵢ,  b·cos pθᵢ + a·sin pθᵢ),   θᵢ = base^(−2i/R),   R = fraction · D

    Shapes: x (*lead, T, D) → (*lead, T, D); applied to queries and to keys. There is no maximum length.
    Paper: Su et al. 2021, section 3.2.2, equation 34. Raises ValueError unless R is even and at least 2.

    Args:
        base: base of the frequencies θᵢ.
        layout: the channels of pair i. "interleaved", 2i and 2i+1, is that of the paper (GPT-J); "halves", i and
            i + R/2, is that of Llama and GPT-NeoX checkpoints.
        fraction: share of the channels that are rotated. Those after the first R are not.
        factor: the frequencies are divided by it, for texts longer than those of the training (linear scaling).
        bands: (low, high, length), as in Llama 3.1: frequencies with more than `high` periods in `length` positions are
            not divided by the factor, those with fewer than `low` are, and those between in part.
        precision: of the angles. Llama checkpoints were trained with float32, whose error is about 1e-4 radians at
            position 1,000.

    >>> RotaryPosition()(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))     # the second is rotated by one radian
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """

    def __init__(
        self,
        *,
        base: float = 10000.0,
        layout: Layout = "interleaved",
        fraction: float = 1.0,
        factor: float = 1.0,
        bands: Bands | None = None,
        precision: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        _check_common("rotary position", base, layout)
        if not 0 < fraction <= 1:
            raise ValueError(
                f"rotary position: fraction ({fraction}) must lie in (0, 1]: the rotated part of the width."
            )
        if problems := scaling_errors("rotary position", factor, bands):
            raise ValueError(problems[0])
        if precision not in PRECISIONS:
            raise ValueError(f"rotary position: precision ({precision}) must be torch.float32 or torch.float64.")
        self.base, self.layout, self.fraction = base, layout, fraction
        self.factor, self.bands, self.precision = factor, bands, precision

    def forward(self, x: Tensor, offset: Offset = 0) -> Tensor:
        length, width = x.shape[-2:]
        rotated = int(self.fraction * width)
        if rotated < 2 or rotated % 2:
            raise ValueError(
                f"rotary position: fraction ({self.fraction:g}) must rotate an even number of channels, 2 or more; got "
                f"{rotated} of {width}."
            )
        frequencies = _Frequencies(rotated, self.base, self.factor, self.bands, self.precision)
        wide = x.dtype if x.dtype in PRECISIONS else torch.promote_types(x.dtype, torch.float32)
        if isinstance(offset, int) and not traced():
            cos, sin = _rotation(offset, length, frequencies, wide, x.device)  # (T, R/2) each
        else:
            angle = _angles(_positions("rotary position", x, offset), frequencies)  # (T, R/2) or (B, …, T, R/2)
            cos, sin = angle.cos().to(wide), angle.sin().to(wide)
        split, join = _LAYOUTS[self.layout]
        a, b = split(x if rotated == width else x[..., :rotated])  # each (*lead, T, R/2)
        y = join(a * cos - b * sin, b * cos + a * sin)  # (*lead, T, R)
        y = y if wide is x.dtype else y.to(x.dtype)
        return y if rotated == width else torch.cat((y, x[..., rotated:]), -1)  # (*lead, T, D)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...

    def extra_repr(self) -> str:
        scaled = f", factor={self.factor:g}" if self.factor != 1 else ""
        return f"base={self.base:g}, layout={self.layout!r}, fraction={self.fraction:g}{scaled}"


def scaling_errors(where: str, factor: float, bands: Bands | None) -> list[str]:
    """Return the errors in the scaling of rotary frequencies, one sentence each."""
    problems = []
    if not 0 < factor < math.inf:
        problems.append(f"{where}: factor ({factor}) must be more than 0: frequencies are divided by it.")
    if bands is not None and not (len(bands) == 3 and 0 < bands[0] < bands[1] and bands[2] >= 1):
        problems.append(f"{where}: bands ({bands}) must be (low, high, length) with 0 < low < high and length ≥ 1.")
    return problems


class _Frequencies(NamedTuple):
    """The frequencies of W/2 pairs of channels: base^(−2i/W), scaled."""

    width: int
    base: float
    factor: float = 1.0
    bands: Bands | None = None
    precision: torch.dtype = torch.float64

    def values(self, device: torch.device) -> Tensor:
        """(W/2,). float32 on devices without float64."""
        wide = torch.float32 if device.type == "mps" else self.precision
        exponent = torch.arange(0, self.width, 2, device=device).to(wide) / self.width  # (W/2,)
        frequency = 1.0 / torch.pow(self.base, exponent)
        if self.factor == 1:
            return frequency
        if self.bands is None:
            return frequency / self.factor
        low, high, length = self.bands
        periods = length / (2 * math.pi / frequency)
        kept = ((periods - low) / (high - low)).clamp(0, 1)
        return (1 - kept) * frequency / self.factor + kept * frequency


@lru_cache(maxsize=4)  # all blocks of a model rotate queries and keys by the same angles
def _rotation(
    start: int, length: int, frequencies: _Frequencies, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of positions start … start + length − 1, (T, W/2) each."""
    with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode could not be used in training
        angle = _angles(torch.arange(length, device=device) + start, frequencies)  # (T, W/2)
        return angle.cos().to(dtype), angle.sin().to(dtype)


def _angles(position: Tensor, frequencies: _Frequencies) -> Tensor:
    """position · frequency: (...) → (..., W/2)."""
    values = frequencies.values(position.device)  # (W/2,)
    return position.to(values.dtype).unsqueeze(-1) * values  # (..., W/2)


def _positions(where: str, x: Tensor, offset: Offset) -> Tensor:
    """Return the positions of the entries of x (*lead, T, W): (T,), or (B, 1, …, T) for one offset per batch entry."""
    step = torch.arange(x.shape[-2], device=x.device)  # (T,)
    if isinstance(offset, int):
        return step + offset
    sizes = (1, x.shape[0]) if x.ndim > 2 else (1,)
    if offset.is_floating_point() or offset.ndim > 1 or offset.numel() not in sizes:
        raise ValueError(
            f"{where}: offset ({shape(offset)}) must be an integer, or one per batch entry ({sizes[-1]}); "
            f"got {dtype(offset)}."
        )
    return step + offset.to(x.device).reshape(-1, *(1,) * (x.ndim - 2))  # (B, 1, …, T)


def _check_width(where: str, x: Tensor, width: int) -> None:
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"{where}: x ({shape(x)}) must be (..., length, {width}); got {x.ndim} dimensions.")


def _check_common(where: str, base: float, layout: str) -> None:
    if not base > 1:
        raise ValueError(f"{where}: base ({base}) must be more than 1; the papers use 10000.")
    if layout not in _LAYOUTS:
        raise ValueError(f"{where}: layout ({layout!r}) must be one of {', '.join(_LAYOUTS)}.")
