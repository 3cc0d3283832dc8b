"""Pooling: many vectors → one, guided by either of the two kinds of cue.

    non-volitional (what stands out)      AveragePooling, MaxPooling, FullyConnectedPooling: no query
    volitional (what is sought)           AttentionPooling, KernelPooling: a query is compared with keys

A red cup among papers draws the eye by itself; a book is found by wanting to read. All of them leave padding out, given
as `lengths` (valid entries, or one number per batch entry) or `mask` (True = valid), whatever it holds, NaN included.
Where nothing is valid they give zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import attend as plain_attend
from ..attention import masks
from ..core.tensors import broadcasts, dtype, readable, shape, shape_of
from .learned_similarity import Similarity, asked, owned

Lengths = int | Tensor | Sequence[int]


class AveragePooling(nn.Module):
    """The mean of the valid entries: attention whose weights are all alike.

        y = Σₜ xₜ / n,  t over the n valid entries

    Shapes: (*lead, T, W) → (*lead, W); the map is (*lead, 1, T).

    >>> x = torch.tensor([[[1.0], [3.0], [torch.nan]]])
    >>> AveragePooling()(x, lengths=[2]).tolist()
    [[2.0]]
    """

    def forward(
        self, x: Tensor, *, lengths: Lengths | None = None, mask: Tensor | None = None, return_map: bool = False
    ) -> Any:
        """The mean, or (mean, map)."""
        _valid("average pooling", x, lengths, mask)
        nothing = x.new_zeros(*x.shape[:-2], 1, 1)  # (*lead, 1, 1): a uniform weighting compares no one
        key = x[..., :1]  # (*lead, T, 1)
        result = plain_attend(nothing, key, x, _over(mask), weighting="uniform", lengths=lengths, return_map=return_map)
        return _squeezed(result, return_map)  # (*lead, W)


class MaxPooling(nn.Module):
    """The highest of the valid entries, channel by channel.

        y = maxₜ xₜ,  t over the valid entries

    Shapes: (*lead, T, W) → (*lead, W). Each channel picks an entry of its own, so there is no map. Equal highest
    entries share the gradient.

    >>> x = torch.tensor([[[1.0, 5.0], [3.0, 2.0], [9.0, 9.0]]])
    >>> MaxPooling()(x, mask=torch.tensor([[True, True, False]])).tolist()
    [[3.0, 5.0]]
    """

    def forward(self, x: Tensor, *, lengths: Lengths | None = None, mask: Tensor | None = None) -> Tensor:
        valid = _valid("max pooling", x, lengths, mask)
        if x.shape[-2] == 0:
            return x.sum(-2)  # (*lead, W), zeros
        if valid is None:
            return x.amax(-2)  # (*lead, W)
        highest = torch.where(valid.unsqueeze(-1), x, -torch.inf).amax(-2)  # (*lead, W)
        return torch.where(valid.any(-1, keepdim=True), highest, 0)


class FullyConnectedPooling(nn.Module):
    """A weighted mean whose weights a learned layer reads off each entry alone: what stands out, no query asked.

        weights = softmaxₜ(score(xₜ)),   y = Σₜ weightsₜ · xₜ

    Shapes: (*lead, T, W) → (*lead, W); the map is (*lead, 1, T).
    `score` is any module (..., W) → (..., 1), such as a perceptron; by default one linear layer.
    Paper: Lin et al. 2017, section 2.1, with one row of weights, and score W₂·tanh(W₁·x).

    >>> tuple(FullyConnectedPooling(6)(torch.randn(2, 5, 6), lengths=[5, 3]).shape)
    (2, 6)
    """

    def __init__(self, width: int, score: nn.Module | None = None) -> None:
        super().__init__()
        self.width = width
        # without a bias: one number added to every score leaves the softmax as it is
        self.score = nn.Linear(width, 1, bias=False) if score is None else score

    def forward(
        self, x: Tensor, *, lengths: Lengths | None = None, mask: Tensor | None = None, return_map: bool = False
    ) -> Any:
        """The weighted mean, or (mean, map)."""
        _check_width("fully connected pooling", "x", x, self.width)
        valid = _valid("fully connected pooling", x, lengths, mask)
        x = _cleared(x, valid)
        scores = self.score(x)  # (*lead, T, 1)
        if scores.shape != (*x.shape[:-1], 1):
            raise ValueError(
                f"fully connected pooling: score must give one number per entry, {shape_of((*x.shape[:-1], 1))}; "
                f"got {shape(scores)}. End it with nn.Linear(…, 1)."
            )
        one = scores.new_ones(*x.shape[:-2], 1, 1)  # (*lead, 1, 1): a query of 1 finds each score as it is
        result = plain_attend(one, scores, x, _over(mask), similarity="dot", lengths=lengths, return_map=return_map)
        return _squeezed(result, return_map)  # (*lead, W)


class AttentionPooling(nn.Module):
    """Attention with a query: learned projections of query and key, compared by a similarity; values as they are.

        weights = softmax(similarity(Wq·query, Wk·key)),   context = weights · value

    Shapes: query (*lead, Tq, query_width), key (*lead, Tk, key_width), value (*lead, Tk, Dv), the key by default
    → (*lead, Tq, Dv); the map is (*lead, Tq, Tk).
    With similarity="additive" this is Bahdanau et al. 2015, appendix A.1.2: Wq is W_a, Wk is U_a, w is v_a.
    `attend` is the operator, perhaps with options bound: `partial(regard.attend, weighting="hard")`.

    >>> pool = AttentionPooling(4, 6, 8, similarity="additive")
    >>> context, m = pool(torch.randn(2, 3, 4), torch.randn(2, 5, 6), lengths=[5, 2], return_map=True)
    >>> tuple(context.shape), m.shape
    ((2, 3, 6), (2, 3, 5))
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        width: int,
        *,
        similarity: Similarity = "scaled_dot",
        bias: bool = False,
        dropout: float = 0.0,
        attend: Callable[..., Any] = plain_attend,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(
                f"attention pooling: dropout ({dropout}) must lie in [0, 1): the share of weights dropped."
            )
        self.query = nn.Linear(query_width, width, bias)
        self.key = nn.Linear(key_width, width, bias)
        self.similarity = owned("attention pooling", similarity, width)
        self.dropout = dropout
        self.attend = attend

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        return_map: bool = False,
    ) -> Any:
        """The context, or (context, map). `lengths` and `mask` speak of keys."""
        _check_width("attention pooling", "query", query, self.query.in_features)
        _check_width("attention pooling", "key", key, self.key.in_features)
        valid = _valid("attention pooling", key, lengths, mask)
        return self.attend(
            self.query(query),  # (*lead, Tq, D)
            self.key(_cleared(key, valid)),  # (*lead, Tk, D)
            key if value is None else value,
            _over(mask),
            dropout_p=self.dropout if self.training else 0.0,
            similarity=asked(self.similarity),
            lengths=lengths,
            return_map=return_map,
        )


