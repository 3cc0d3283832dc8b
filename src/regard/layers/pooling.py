"""Pooling: many vectors → one, with or without a query.

    non-volitional (what stands out)      AveragePooling, MaxPooling, FullyConnectedPooling: no query
    volitional (what is sought)           AttentionPooling, KernelPooling: a query is compared with keys

A red cup among papers attracts attention by itself; a book is found by looking for it. All of them ignore padding,
given as `lengths` (number of valid entries, or one per batch entry) or `mask` (True = valid), even if it contains NaN.
If no entry is valid, the result is zero.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import torch
from torch import Tensor, nn

from ..attention import AttentionMap, masks
from ..attention import attend as plain_attend
from ..attention.packed_layout import Lengths
from ..core.tensors import broadcasts, dtype, readable, shape, shape_of
from ..core.typed_call import same_type
from .learned_similarity import Similarity, StoredSimilarity, resolve_similarity, stored_similarity
from .multihead import AttentionFunction


class PoolingWithoutQuery(Protocol):
    """The call of a pooling without a query that has a map."""

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, *, lengths: int | Lengths | None = None, mask: Tensor | None = None, return_map: Literal[True]
    ) -> tuple[Tensor, AttentionMap]: ...
    @overload
    def forward(
        self, x: Tensor, *, lengths: int | Lengths | None = None, mask: Tensor | None = None, return_map: bool
    ) -> Tensor | tuple[Tensor, AttentionMap]: ...


class AveragePooling(nn.Module):
    """The mean of the valid entries: attention with equal weights.

        y = Σₜ xₜ / n,  t over the n valid entries

    Shapes: (*lead, T, W) → (*lead, W); the map is (*lead, 1, T).

    >>> x = torch.tensor([[[1.0], [3.0], [torch.nan]]])
    >>> AveragePooling()(x, lengths=[2]).tolist()
    [[2.0]]
    """

    @same_type(PoolingWithoutQuery.forward)
    def forward(
        self, x: Tensor, *, lengths: int | Lengths | None = None, mask: Tensor | None = None, return_map: bool = False
    ) -> Tensor | tuple[Tensor, AttentionMap]:
        """Return the mean, or (mean, map)."""
        _valid("average pooling", x, lengths, mask)
        query = x.new_zeros(*x.shape[:-2], 1, 1)  # (*lead, 1, 1): a uniform weighting ignores the query
        key = x[..., :1]  # (*lead, T, 1)
        result = plain_attend(
            query, key, x, _over_keys(mask), weighting="uniform", lengths=lengths, return_map=return_map
        )
        return _without_query_dimension(result)  # (*lead, W)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


class MaxPooling(nn.Module):
    """The maximum of the valid entries, per channel.

        y = maxₜ xₜ,  t over the valid entries

    Shapes: (*lead, T, W) → (*lead, W). Each channel selects its own entry, so there is no map. Equal maxima share the
    gradient.

    >>> x = torch.tensor([[[1.0, 5.0], [3.0, 2.0], [9.0, 9.0]]])
    >>> MaxPooling()(x, mask=torch.tensor([[True, True, False]])).tolist()
    [[3.0, 5.0]]
    """

    def forward(self, x: Tensor, *, lengths: int | Lengths | None = None, mask: Tensor | None = None) -> Tensor:
        valid = _valid("max pooling", x, lengths, mask)
        if x.shape[-2] == 0:
            return x.sum(-2)  # (*lead, W), zeros
        if valid is None:
            return x.amax(-2)  # (*lead, W)
        highest = torch.where(valid.unsqueeze(-1), x, -torch.inf).amax(-2)  # (*lead, W)
        return torch.where(valid.any(-1, keepdim=True), highest, 0)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


class FullyConnectedPooling(nn.Module):
    """A weighted mean whose weights are computed from each entry alone by a learned layer, without a query.

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
        # no bias: a constant added to all scores does not change the softmax
        self.score = nn.Linear(width, 1, bias=False) if score is None else score

    @same_type(PoolingWithoutQuery.forward)
    def forward(
        self, x: Tensor, *, lengths: int | Lengths | None = None, mask: Tensor | None = None, return_map: bool = False
    ) -> Tensor | tuple[Tensor, AttentionMap]:
        """Return the weighted mean, or (mean, map)."""
        _check_width("fully connected pooling", "x", x, self.width)
        valid = _valid("fully connected pooling", x, lengths, mask)
        x = _zero_padding(x, valid)
        scores = self.score(x)  # (*lead, T, 1)
        if scores.shape != (*x.shape[:-1], 1):
            raise ValueError(
                f"fully connected pooling: score must give one number per entry, {shape_of((*x.shape[:-1], 1))}; "
                f"got {shape(scores)}. End it with nn.Linear(…, 1)."
            )
        query = scores.new_ones(*x.shape[:-2], 1, 1)  # (*lead, 1, 1): a query of 1 returns each score unchanged
        result = plain_attend(
            query, scores, x, _over_keys(mask), similarity="dot", lengths=lengths, return_map=return_map
        )
        return _without_query_dimension(result)  # (*lead, W)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


