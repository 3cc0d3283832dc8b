"""Masks: which keys a query may attend to.

Internally True always means "may attend". Only this module converts masks of the other polarity.

    causal(4)          sliding(4, left=1, right=1)     padding([2, 4], 4)
    ■ · · ·            ■ ■ · ·                         ■ ■ · ·   (first sentence)
    ■ ■ · ·            ■ ■ ■ ·                         ■ ■ ■ ■   (second sentence)
    ■ ■ ■ ·            · ■ ■ ■
    ■ ■ ■ ■            · · ■ ■                         one row serves every query

The operator itself never builds these tensors: `attend(..., is_causal, window, causal_offset, lengths)` keeps the
parameters (`Mask`) and skips blocks that are masked completely.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import torch
from torch import Tensor

from ..core.tensors import shape, transformed
from .tensor_types import causal_bias_offset, is_causal_bias, require_supported

__all__ = ["causal", "from_ignore", "from_ones", "merge", "over_keys", "padding", "sliding"]

Span = slice | Tensor
"""Rows or columns: a slice with start and stop, or a tensor of indices."""


def span_length(span: Span) -> int:
    """Return the number of positions of a span."""
    return len(span) if isinstance(span, Tensor) else span.stop - span.start


def part_of(span: Span, start: int, stop: int) -> Span:
    """Return some positions of a span. Those of a slice stay a slice, which selects without a copy."""
    return span[start:stop] if isinstance(span, Tensor) else slice(span.start + start, span.start + stop)


def indices(span: Span, device: torch.device) -> Tensor:
    """Return the indices of a span, (n,)."""
    if isinstance(span, Tensor):
        return span
    return torch.arange(span.start, span.stop, device=device)


@dataclass(frozen=True)
class Mask:
    """The parameters of a mask: a few numbers and, if the caller passed one, a dense mask.

    Query i is at position pᵢ = i + offset and may attend to key j if
    pᵢ − left ≤ j ≤ pᵢ + right,  j < length,  and the dense mask allows it.
    """

    dense: Tensor | None = None
    """Boolean (True = may attend) or float (added to the scores), broadcasting to (*lead, Tq, Tk)."""
    left: int | None = None
    right: int | None = None
    offset: int | Tensor = 0
    """An integer; or one per batch entry or row, in a shape that broadcasts to (*lead, Tq, Tk)."""
    lengths: int | Tensor | None = None
    """Number of valid keys: an integer, or one per batch entry, likewise."""

    @property
    def open(self) -> bool:
        """Whether there is no mask, so that every query may attend to every key."""
        return self.dense is None and self.left is None and self.right is None and self.lengths is None

    @property
    def only_causal(self) -> bool:
        """Whether this is SDPA's `is_causal` and nothing else."""
        if self.dense is not None or self.left is not None or self.lengths is not None or self.right != 0:
            return False
        if isinstance(self.offset, Tensor):
            return False
        return True if self.offset == 0 else False  # noqa: SIM210 a branch turns a traced offset into a plain bool

    @property
    def positional(self) -> bool:
        return self.left is not None or self.right is not None

    @cached_property
    def offset_range(self) -> tuple[int, int]:
        return _range(self.offset)

    @cached_property
    def lengths_range(self) -> tuple[int, int] | None:
        return None if self.lengths is None else _range(self.lengths)

    def span(self, rows: slice, keys: int) -> tuple[int, int]:
        """Return the columns [first, last) that these rows may attend to by position and length alone."""
        first, last = 0, keys
        if self.left is not None:
            first = max(first, rows.start + self.offset_range[0] - self.left)
        if self.right is not None:
            last = min(last, rows.stop + self.offset_range[1] + self.right)
        if self.lengths_range is not None:
            last = min(last, self.lengths_range[1])
        return first, max(first, last)

    def allowed(self, rows: Span, cols: Span, device: torch.device) -> Tensor | None:
        """Return a boolean block that broadcasts to (*lead, rows, cols), True = may attend; None if all may."""
        parts = [] if self._allows_all(rows, cols) else self._comparisons(rows, cols, device)
        if self.dense is not None and self.dense.dtype == torch.bool:
            parts.append(take_block(self.dense, rows, cols))
        return reduce(operator.and_, parts) if parts else None

    def bias(self, rows: Span, cols: Span) -> Tensor | None:
        """Return the block of a float mask, or None."""
        if self.dense is None or self.dense.dtype == torch.bool:
            return None
        return take_block(self.dense, rows, cols)

    def dense_allowed(self, rows: slice, keys: int, device: torch.device) -> Tensor | None:
        """Like `allowed` for whole rows, but −∞ in a float mask counts as "may not attend"."""
        cols = slice(0, keys)
        allowed, bias = self.allowed(rows, cols, device), self.bias(rows, cols)
        if bias is None:
            return allowed
        finite = bias != -torch.inf
        return finite if allowed is None else allowed & finite

    def of_rows(self, rows: Span) -> Mask:
        """Return the mask of some rows, which are renumbered from 0."""
        dense, offset = self.dense, self.offset
        if dense is not None and dense.shape[-2] != 1:
            dense = dense[..., rows, :]
        if not self.positional:  # without an offset for each picked row, the kernels serve the rows
            return replace(self, dense=dense, offset=0)
        if isinstance(offset, Tensor) and offset.shape[-2] != 1:
            offset = offset[..., rows, :]
        if isinstance(rows, Tensor):
            shift = rows - torch.arange(len(rows), device=rows.device)
            offset = offset + shift.unsqueeze(-1)  # (..., rows, 1)
        else:
            offset = offset + rows.start
        return replace(self, dense=dense, offset=offset)

    def without_bias(self) -> Mask:
        """Return the mask with a float dense mask replaced by a boolean one: True where it is not −∞."""
        if self.dense is None or self.dense.dtype == torch.bool:
            return self
        return replace(self, dense=self.dense != -torch.inf)

    def _allows_all(self, rows: Span, cols: Span) -> bool:
        """Return whether position and length allow the whole block, so that no comparison is needed."""
        if not self.positional and self.lengths is None:
            return True
        if torch.compiler.is_compiling() or transformed():
            return False
        low, high = self.offset_range
        first_row, last_row = _ends(rows)
        first_col, last_col = _ends(cols)
        if self.left is not None and first_col < last_row + high - self.left:
            return False
        if self.right is not None and last_col > first_row + low + self.right:
            return False
        return self.lengths_range is None or last_col < self.lengths_range[0]

    def _comparisons(self, rows: Span, cols: Span, device: torch.device) -> list[Tensor]:
        key = indices(cols, device)  # (cols,)
        parts = []
        if self.positional:
            offset = self.offset
            if isinstance(offset, Tensor) and offset.shape[-2] != 1:
                offset = offset[..., rows, :]
            position = indices(rows, device).unsqueeze(-1) + offset  # (..., rows, 1)
            if self.left is not None:
                parts.append(key >= position - self.left)
            if self.right is not None:
                parts.append(key <= position + self.right)
        if self.lengths is not None:
            parts.append((key < self.lengths) if isinstance(self.lengths, Tensor) else (key < self.lengths)[None])
        return parts