class KernelPooling(nn.Module):
    """Nadaraya–Watson regression: a mean of the values, weighted by how near their keys are to the query.

        weights = softmaxⱼ(−‖query − keyⱼ‖² · w² / 2),   context = weights · value

    Shapes: query (*lead, Tq, D), key (*lead, Tk, D), value (*lead, Tk, Dv) → (*lead, Tq, Dv); map (*lead, Tq, Tk).
    w is the inverse of the Gaussian's standard deviation: large w, narrow kernel. Without training (learnable=False)
    this is attention with no parameters at all.
    Paper: Nadaraya 1964; Watson 1964; as attention, Zhang et al., Dive into Deep Learning, section 10.2.

    >>> seen, told = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [10.0], [20.0]])
    >>> KernelPooling(w=9.0, learnable=False)(torch.tensor([[1.0], [1.5]]), seen, told).tolist()
    [[10.0], [15.0]]
    """

    def __init__(self, w: float = 1.0, *, learnable: bool = True) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float(w)), requires_grad=learnable)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        return_map: bool = False,
    ) -> Any:
        """The context, or (context, map). `lengths` and `mask` speak of keys."""
        _check_width("kernel pooling", "key", key, query.shape[-1])
        valid = _valid("kernel pooling", key, lengths, mask)
        q, k = _as_dot_products(query, key, valid, self.w)  # (*lead, T, D + 1) each
        v = value.to(q.dtype)
        with _precisely(q):
            result = plain_attend(q, k, v, _over(mask), similarity="dot", lengths=lengths, return_map=return_map)
        context, weights = result if return_map else (result, None)
        context = context.to(value.dtype)  # (*lead, Tq, Dv)
        return (context, weights) if return_map else context