class AttentionPooling(nn.Module):
    """Attention with learned projections of query and key, compared by a similarity. Values are not projected.

        weights = softmax(similarity(Wq·query, Wk·key)),   context = weights · value

    Shapes: query (*lead, Tq, query_width), key (*lead, Tk, key_width), value (*lead, Tk, Dv), the key by default
    → (*lead, Tq, Dv); the map is (*lead, Tq, Tk).
    With similarity="additive" this is Bahdanau et al. 2015, appendix A.1.2: Wq is W_a, Wk is U_a, w is v_a.
    `attend` is the operator, optionally with options: `partial(regard.attend, weighting="hard")`.

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
        attend: AttentionFunction = plain_attend,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(
                f"attention pooling: dropout ({dropout}) must lie in [0, 1): the share of weights dropped."
            )
        self.query = nn.Linear(query_width, width, bias)
        self.key = nn.Linear(key_width, width, bias)
        self.similarity: StoredSimilarity = stored_similarity("attention pooling", similarity, width)
        self.dropout = dropout
        self.attend: AttentionFunction = attend

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: Literal[True],
    ) -> tuple[Tensor, AttentionMap]: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: bool,
    ) -> Tensor | tuple[Tensor, AttentionMap]: ...
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMap]:
        """Return the context, or (context, map). `lengths` and `mask` apply to the keys."""
        _check_width("attention pooling", "query", query, self.query.in_features)
        _check_width("attention pooling", "key", key, self.key.in_features)
        valid = _valid("attention pooling", key, lengths, mask)
        return self.attend(
            self.query(query),  # (*lead, Tq, D)
            self.key(_zero_padding(key, valid)),  # (*lead, Tk, D)
            key if value is None else value,
            _over_keys(mask),
            dropout_p=self.dropout if self.training else 0.0,
            similarity=resolve_similarity(self.similarity),
            lengths=lengths,
            return_map=return_map,
        )

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


class KernelPooling(nn.Module):
    """Nadaraya–Watson regression: a mean of the values, weighted by the distance of their keys from the query.

        weights = softmaxⱼ(−‖query − keyⱼ‖² · w² / 2),   context = weights · value

    Shapes: query (*lead, Tq, D), key (*lead, Tk, D), value (*lead, Tk, Dv) → (*lead, Tq, Dv); map (*lead, Tq, Tk).
    w is the inverse standard deviation of the Gaussian: a large w gives a narrow kernel. With learnable=False this is
    attention without trained parameters.
    Paper: Nadaraya 1964; Watson 1964; as attention, Zhang et al., Dive into Deep Learning, section 10.2.

    >>> keys, values = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [10.0], [20.0]])
    >>> KernelPooling(w=9.0, learnable=False)(torch.tensor([[1.0], [1.5]]), keys, values).tolist()
    [[10.0], [15.0]]
    """

    def __init__(self, w: float = 1.0, *, learnable: bool = True) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(float(w)), requires_grad=learnable)

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: Literal[True],
    ) -> tuple[Tensor, AttentionMap]: ...
    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: bool,
    ) -> Tensor | tuple[Tensor, AttentionMap]: ...
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: int | Lengths | None = None,
        mask: Tensor | None = None,
        return_map: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMap]:
        """Return the context, or (context, map). `lengths` and `mask` apply to the keys."""
        _check_width("kernel pooling", "key", key, query.shape[-1])
        valid = _valid("kernel pooling", key, lengths, mask)
        q, k = _as_dot_products(query, key, valid, self.w)  # (*lead, T, D + 1) each
        v = value.to(q.dtype)
        with _full_precision(q):
            result = plain_attend(q, k, v, _over_keys(mask), similarity="dot", lengths=lengths, return_map=return_map)
        if isinstance(result, tuple):
            return result[0].to(value.dtype), result[1]  # (*lead, Tq, Dv)
        return result.to(value.dtype)  # (*lead, Tq, Dv)

    if TYPE_CHECKING:

        @same_type(forward)
        def __call__(self, *args: object, **kwargs: object) -> object: ...


def _as_dot_products(query: Tensor, key: Tensor, valid: Tensor | None, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys with one more channel, whose dot products have the Gaussian's softmax.

        −‖q − k‖²·w²/2  =  w²·q·k − w²·‖k‖²/2 − w²·‖q‖²/2

    No ‖q − k‖ per pair is stored. The last term is the same for all keys of a query and cancels in the softmax. The
    middle term, a bias per key, is an additional channel, multiplied by 1 in the query. As a float mask it would
    prevent SDPA's fused kernel if w or the keys require a gradient.
    """
    accumulation_dtype = torch.promote_types(query.dtype, torch.float32)
    q, k, w = query.to(accumulation_dtype), _zero_padding(key, valid).to(accumulation_dtype), w.to(accumulation_dtype)
    # distances are translation invariant; relative to the mean of the keys the two terms lose the fewest digits
    count = k.shape[-2] if valid is None else valid.sum(-1, keepdim=True).unsqueeze(-1)  # (*lead, 1, 1)
    centre = k.detach().sum(-2, keepdim=True) / torch.as_tensor(count).clamp(min=1)  # (*lead, 1, D)
    q, k = q - centre, k - centre
    bias = -(w * w) * (k * k).sum(-1, keepdim=True) / 2  # (*lead, Tk, 1)
    return torch.cat((q * (w * w), torch.ones_like(q[..., :1])), -1), torch.cat((k, bias), -1)


