"""Masks: which keys a query may attend to.

One polarity inside: True = may attend. Masks of other polarity are turned here and nowhere else.

    causal(4)          sliding(4, left=1, right=1)     padding([2, 4], 4)
    ■ · · ·            ■ ■ · ·                         ■ ■ · ·   (first sentence)
    ■ ■ · ·            ■ ■ ■ ·                         ■ ■ ■ ■   (second sentence)
    ■ ■ ■ ·            · ■ ■ ■
    ■ ■ ■ ■            · · ■ ■                         one row serves every query

The operator itself never builds these: `attend(..., is_causal, window, causal_offset, lengths)` keeps the description
(`Mask`), and blocks of pairs that may not attend are skipped.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import torch
from torch import Tensor

from ..core.tensors import transformed
from .tensor_types import causal_bias_offset, is_causal_bias, require_supported

Span = slice | Tensor
"""Some rows or columns: a slice with start and stop, or a tensor of indices."""


def indices(span: Span, device: torch.device) -> Tensor:
    """The positions that a span names, shape (n,)."""
    if isinstance(span, Tensor):
        return span
    return torch.arange(span.start, span.stop, device=device)


@dataclass(frozen=True)
class Mask:
    """The description of a mask: a few numbers and, where the caller gave one, a dense part.

    Query i stands at position pᵢ = i + offset and may attend to key j when
    pᵢ − left ≤ j ≤ pᵢ + right,  j < length,  and the dense part allows it.
    """

    dense: Tensor | None = None
    """Boolean (True = may attend) or float (added to the scores), broadcasting to (*lead, Tq, Tk)."""
    left: int | None = None
    right: int | None = None
    offset: int | Tensor = 0
    """One number; or one per batch entry, or row, shaped to broadcast with (*lead, Tq, Tk)."""
    lengths: int | Tensor | None = None
    """Valid keys: one number, or one per batch entry, shaped likewise."""

    @property
    def open(self) -> bool:
        """Whether every query may certainly attend to every key."""
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
        """Columns [first, last) outside which these rows attend to nothing, by position and length alone."""
        first, last = 0, keys
        if self.left is not None:
            first = max(first, rows.start + self.offset_range[0] - self.left)
        if self.right is not None:
            last = min(last, rows.stop + self.offset_range[1] + self.right)
        if self.lengths_range is not None:
            last = min(last, self.lengths_range[1])
        return first, max(first, last)

    def allowed(self, rows: Span, cols: Span, device: torch.device) -> Tensor | None:
        """Boolean block broadcasting to (*lead, rows, cols), True = may attend; None where all may."""
        parts = [] if self._inside(rows, cols) else self._structure(rows, cols, device)
        if self.dense is not None and self.dense.dtype == torch.bool:
            parts.append(take_block(self.dense, rows, cols))
        return reduce(operator.and_, parts) if parts else None

    def bias(self, rows: Span, cols: Span) -> Tensor | None:
        """The block of a float mask, or None."""
        if self.dense is None or self.dense.dtype == torch.bool:
            return None
        return take_block(self.dense, rows, cols)

    def dense_allowed(self, rows: slice, keys: int, device: torch.device) -> Tensor | None:
        """Like `allowed` for whole rows, with the −∞ of a float mask read as "may not"."""
        cols = slice(0, keys)
        allowed, bias = self.allowed(rows, cols, device), self.bias(rows, cols)
        if bias is None:
            return allowed
        finite = bias != -torch.inf
        return finite if allowed is None else allowed & finite

    def of_rows(self, rows: Span) -> Mask:
        """The mask of some rows, counted anew from 0."""
        dense, offset = self.dense, self.offset
        if dense is not None and dense.shape[-2] != 1:
            dense = dense[..., rows, :]
        if isinstance(offset, Tensor) and offset.shape[-2] != 1:
            offset = offset[..., rows, :]
        if isinstance(rows, Tensor):
            moved = rows - torch.arange(len(rows), device=rows.device)
            offset = offset + moved.unsqueeze(-1)  # (..., rows, 1)
        else:
            offset = offset + rows.start
        return replace(self, dense=dense, offset=offset)

    def without_bias(self) -> Mask:
        """The same mask with a float dense part reduced to where it allows attention."""
        if self.dense is None or self.dense.dtype == torch.bool:
            return self
        return replace(self, dense=self.dense != -torch.inf)

    def _inside(self, rows: Span, cols: Span) -> bool:
        """Whether position and length allow the whole block, so that no comparison is needed."""
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

    def _structure(self, rows: Span, cols: Span, device: torch.device) -> list[Tensor]:
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
"""Every query may attend to every key: what most calls ask for, so it is made once."""


def _ends(span: Span) -> tuple[int, int]:
    """The first and last position that a span names."""
    return _range(span) if isinstance(span, Tensor) else (span.start, span.stop - 1)


def _range(number: int | Tensor) -> tuple[int, int]:
    if isinstance(number, int):
        return number, number
    if number.numel() == 0:
        return 0, 0
    low, high = torch.aminmax(number)
    return int(low), int(high)


def take_block(tensor: Tensor, rows: Span, cols: Span) -> Tensor:
    """tensor[..., rows, cols] of a tensor whose last two dimensions may be 1 to broadcast."""
    if tensor.shape[-2] != 1:
        tensor = tensor[..., rows, :]
    if tensor.shape[-1] != 1:
        tensor = tensor[..., cols]
    return tensor


def causal(queries: int, keys: int | None = None, *, offset: int = 0) -> Tensor:
    """True where key j is not after query i: j ≤ i + offset. Shape (queries, keys).

    `offset=0` aligns the upper left corners, as SDPA does; `offset=keys - queries` the lower right ones.

    >>> causal(2, 3).int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    >>> causal(2, 3, offset=1).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    keys = queries if keys is None else keys
    return torch.ones(queries, keys, dtype=torch.bool).tril(offset)