OPEN = Mask()
"""No mask: every query may attend to every key. Most calls share this instance."""


def _ends(span: Span) -> tuple[int, int]:
    """Return the first and last index of a span."""
    return _range(span) if isinstance(span, Tensor) else (span.start, span.stop - 1)


def _range(number: int | Tensor) -> tuple[int, int]:
    if isinstance(number, int):
        return number, number
    if number.numel() == 0:
        return 0, 0
    low, high = torch.aminmax(number)
    return int(low), int(high)


def take_block(tensor: Tensor, rows: Span, cols: Span) -> Tensor:
    """Return tensor[..., rows, cols]. Either of the last two dimensions may be 1, to broadcast."""
    if tensor.shape[-2] != 1:
        tensor = tensor[..., rows, :]
    if tensor.shape[-1] != 1:
        tensor = tensor[..., cols]
    return tensor


def causal(queries: int, keys: int | None = None, *, offset: int = 0) -> Tensor:
    """Return a causal mask (queries, keys): True where key j is not after query i, j ≤ i + offset.

    `offset=0` aligns the upper left corners, as SDPA does; `offset=keys - queries` the lower right ones.

    >>> causal(2, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    >>> causal(2, 3, offset=1).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    keys = queries if keys is None else keys
    return torch.ones(queries, keys, dtype=torch.bool).tril(offset)


def sliding(queries: int, keys: int | None = None, *, left: int | None, right: int | None, offset: int = 0) -> Tensor:
    """Return a sliding-window mask (queries, keys): True where i + offset − left ≤ j ≤ i + offset + right.

    None leaves a side open.

    >>> sliding(3, left=1, right=0).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    keys = queries if keys is None else keys
    distance = torch.arange(keys) - (torch.arange(queries) + offset).unsqueeze(-1)  # (queries, keys)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        allowed &= distance >= -left
    if right is not None:
        allowed &= distance <= right
    return allowed