def _as_dot_products(query: Tensor, key: Tensor, valid: Tensor | None, w: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, one wider, whose dot products have the Gaussian's softmax: no ‖q − k‖ per pair is stored.

        −‖q − k‖²·w²/2  =  w²·q·k − w²·‖k‖²/2 − w²·‖q‖²/2

    The last term is the same for every key of a query and cancels in the softmax. The middle one, a bias per key, rides
    as one more channel, against a 1 in the query: as a float mask it would cost SDPA's fused kernel where w or the keys
    want a gradient.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, w = query.to(wide), _cleared(key, valid).to(wide), w.to(wide)
    # distances stay when all is moved; around the keys' mean, the two terms cancel with the least loss of digits
    count = k.shape[-2] if valid is None else valid.sum(-1, keepdim=True).unsqueeze(-1)  # (*lead, 1, 1)
    centre = k.detach().sum(-2, keepdim=True) / torch.as_tensor(count).clamp(min=1)  # (*lead, 1, D)
    q, k = q - centre, k - centre
    bias = -(w * w) * (k * k).sum(-1, keepdim=True) / 2  # (*lead, Tk, 1)
    return torch.cat((q * (w * w), torch.ones_like(q[..., :1])), -1), torch.cat((k, bias), -1)


def _precisely(x: Tensor) -> AbstractContextManager[Any]:
    """Without autocast: a difference of squares needs every digit."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _valid(where: str, x: Tensor, lengths: Lengths | None, mask: Tensor | None) -> Tensor | None:
    """Which entries of x (*lead, T, W) are valid, broadcasting to (*lead, T); None for all."""
    if x.ndim < 2:
        raise ValueError(f"{where}: the entries ({shape(x)}) must be (..., length, width); got {x.ndim} dimensions.")
    entries = x.shape[:-1]
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(
                f"{where}: mask ({shape(mask)}) must be boolean, True = valid; got {dtype(mask)}. "
                "Numbers 1 and 0 are turned by regard.masks.from_ones, the other polarity by regard.masks.from_ignore."
            )
        if mask.ndim > len(entries) or mask.shape[-1:] != entries[-1:] or not broadcasts(mask.shape, entries):
            raise ValueError(f"{where}: mask ({shape(mask)}) must fit the entries, {shape_of(entries)}.")
    if lengths is None:
        return mask
    lengths = torch.as_tensor(lengths, device=x.device)  # () or (B,)
    if readable(lengths) and lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= entries[-1]:
        wrong = int(lengths.min()) if int(lengths.min()) < 0 else int(lengths.max())
        raise ValueError(f"{where}: lengths ({wrong}) must lie in 0…{entries[-1]}, the entries there are.")
    if lengths.is_floating_point() or not broadcasts(lengths.shape, entries[: lengths.ndim]):
        raise ValueError(
            f"{where}: lengths ({shape(lengths)}, {dtype(lengths)}) must be one whole number, or one per batch entry, "
            f"{shape_of(entries[:-1])}."
        )
    lengths = lengths.reshape(*lengths.shape, *(1,) * (len(entries) - 1 - lengths.ndim))  # (B, 1, …)
    valid = masks.padding(lengths, entries[-1])  # (B, …, T)
    return valid if mask is None else valid & mask


def _over(valid: Tensor | None) -> Tensor | None:
    """One row of the mask serves every query: (*lead, T) → (*lead, 1, T)."""
    return None if valid is None else valid.unsqueeze(-2)


def _cleared(x: Tensor, valid: Tensor | None) -> Tensor:
    """Zeros in place of padding, before a layer multiplies it: 0 · NaN is NaN, in a weight's gradient too."""
    return x if valid is None else torch.where(valid.unsqueeze(-1), x, 0)


def _squeezed(result: Any, return_map: bool) -> Any:
    """The one row of a context (*lead, 1, W) → (*lead, W)."""
    return (result[0].squeeze(-2), result[1]) if return_map else result.squeeze(-2)


def _check_width(where: str, name: str, x: Tensor, width: int) -> None:
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"{where}: {name} ({shape(x)}) must be (..., length, {width}).")