def _full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, because a difference of squares needs full precision."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _valid(where: str, x: Tensor, lengths: int | Lengths | None, mask: Tensor | None) -> Tensor | None:
    """Return which entries of x (*lead, T, W) are valid, broadcastable to (*lead, T); None for all."""
    if x.ndim < 2:
        raise ValueError(f"{where}: the entries ({shape(x)}) must be (..., length, width); got {x.ndim} dimensions.")
    entries = x.shape[:-1]
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(
                f"{where}: mask ({shape(mask)}) must be boolean, True = valid; got {dtype(mask)}. "
                "regard.masks.from_ones converts numbers 1 and 0, regard.masks.from_ignore the other polarity."
            )
        if mask.ndim > len(entries) or mask.shape[-1:] != entries[-1:] or not broadcasts(mask.shape, entries):
            raise ValueError(f"{where}: mask ({shape(mask)}) must fit the entries, {shape_of(entries)}.")
    if lengths is None:
        return mask
    lengths = torch.as_tensor(lengths, device=x.device)  # () or (B,)
    if readable(lengths) and lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= entries[-1]:
        wrong = int(lengths.min()) if int(lengths.min()) < 0 else int(lengths.max())
        raise ValueError(f"{where}: lengths ({wrong}) must lie in 0…{entries[-1]}, the number of entries.")
    if lengths.is_floating_point() or not broadcasts(lengths.shape, entries[: lengths.ndim]):
        raise ValueError(
            f"{where}: lengths ({shape(lengths)}, {dtype(lengths)}) must be one integer, or one per batch entry, "
            f"{shape_of(entries[:-1])}."
        )
    lengths = lengths.reshape(*lengths.shape, *(1,) * (len(entries) - 1 - lengths.ndim))  # (B, 1, …)
    valid = masks.padding(lengths, entries[-1])  # (B, …, T)
    return valid if mask is None else valid & mask


def _over_keys(valid: Tensor | None) -> Tensor | None:
    """Add a query dimension to the mask: (*lead, T) → (*lead, 1, T)."""
    return None if valid is None else valid.unsqueeze(-2)


def _zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """Replace padding by zeros before a layer multiplies it: 0 · NaN is NaN, also in the gradient of a weight."""
    return x if valid is None else torch.where(valid.unsqueeze(-1), x, 0)


def _without_query_dimension(
    result: Tensor | tuple[Tensor, AttentionMap],
) -> Tensor | tuple[Tensor, AttentionMap]:
    """Remove the query dimension of a context: (*lead, 1, W) → (*lead, W)."""
    return (result[0].squeeze(-2), result[1]) if isinstance(result, tuple) else result.squeeze(-2)


def _check_width(where: str, name: str, x: Tensor, width: int) -> None:
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"{where}: {name} ({shape(x)}) must be (..., length, {width}).")