def padding(lengths: Tensor | Sequence[int], keys: int) -> Tensor:
    """Return a padding mask (B, keys): True for the first lengths[b] keys of entry b.

    >>> padding([1, 3], 3).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    lengths = torch.as_tensor(lengths)
    return torch.arange(keys, device=lengths.device) < lengths.unsqueeze(-1)


def over_keys(valid: Tensor) -> Tensor:
    """Reshape a key mask (B, Tk), True = may attend, to broadcast over heads and queries: (B, 1, 1, Tk).

    >>> tuple(over_keys(padding([1, 3], 3)).shape)
    (2, 1, 1, 3)
    """
    return valid[..., None, None, :]


def from_ignore(ignore: Tensor) -> Tensor:
    """Convert a mask in which True = ignore, the convention of `torch.nn.MultiheadAttention` and `nn.Transformer`.

    A float mask is added to the scores in both conventions and is returned unchanged.

    >>> from_ignore(torch.tensor([False, True])).tolist()
    [True, False]
    """
    if ignore.dtype == torch.bool:
        return ~ignore
    if ignore.is_floating_point():
        return ignore
    raise ValueError(
        f"masks.from_ignore: ignore ({shape(ignore)}) must be boolean or float; got {ignore.dtype}. "
        "Compare it first, for example `mask == 0`."
    )


def from_ones(ones: Tensor) -> Tensor:
    """Convert a mask in which 1 = may attend and 0 = padding, the convention of Hugging Face tokenizers.

    >>> from_ones(torch.tensor([1, 1, 0])).tolist()
    [True, True, False]
    """
    if ones.dtype == torch.bool:
        return ones
    if bool(((ones != 0) & (ones != 1)).any()):
        other = ones[(ones != 0) & (ones != 1)][0].item()
        raise ValueError(
            f"masks.from_ones: ones ({shape(ones)}) must contain only 0 and 1; got {other}. "
            "Pass a mask that is added to the scores directly to attend."
        )
    return ones != 0


def merge(*masks: Tensor | None) -> Tensor | None:
    """Combine masks into one that allows only what all of them allow. Float masks are added. None means no mask.

    >>> merge(causal(2), None, padding([1], 2)).int().tolist()
    [[1, 0], [1, 0]]
    """
    present = [_dense(mask) for mask in masks if mask is not None]
    allowed = [mask for mask in present if mask.dtype == torch.bool]
    added = [mask for mask in present if mask.dtype != torch.bool]
    keep = reduce(operator.and_, allowed) if allowed else None
    bias = reduce(operator.add, added) if added else None
    if bias is None or keep is None:
        return keep if bias is None else bias
    return torch.where(keep, bias, -torch.inf)


def _dense(mask: Tensor) -> Tensor:
    """Return the mask itself, or the boolean mask that a `CausalBias` represents."""
    if not is_causal_bias(mask):
        require_supported("masks.merge", "mask", mask)
        return mask
    queries, keys = getattr(mask, "seq_len_q", 0), getattr(mask, "seq_len_kv", 0)
    return causal(queries, keys, offset=causal_bias_offset(mask, queries, keys))
