"""Views of a map by the native kernels (`compute_view`). Each is one pass over the scores, which are never stored.

The scores are divided into rectangles in a way that depends only on the request, and no two of them write to the same
element. So results are bit-identical for any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .. import streamed_views
from ..cells import Cells, Shading, mean_
from ..masks import Span
from ..request import Request
from ..similarity import Additive
from ..statistic import Statistic
from ..streamed_views import Reduce
from . import backend, engine
from .plan import Plan, address, addressable, channel_weights, kernels, unit_rows_by_head, view

RANGE = 43
"""Largest |x| for which e^{2x} is in the range of the additive kernels."""
WEIGHTS = 2**10
"""Largest Σ |w| for which additive scores of blocks that start at different keys agree well enough."""
HIGHEST = 2**6
"""Likewise for the highest score of a row, including a float mask."""
ROWS = 192
"""Queries per task: as many as share one transposition of the keys."""
COLUMNS = 128
"""Keys per task of x · weights: one block."""
PANEL = 256
"""Columns of x per pass. Recomputing scores for more columns is cheaper than sums that do not fit in the cache."""
MOST_TOP = 128
"""Largest count for which `top` maintains a sorted list; for more, sorting is faster."""
TASKS = 64
"""Number of tasks into which the tall cells of an image are divided."""


def refusal(request: Request, statistic: Statistic | None = None) -> str | None:
    """Return why the native views cannot serve a request, or None if they can."""
    if engine.module is None:
        return engine.reason
    if request.device.type != "cpu":
        return f"it supports only the CPU, not {request.device.type}"
    if not _readable(request):
        return "its tensors are not plain tensors in CPU memory"
    if isinstance(request.mask.offset, Tensor) and request.mask.offset.shape[-2] > 1:
        return "its rows were selected individually, each with its own offset"
    if request.wide != torch.float32:
        return f"it computes in float32, not in {str(request.wide).removeprefix('torch.')}"
    unsupported = backend.unsupported_feature(request)
    if unsupported is not None:
        return unsupported
    if isinstance(request.similarity, Additive) and not _in_range(request):
        return f"its additive scores are for |query| and |key| up to {RANGE} and finite weights, Σ|w| up to {WEIGHTS}"
    if statistic is not None and bool(statistic.isnan().any()):
        return "some row attends to NaN or infinity"
    if statistic is not None and statistic.large is not None and bool(statistic.large.any()):
        return "some row has large scores, and its statistic is from other arithmetic"
    if statistic is not None and isinstance(request.similarity, Additive) and _out_of_range(statistic.highest):
        return f"its additive scores are for rows whose highest is at most {HIGHEST}"
    return None


def _readable(request: Request) -> bool:
    """Return whether the kernels can read all tensors of a request."""
    numbers = (x for x in (request.mask.offset, request.mask.lengths) if isinstance(x, Tensor))
    return all(x is None or addressable(x) for x in (*request.tensors, *numbers))


def statistic(request: Request) -> Statistic:
    """Compute the statistic of every row, (*lead, Tq)."""
    both = torch.empty(2, *request.lead, request.queries)
    out = Statistic(*both.unbind(0))
    if both.numel():
        _run(request, "statistic", None, out)
    return out


def weights(request: Request, statistic: Statistic, cols: Span) -> Tensor:
    """Compute the weights of all rows and some columns, (*lead, Tq, cols)."""
    if isinstance(cols, Tensor):
        return streamed_views.weights(request, statistic, cols)
    out = torch.empty(*request.lead, request.queries, cols.stop - cols.start)
    _run(request, "weights", out, statistic, cols=cols)
    return out


def top(request: Request, statistic: Statistic, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest weights of each query and their indices, (*lead, Tq, count); 0 and −1 if there are fewer."""
    if count > MOST_TOP:
        return streamed_views.top(request, streamed_views.statistic(request), count)
    out = torch.empty(*request.lead, request.queries, count)
    at = torch.empty(out.shape, dtype=torch.int64)
    _run(request, "top", out, statistic, at=at)
    return out, at


def entropy(request: Request, statistic: Statistic) -> Tensor:
    """Compute −Σⱼ weightᵢⱼ log weightᵢⱼ in nats, (*lead, Tq)."""
    out = torch.empty(*request.lead, request.queries, 1)
    _run(request, "entropy", out, statistic)
    return out.squeeze(-1)


