"""Attention over packed sequences: a batch of different lengths as one run of tokens, without padding.

padded (B, T)        packed (N,)                  lengths
a b c ·
d e · ·        →     a b c d e f g h i            3 2 4
f g h i
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import check, native_packed
from .attend import serve
from .choose import choose
from .map import AttentionMap
from .masks import Mask
from .native_packed import Layout
from .packed_op import request_of, traceable, traced
from .request import Request, Weighting
from .similarity import autocast_dtype
from .tensor_types import require_supported

Lengths = Tensor | Sequence[int]


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    similarity: Any = "scaled_dot",
    weighting: Weighting = "softmax",
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    dropout_p: float = 0.0,
    return_maps: bool = False,
    backend: str = "auto",
) -> Any:
    """`attend` for sequences of different lengths, each to itself, that lie one after the other without padding.

        contextᵦ = attend(queryᵦ, keyᵦ, valueᵦ)      queryᵦ = the rows of sequence b, heads first

    The native kernels read and write every sequence where it lies: a batch costs what its pairs of tokens cost. What
    they do not serve (`attend`: callables, additive scores, hard weights, dropout, other devices) is padded, attended
    to with `lengths`, and cut again: the same numbers, at the cost of padding.

    Args:
        query: (Nq, H, D), the tokens of all sequences in one dimension, heads inside.
        key: (Nk, H or a divisor under `enable_gqa`, D).
        value: (Nk, as key, Dv).
        lengths: (B,) queries of each sequence, which add up to Nq; 0 is a length.
        key_lengths: (B,) keys of each; default `lengths`.
        is_causal, window: by the position within the sequence; query i and key i stand at position i.
        return_maps: also return a list of B `AttentionMap`s, (H, Tq, Tk) each.
        scale, enable_gqa, similarity, weighting, softcap, dropout_p, backend: as in `attend`.

    Returns:
        The context (Nq, H, Dv), or (context, maps). Queries of a sequence without keys get zeros.

    Raises:
        ValueError: with the value and the remedy.

    Differs from `attend`: no attn_mask, whose rows and columns would be those of a padded batch, and no
    causal_offset. Under torch.compile the dot products are one operator (`regard::packed`); other similarities, hard
    weights, dropout and maps break the graph.

    >>> import regard
    >>> x = torch.randn(9, 4, 8)                                                   # three sentences, four heads
    >>> context, maps = regard.attend_packed(x, x, x, [3, 2, 4], return_maps=True)
    >>> tuple(context.shape), [m.shape for m in maps]
    ((9, 4, 8), [(4, 3, 3), (4, 2, 2), (4, 4, 4)])
    """
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "similarity": similarity,
        "weighting": weighting,
        "softcap": softcap,
        "window": window,
    }
    return _attend(query, key, value, lengths, key_lengths, options, return_maps, backend)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Lengths,
    key_lengths: Lengths | None,
    options: dict[str, Any],
    return_maps: bool,
    backend: str,
) -> Any:
    _check(query, key, value)
    # one request for all tokens, heads first; a sequence is a stretch of it
    request = Request.of(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), **options)
    if torch.compiler.is_compiling() and not return_maps and traceable(request.reduced()):
        cut = _tensor(lengths)
        return traced(request.reduced(), cut, cut if key_lengths is None else _tensor(key_lengths), backend)
    layout = layout_of(query, key, lengths, key_lengths)
    if autocast_dtype(request.device) is None:
        context = _serve(request, layout, backend)
    else:
        with torch.autocast(request.device.type, enabled=False):  # it was cast once; sums stay wide
            context = _serve(request, layout, backend)
    return (context, list(_maps(request, layout))) if return_maps else context


def _serve(request: Request, layout: Layout, backend: str) -> Tensor:
    if backend in ("auto", "native") and native_packed.refusal(request) is None:
        context = native_packed.context(request, layout)
        if context is not None:
            return context
    return _padded(request, layout, backend)


def _padded(request: Request, layout: Layout, backend: str) -> Tensor:
    """By a batch padded to its longest sequence."""
    mask, device = request.mask, request.device
    queries, keys = layout.queries.to(device), layout.keys.to(device)
    of_queries = places(queries, request.queries, layout.most_queries)
    of_keys = of_queries if layout.same else places(keys, request.keys, layout.most_keys)

    def pad(x: Tensor, at: Tensor, longest: int) -> Tensor:  # (H, N, D) → (B, H, T, D)
        room = x.new_zeros(layout.sequences * longest, x.shape[0], x.shape[-1])
        return room.index_copy(0, at, x.transpose(0, 1)).unflatten(0, (layout.sequences, longest)).transpose(1, 2)

    padded = replace(
        request,
        q=pad(request.q, of_queries, layout.most_queries),
        k=pad(request.k, of_keys, layout.most_keys),
        v=pad(request.value, of_keys, layout.most_keys),
        mask=Mask(None, mask.left, mask.right, 0, keys.reshape(-1, 1, 1, 1)),
        lead=(layout.sequences, *request.lead),
    )
    context = serve(padded, choose(padded, backend).backend, False)  # (B, H, T, Dv)
    return context.transpose(1, 2).flatten(0, 1).index_select(0, of_queries)  # (N, H, Dv)


def _maps(request: Request, layout: Layout) -> Iterator[AttentionMap]:
    """One for each sequence, which finds its statistic when it is looked at."""
    kept, query, key = request.kept(), 0, 0
    for queries, keys in zip(layout.queries.tolist(), layout.keys.tolist(), strict=True):
        rows, cols = slice(query, query + queries), slice(key, key + keys)
        yield AttentionMap(replace(kept, q=kept.q[:, rows], k=kept.k[:, cols]))
        query, key = rows.stop, cols.stop


def places(lengths: Tensor, total: int, stride: int = 0) -> Tensor:
    """Where each of the `total` tokens stands in a batch whose rows are `stride` long, (N,); 0: in its own sequence.

    >>> places(torch.tensor([3, 2]), 5), places(torch.tensor([3, 2]), 5, stride=4)
    (tensor([0, 1, 2, 0, 1]), tensor([0, 1, 2, 4, 5]))
    """
    starts = lengths.cumsum(0) - lengths  # (B,) the first token of each
    shift = torch.arange(len(lengths), device=lengths.device) * stride - starts  # (B,)
    return torch.arange(total, device=lengths.device) + shift.repeat_interleave(lengths, output_size=total)  # (N,)


class _Read(NamedTuple):
    """Lengths that were read: as a tensor on the CPU, and the largest."""

    lengths: Tensor
    most: int


def layout_of(query: Tensor, key: Tensor, lengths: Lengths, key_lengths: Lengths | None) -> Layout:
    """The lengths of queries and keys, which must add up to the rows there are."""
    queries = _read("lengths", lengths, query, "queries")
    if key_lengths is None and len(key) != len(query):
        raise ValueError(
            f"attend_packed: key_lengths must be given where key ({check.shape(key)}) has not as many rows as query "
            f"({check.shape(query)})."
        )
    keys = queries if key_lengths is None else _read("key_lengths", key_lengths, key, "keys")
    if len(keys.lengths) != len(queries.lengths):
        raise ValueError(
            f"attend_packed: key_lengths ({len(keys.lengths)}) must be as many as lengths ({len(queries.lengths)}), "
            "one per sequence."
        )
    return Layout(queries.lengths, keys.lengths, queries.most, keys.most, key_lengths is None)


def _read(name: str, given: Lengths, rows: Tensor, what: str) -> _Read:
    x = _tensor(given)
    if x.ndim != 1 or x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(
            f"attend_packed: {name} ({check.shape(x)}) must be whole numbers, one per sequence; got {check.dtype(x)}."
        )
    numbers = x.tolist()
    if min(numbers, default=0) < 0 or sum(numbers) != len(rows):
        wrong = f"got {min(numbers)}" if min(numbers, default=0) < 0 else f"they add up to {sum(numbers)}"
        raise ValueError(
            f"attend_packed: {name} must be at least 0 and add up to the {what} there are ({len(rows)}, in "
            f"{check.shape(rows)}); {wrong}."
        )
    return _Read(x.to("cpu", torch.int64).contiguous(), max(numbers, default=0))


def _tensor(given: Lengths) -> Tensor:
    return given if isinstance(given, Tensor) else torch.as_tensor(given, dtype=None if len(given) else torch.int64)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or (x.ndim != 3 and not x.is_nested):
            got = check.shape(x) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"attend_packed: {name} must be a tensor (tokens, heads, width); got {got}. For one head use "
                "x[:, None]; regard.data.pack packs a padded batch."
            )
        require_supported("attend_packed", name, x)


def _told(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, key_lengths: Tensor, *plan: Any) -> Tensor:
    *numbers, backend = plan
    layout = layout_of(q.transpose(0, 1), k.transpose(0, 1), lengths, key_lengths)
    return _serve(request_of(q, k, v, *numbers), layout, backend)


@torch.library.impl("regard::packed", "CompositeExplicitAutograd")
@torch.no_grad()
def _operator(*plan: Any) -> Tensor:
    return _told(*plan).contiguous()


@torch.library.impl("regard::packed_backward", "CompositeExplicitAutograd")
def _operator_backward(grad: Tensor, *plan: Any) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in plan[:3]]
        gradients = torch.autograd.grad(_told(*leaves, *plan[3:]), leaves, grad)
    return tuple(gradient.contiguous() for gradient in gradients)