def sliding(queries: int, keys: int | None = None, *, left: int | None, right: int | None, offset: int = 0) -> Tensor:
    """True where key j lies in the window around query i: i + offset − left ≤ j ≤ i + offset + right.

    None leaves a side open. Shape (queries, keys).

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
    """True for the first lengths[b] keys of entry b. Shape (B, keys).

    >>> padding([1, 3], 3).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    lengths = torch.as_tensor(lengths)
    return torch.arange(keys, device=lengths.device) < lengths.unsqueeze(-1)


def over_keys(valid: Tensor) -> Tensor:
    """A key mask (B, Tk), True = may attend, shaped to broadcast over heads and queries: (B, 1, 1, Tk).

    >>> tuple(over_keys(padding([1, 3], 3)).shape)
    (2, 1, 1, 3)
    """
    return valid[..., None, None, :]


def from_ignore(ignore: Tensor) -> Tensor:
    """Turn a mask in which True = ignore, as `torch.nn.MultiheadAttention` and `nn.Transformer` have them.

    A float mask is added to the scores in both conventions and comes back as it is.

    >>> from_ignore(torch.tensor([False, True])).tolist()
    [True, False]
    """
    if ignore.dtype == torch.bool:
        return ~ignore
    if ignore.is_floating_point():
        return ignore
    raise ValueError(
        f"masks.from_ignore: ignore ({_shape(ignore)}) must be boolean or float; got {ignore.dtype}. "
        "Compare it first, for example `mask == 0`."
    )


def from_ones(ones: Tensor) -> Tensor:
    """Turn a mask of numbers in which 1 = may attend and 0 = padding, as Hugging Face tokenizers give them.

    >>> from_ones(torch.tensor([1, 1, 0])).tolist()
    [True, True, False]
    """
    if ones.dtype == torch.bool:
        return ones
    if bool(((ones != 0) & (ones != 1)).any()):
        other = ones[(ones != 0) & (ones != 1)][0].item()
        raise ValueError(
            f"masks.from_ones: ones ({_shape(ones)}) must hold 0 and 1 only; got {other}. "
            "A mask that is added to the scores is passed to attend as it is."
        )
    return ones != 0


def merge(*masks: Tensor | None) -> Tensor | None:
    """One mask that allows what all of them allow; float masks are added. None stands for "all may attend".

    >>> merge(causal(2), None, padding([1], 2)).int().tolist()
    [[1, 0], [1, 0]]
    """
    given = [_dense(mask) for mask in masks if mask is not None]
    allowed = [mask for mask in given if mask.dtype == torch.bool]
    added = [mask for mask in given if mask.dtype != torch.bool]
    keep = reduce(operator.and_, allowed) if allowed else None
    bias = reduce(operator.add, added) if added else None
    if bias is None or keep is None:
        return keep if bias is None else bias
    return torch.where(keep, bias, -torch.inf)


def _dense(mask: Tensor) -> Tensor:
    """The mask itself, or the boolean mask that a `CausalBias` stands for."""
    if not is_causal_bias(mask):
        require_supported("masks.merge", "mask", mask)
        return mask
    queries, keys = getattr(mask, "seq_len_q", 0), getattr(mask, "seq_len_kv", 0)
    return causal(queries, keys, offset=causal_bias_offset(mask, queries, keys))


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"