def received(request: Request, statistic: Statistic) -> Tensor:
    """Compute the total weight of each key, Σᵢ weightᵢⱼ, (*lead, Tk), as an image with one row and one cell per key."""
    if not request.queries or not request.keys:
        return torch.zeros(*request.lead, request.keys)
    return pool(request, statistic, Cells(0, request.queries, 1), Cells(0, request.keys, request.keys), "sum").squeeze(
        -2
    )


def matmul(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """Compute weights · x for x (*lead, Tk, E): (*lead, Tq, E)."""
    out = torch.empty(*request.lead, request.queries, x.shape[-1])
    for start in range(0, x.shape[-1], PANEL):
        panel = slice(start, start + PANEL)
        _run(request, "matmul", out[..., panel], statistic, x=x[..., panel])
    return out


def rmatmul(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """Compute x · weights for x (*lead, E, Tq): (*lead, E, Tk)."""
    out = torch.empty(*request.lead, x.shape[-2], request.keys)
    for start in range(0, x.shape[-2], PANEL):
        panel = slice(start, start + PANEL)
        _run(request, "rmatmul", out[..., panel, :], statistic, request.keys, COLUMNS, x=x[..., panel, :])
    return out


def pool(request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce) -> Tensor:
    """Pool a region to an image, (*lead, rows.wanted, cols.wanted)."""
    parts = _parts(request, rows)
    # each of m · p cells over n entries is inside one of m cells: ⌊c·p·n / (m·p)⌋ = ⌊c·n / m⌋
    fine = Cells(rows.start, rows.stop, rows.count * parts)
    out = _picture(request, statistic, fine, cols, reduce)
    if parts > 1:
        divided = out.unflatten(-2, (rows.count, parts))  # (*lead, cells, parts, cols)
        out = divided.amax(-2) if reduce == "max" else divided.sum(-2)
    if reduce == "mean":
        out = mean_(out, rows, cols)
    return cols.enlarge(rows.enlarge(out, -2), -1)


def shades(
    request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading
) -> Tensor:
    """Pool a region to an image of uint8 shades, in the kernel unless cells are divided into parts."""
    if reduce == "sum" or _parts(request, rows) > 1:
        return shading.of(pool(request, statistic, rows, cols, reduce))
    out = torch.empty(*request.lead, rows.count, cols.count, dtype=torch.uint8)
    _picture(request, statistic, rows, cols, reduce, (out, shading))
    return cols.enlarge(rows.enlarge(out, -2), -1)


def _parts(request: Request, rows: Cells) -> int:
    """Return into how many parts each row of cells is divided, so that there are enough tasks."""
    return max(1, min(_height(rows) // ROWS, TASKS // max(1, rows.count * request.entries)))


def _height(rows: Cells) -> int:
    """Return the largest number of entries of a cell."""
    return -(-rows.entries // rows.count)


def _picture(
    request: Request,
    statistic: Statistic,
    rows: Cells,
    cols: Cells,
    reduce: Reduce,
    shades: tuple[Tensor, Shading] | None = None,
) -> Tensor:
    """Compute the maximum or sum of each cell, (*lead, rows.count, cols.count); with `shades`, write shades instead."""
    count = rows.count
    out = torch.empty(*request.lead, count, cols.count) if shades is None else shades[0]
    most = max(1, ROWS // _height(rows))
    per_task = -(-count // _rounded_tasks(-(-count // most)))
    kind = "max" if reduce == "max" else "sum"  # the mean is a sum, divided by the number of entries
    _run(request, kind, out, statistic, count, per_task, cols=cols.region, cells=(rows, cols), shades=shades)
    return out


def _rounded_tasks(tasks: int) -> int:
    """Round a number of tasks up to a multiple of 4, so that two or four threads get equal work.

    >>> [_rounded_tasks(tasks) for tasks in (1, 2, 3, 6, 11)]
    [1, 2, 4, 8, 12]
    """
    return tasks if tasks < 3 else -(-tasks // 4) * 4


def _in_range(request: Request) -> bool:
    """Return whether the inputs are in the range of the additive kernels. NaN is not."""
    (w,) = request.similarity.parameters
    return bool((w.to(torch.float32).abs().sum(-1) <= WEIGHTS).all()) and all(
        bool((x.abs() <= RANGE).all()) for x in (request.q, request.k)
    )


def _out_of_range(highest: Tensor) -> bool:
    return bool(((highest.abs() > HIGHEST) & (highest != -torch.inf)).any())


class ViewArguments(NamedTuple):
    """Kernel arguments that are the same for all views of a request."""

    plan: Plan
    q: Tensor
    """(B, H, Tq, D)"""
    k: Tensor
    """(B, H / groups, Tk, D)"""
    problem: tuple[Any, ...]
    """`Plan.problem`, with the keys in place of values"""

    @classmethod
    def of(cls, request: Request) -> ViewArguments:
        arguments = _cache.get(request)
        if arguments is not None:
            return arguments
        plan = Plan.of(request)
        q = unit_rows_by_head(request.q.to(torch.float32), request)
        k = unit_rows_by_head(request.k.to(torch.float32), request, request.groups)
        arguments = cls(plan, q, k, plan.problem(q, k, k, q.shape[-1]))
        dense = () if request.mask.dense is None else ((plan.tensors[-1], request.mask.dense),)
        if all(address(used) == address(original) for used, original in ((q, request.q), (k, request.k), *dense)):
            _cache[request] = arguments  # do not cache copies, which would take memory
        return arguments


_cache: WeakKeyDictionary[Request, ViewArguments] = WeakKeyDictionary()
"""Cache for requests that are viewed tile by tile: creating the arguments takes a third of the time of a tile."""


def _subtracted(statistic: Statistic, rows: Cells | None) -> tuple[Tensor, Tensor]:
    """Return `Statistic.subtracted` in float32; only the given rows are defined.

    A tile of a long map covers few of its rows. Computing all rows would take longer than the tile.
    """
    if rows is None:
        highest, log_total = statistic.subtracted()
        return highest.to(torch.float32).contiguous(), log_total.to(torch.float32).contiguous()
    part = slice(rows.start, rows.stop)
    whole = torch.empty(2, *statistic.shape)
    for out, values in zip(whole, statistic[..., part].subtracted(), strict=True):
        out[..., part] = values
    return whole[0], whole[1]


def _run(
    request: Request,
    kind: str,
    out: Tensor | None,
    statistic: Statistic,
    units: int | None = None,
    per_task: int = ROWS,
    *,
    at: Tensor | None = None,
    x: Tensor | None = None,
    cols: slice | None = None,
    cells: tuple[Cells, Cells] | None = None,
    shades: tuple[Tensor, Shading] | None = None,
) -> None:
    """Run the kernel and write to out (*lead, rows, n), with contiguous leading dimensions; None: to the statistic.

    A task computes `per_task` of the `units` of a head. Units are rows by default.
    """
    if out is not None and not out.numel():
        return
    arguments = ViewArguments.of(request)
    factor = None if x is None else unit_rows_by_head(x, request)
    if out is None:
        rows, destination = (statistic.highest, statistic.total), (0, 0, 0, 0, 0)
    else:
        rows = _subtracted(statistic, None if cells is None else cells[0])
        count = out.shape[-2] if kind == "rmatmul" else out.shape[-1]
        destination = (address(out), out.stride(-3) if request.lead else 0, out.stride(-2), address(at), count)
    columns = slice(0, request.keys) if cols is None else cols
    w, eq, ek = _additive(request, arguments)
    succeeded = kernels().compute_view(
        kind,
        arguments.problem,
        None if w is None else (address(w), w.stride(0), w.stride(1), 0),
        address(eq),
        address(ek),
        (address(rows[0]), address(rows[1])),
        destination,
        (0, 0, 0, 0) if factor is None else view(factor),
        None if cells is None else tuple(n for side in cells for n in (side.start, side.stop, side.count)),
        None if shades is None else _shade_arguments(*shades),
        (columns.start, columns.stop, request.queries if units is None else units, per_task),
        torch.get_num_threads(),
    )
    assert succeeded, "refusal comes first"


def _shade_arguments(out: Tensor, shading: Shading) -> tuple[int | float, ...]:
    """Return the kernel arguments for shades: the output (*lead, rows, cols) and the mapping."""
    *_, height, width = out.shape
    return address(out), height * width, width, int(shading.log), *shading.line


def _additive(request: Request, arguments: ViewArguments) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the channel weights of additive scores and memory for the exponentials of queries and keys; else None."""
    if not isinstance(request.similarity, Additive):
        return None, None, None
    q, k = arguments.q, arguments.k
    eq = q.new_empty(*q.shape[:-1], kernels().query_row(q.shape[-1]))
    ek = k.new_empty(*k.shape[:-1], kernels().key_row(k.shape[-1]))
    return channel_weights(request, arguments.plan), eq, ek
