"""Kernels for decoding token by token: products of a few rows, norms, rotation, and attention to cached keys.

A step of a language model makes hundreds of small calls, and checking the arguments of a kernel takes longer than some
of these kernels. So each `bind_*` function checks its arguments once and returns a call, which can be repeated. The
call has no arguments, or only those that change from step to step. It reads and writes the memory that the tensors have
when it is bound. If the kernels cannot serve the tensors, it consists of PyTorch operators with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .fused import served
from .many_rows import EPILOGUES, Epilogue, linear_
from .plan import OPEN, address, kernels, rows_of, view

MOST_ROWS = 32
"""Most rows for which the kernel is used. It reads the weights from memory once, then from the cache per 8 rows."""

Call = Callable[[], None]


class RowNorm(NamedTuple):
    """A normalization of rows: layer norm if `centered`, else root mean square.

    >>> norm = RowNorm(torch.ones(2), None, 0.0, centered=False)
    >>> norm.reference(torch.tensor([[1.0, 7.0]]))
    tensor([[0.2000, 1.4000]])
    """

    gain: Tensor
    """(W,)"""
    shift: Tensor | None
    """(W,)"""
    epsilon: float
    centered: bool

    def reference(self, x: Tensor) -> Tensor:
        """Return the normalized rows, (N, W), computed by PyTorch."""
        if self.centered:
            return F.layer_norm(x, x.shape[-1:], self.gain, self.shift, self.epsilon)
        y = F.rms_norm(x, x.shape[-1:], self.gain, self.epsilon)
        return y if self.shift is None else y + self.shift

    def tensors(self) -> list[Tensor]:
        return [self.gain] if self.shift is None else [self.gain, self.shift]


def bind_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    *,
    norm: RowNorm | None = None,
    epilogue: Epilogue = "store",
) -> Call:
    """Return a call that computes y = x·Wᵀ + bias, followed by `epilogue`; `norm` is applied to x first.

    Shapes: x (N, in), weight (out, in), bias (out,), y (N, out). For a gate: weight (2·out, in), bias (2·out,).

    >>> x, y = torch.ones(1, 2), torch.empty(1, 3)
    >>> call = bind_linear(x, torch.eye(3, 2), torch.ones(3), y)
    >>> call()
    >>> y
    tensor([[2., 2., 1.]])
    """
    inner = [] if norm is None else norm.tensors()
    biases = [] if bias is None else [bias]
    if len(x) > MOST_ROWS or not served(x, weight, y, *biases, *inner):
        normed = x if norm is None else torch.empty_like(x)
        before = None if norm is None else bind_norm(x, norm, normed)
        return lambda: _reference_linear(before, normed, weight, bias, y, epilogue)
    normed = x if norm is None else torch.empty_like(x)
    norm_arguments = None if norm is None else _norm_arguments(x, norm, normed)
    function, sizes, code = kernels().few_rows, (*x.shape, y.shape[1]), EPILOGUES.index(epilogue)
    pointers = address(normed), address(weight), address(bias), address(y)
    tensors = (x, normed, weight, bias, y, norm)

    def call(_: object = tensors) -> None:  # refers to the tensors to keep them alive
        function(sizes, norm_arguments, *pointers, code, torch.get_num_threads())

    return call


def bind_norm(x: Tensor, norm: RowNorm, y: Tensor) -> Call:
    """Return a call that computes y = norm(x), (N, W) each; y may be x."""
    if not served(x, y, *norm.tensors()):
        return lambda: _discard(y.copy_(norm.reference(x)))
    function, arguments, sizes = kernels().row_norm, _norm_arguments(x, norm, y), tuple(x.shape)

    def call(_: object = (x, norm, y)) -> None:
        function(sizes, arguments, torch.get_num_threads())

    return call


class Rotation(NamedTuple):
    """Cosines and sines of all positions, (positions, D/2) each, for pairs of channels i and i + D/2."""

    cos: Tensor
    sin: Tensor

    def reference(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x (B, T, H, D) rotated by its positions (B, T)."""
        cos, sin = (table[positions].unsqueeze(2) for table in self)  # (B, T, 1, D/2)
        a, b = x.tensor_split(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def bind_rotate_append(
    qkv: Tensor, heads: int, rotation: Rotation | None, first: Tensor, caches: tuple[Tensor, Tensor] | None
) -> Call:
    """Return a call that rotates queries and keys in place, and copies keys and values to their caches.

    Args:
        qkv: (B, T, heads + 2·kv_heads, D): queries, then keys, then values.
        heads: number of query heads.
        rotation: None to rotate nothing.
        first: (B,), int64: position of the first of the T tokens of each text, in the rotation and in the caches.
        caches: keys and values, (B, kv_heads, capacity, D) each; None to copy nothing.
    """
    tables, targets = list(rotation or ()), list(caches or ())
    if first.dtype != torch.int64 or not first.is_contiguous() or not served(qkv, *tables, *targets):
        return lambda: _reference_rotate_append(qkv, heads, rotation, first, caches)
    texts, tokens, both, width = qkv.shape
    kv_heads = (both - heads) // 2
    strides = targets[0].stride()[:2] if targets else (0, 0)
    function, sizes = kernels().rotate_append, (texts * tokens, tokens, heads, kv_heads, width)
    pointers = address(qkv), *(map(address, tables) if tables else (0, 0)), address(first)
    memory = (*(map(address, targets) if targets else (0, 0)), *strides)

    def call(_: object = (qkv, rotation, first, caches)) -> None:
        function(sizes, *pointers, memory, torch.get_num_threads())

    return call


def bind_attention(
    q: Tensor, key: Tensor, value: Tensor, context: Tensor, *, offsets: Tensor | None, left: int | None
) -> Callable[[int], bool] | None:
    """Return a call for one query per head, or None if the kernels do not serve the tensors.

    The call takes the number of keys to read, and returns whether the result is finite. If it is not, use `attend`,
    which ignores NaN and ∞ in masked positions. If it is, the result equals that of `attend` bit by bit.

    Args:
        q: (B, H, 1, D); heads are multiples of those of the keys.
        key, value: (B, Hkv, capacity, D).
        context: (B, H, 1, D), for the result.
        offsets: (B,), int64: position of the query of each text, which attends to no later key; None for all keys.
        left: also to no key that is more than this many positions before it; only with offsets.
    """
    if not served(key, value, context) or q.stride(-1) != 1 or q.dtype != torch.float32:
        return None
    (batches, heads, _, width), kv_heads = q.shape, key.shape[1]
    softmax = q.new_empty(2, batches, heads, 1)
    sides = (OPEN if left is None else left, 0)
    mask = None if offsets is None else (*sides, address(offsets), 0, 0, 0, 0, 0, 0, 0)
    numbers, views = (0, 1 / math.sqrt(width), 0.0), (view(q), view(key), view(value))
    function, outputs = kernels().dot_forward, (view(context), rows_of(softmax))

    def call(keys: int, _: object = (q, key, value, context, offsets, softmax)) -> bool:
        sizes = (batches, heads, heads // kv_heads, 1, keys, width, width)
        finite: bool = function((sizes, *views, numbers, mask), None, *outputs, 1, torch.get_num_threads())
        return finite

    return call


def _norm_arguments(x: Tensor, norm: RowNorm, y: Tensor) -> tuple[int, int, int, float, int, int]:
    return address(x), address(norm.gain), address(norm.shift), norm.epsilon, int(norm.centered), address(y)


def _reference_linear(
    before: Call | None, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, epilogue: Epilogue
) -> None:
    if before is not None:
        before()
    linear_(x, weight, bias, y, epilogue)


def _reference_rotate_append(
    qkv: Tensor, heads: int, rotation: Rotation | None, first: Tensor, caches: tuple[Tensor, Tensor] | None
) -> None:
    tokens, kv_heads = qkv.shape[1], (qkv.shape[2] - heads) // 2
    positions = first[:, None] + torch.arange(tokens, device=first.device)  # (B, T)
    rotated = qkv[:, :, : heads + kv_heads]
    if rotation is not None:
        rotated.copy_(rotation.reference(rotated, positions))
    if caches is not None:
        rows = torch.arange(len(qkv), device=first.device)[:, None]
        for cache, new in zip(caches, qkv[:, :, heads:].tensor_split(2, 2), strict=True):
            cache[rows, :, positions] = new  # (B, T, kv_heads, D)


def _discard(_: Tensor) -> None:
    return None
