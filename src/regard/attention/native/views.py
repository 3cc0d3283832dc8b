"""The verbs of a map by the native kernels: those of `observe`, each one pass over the scores, which are never stored.

Work is cut into rectangles of the scores in a way that depends on the request alone, and no two of them write the same
number: the answer has the same bits on any number of threads.
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
from .plan import Plan, address, addressable, channel_weights, four, kernels, view

RANGE = 43
"""|x| beyond which e^{2x} leaves the range of the additive kernels."""
WEIGHTS = 2**10
"""Σ |w| up to which additive scores of blocks that start at different keys agree well enough."""
HIGHEST = 2**6
"""Likewise for the highest score of a row, with what a mask adds to it."""
ROWS = 192
"""Queries of a task, as many as share one transposition of the keys."""
COLUMNS = 128
"""Keys of a task of x · weights: one block."""
PANEL = 256
"""Columns of x at a time: beyond it, scores are computed again, which costs less than sums that leave the cache."""
MOST_TOP = 128
"""Keys per query that `top` holds in order as it goes; for more, sorting is faster."""
TASKS = 64
"""Tasks into which the tall cells of a picture are cut."""


def refusal(request: Request, statistic: Statistic | None = None) -> str | None:
    """Why it cannot serve a request, in words; None when it can."""
    if engine.module is None:
        return engine.reason
    if request.device.type != "cpu":
        return f"it is for the CPU, not for {request.device.type}"
    if not _readable(request):
        return "its tensors are not plain ones in memory"
    if isinstance(request.mask.offset, Tensor) and request.mask.offset.shape[-2] > 1:
        return "its rows were picked one by one, each with an offset of its own"
    if request.wide != torch.float32:
        return f"it computes in float32, not in {str(request.wide).removeprefix('torch.')}"
    if isinstance(request.similarity, Additive) and not _within(request):
        return f"its additive scores are for |query| and |key| up to {RANGE} and finite weights, Σ|w| up to {WEIGHTS}"
    if statistic is not None and bool(statistic.isnan().any()):
        return "some row attends to what is not finite"
    if statistic is not None and isinstance(request.similarity, Additive) and _beyond(statistic.highest):
        return f"its additive scores are for rows whose highest is at most {HIGHEST}"
    return backend.unfit(request)


def _readable(request: Request) -> bool:
    """Whether all of its tensors are, as the kernels have them, plain ones in the memory of the CPU."""
    numbers = (x for x in (request.mask.offset, request.mask.lengths) if isinstance(x, Tensor))
    return all(x is None or addressable(x) for x in (*request.tensors, *numbers))


def statistic(request: Request) -> Statistic:
    """The statistic of every row, (*lead, Tq)."""
    both = torch.empty(2, *request.lead, request.queries)
    out = Statistic(*both.unbind(0))
    if both.numel():
        _run(request, "statistic", None, out)
    return out


def weights(request: Request, statistic: Statistic, cols: Span) -> Tensor:
    """The weights of all rows and some columns, (*lead, Tq, cols)."""
    if isinstance(cols, Tensor):
        return streamed_views.weights(request, statistic, cols)
    out = torch.empty(*request.lead, request.queries, cols.stop - cols.start)
    _run(request, "weights", out, statistic, cols=cols)
    return out


def top(request: Request, statistic: Statistic, count: int) -> tuple[Tensor, Tensor]:
    """The strongest keys of each query, values and indices (*lead, Tq, count); 0 and −1 where there are fewer."""
    if count > MOST_TOP:
        return streamed_views.top(request, streamed_views.statistic(request), count)
    out = torch.empty(*request.lead, request.queries, count)
    at = torch.empty(out.shape, dtype=torch.int64)
    _run(request, "top", out, statistic, at=at)
    return out, at


def entropy(request: Request, statistic: Statistic) -> Tensor:
    """−Σⱼ weightᵢⱼ log weightᵢⱼ in nats, (*lead, Tq)."""
    out = torch.empty(*request.lead, request.queries, 1)
    _run(request, "entropy", out, statistic)
    return out.squeeze(-1)


def received(request: Request, statistic: Statistic) -> Tensor:
    """Σᵢ weightᵢⱼ: what each key receives, (*lead, Tk): a picture of one row, a cell for each key."""
    if not request.queries or not request.keys:
        return torch.zeros(*request.lead, request.keys)
    return pool(request, statistic, Cells(0, request.queries, 1), Cells(0, request.keys, request.keys), "sum").squeeze(
        -2
    )


def times(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """weights · x, x (*lead, Tk, E) → (*lead, Tq, E)."""
    out = torch.empty(*request.lead, request.queries, x.shape[-1])
    for start in range(0, x.shape[-1], PANEL):
        panel = slice(start, start + PANEL)
        _run(request, "times", out[..., panel], statistic, x=x[..., panel])
    return out


def before(request: Request, statistic: Statistic, x: Tensor) -> Tensor:
    """x · weights, x (*lead, E, Tq) → (*lead, E, Tk)."""
    out = torch.empty(*request.lead, x.shape[-2], request.keys)
    for start in range(0, x.shape[-2], PANEL):
        panel = slice(start, start + PANEL)
        _run(request, "before", out[..., panel, :], statistic, request.keys, COLUMNS, x=x[..., panel, :])
    return out


def pool(request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce) -> Tensor:
    """A region as a picture of (rows.wanted, cols.wanted) cells, (*lead, rows.wanted, cols.wanted)."""
    parts = _parts(request, rows)
    # a cell of m · p over n entries lies in one of m: ⌊c·p·n / (m·p)⌋ = ⌊c·n / m⌋
    fine = Cells(rows.start, rows.stop, rows.count * parts)
    out = _picture(request, statistic, fine, cols, reduce)
    if parts > 1:
        pieces = out.unflatten(-2, (rows.count, parts))  # (*lead, cells, parts, cols)
        out = pieces.amax(-2) if reduce == "max" else pieces.sum(-2)
    if reduce == "mean":
        out = mean_(out, rows, cols)
    return cols.enlarge(rows.enlarge(out, -2), -1)


def shades(
    request: Request, statistic: Statistic, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading
) -> Tensor:
    """The same picture in shades, uint8: found where the numbers of a cell are, unless a cell is cut into parts."""
    if reduce == "sum" or _parts(request, rows) > 1:
        return shading.of(pool(request, statistic, rows, cols, reduce))
    out = torch.empty(*request.lead, rows.count, cols.count, dtype=torch.uint8)
    _picture(request, statistic, rows, cols, reduce, (out, shading))
    return cols.enlarge(rows.enlarge(out, -2), -1)


def _parts(request: Request, rows: Cells) -> int:
    """Into how many parts each row of cells is cut, so that there are tasks enough."""
    return max(1, min(_height(rows) // ROWS, TASKS // max(1, rows.count * request.entries)))


def _height(rows: Cells) -> int:
    """The most entries of a cell."""
    return -(-rows.entries // rows.count)


def _picture(
    request: Request,
    statistic: Statistic,
    rows: Cells,
    cols: Cells,
    reduce: Reduce,
    shades: tuple[Tensor, Shading] | None = None,
) -> Tensor:
    """The largest weight of each cell or their sum, (*lead, rows.count, cols.count); into shades, those instead."""
    count = rows.count
    out = torch.empty(*request.lead, count, cols.count) if shades is None else shades[0]
    most = max(1, ROWS // _height(rows))
    per_task = -(-count // _shares(-(-count // most)))
    verb = "largest" if reduce == "max" else "sums"
    _run(request, verb, out, statistic, count, per_task, cols=cols.region, cells=(rows, cols), shades=shades)
    return out


def _shares(tasks: int) -> int:
    """At least so many, and as many for each of two or four threads: with three, one of two does twice the work.

    >>> [_shares(tasks) for tasks in (1, 2, 3, 6, 11)]
    [1, 2, 4, 8, 12]
    """
    return tasks if tasks < 3 else -(-tasks // 4) * 4


def _within(request: Request) -> bool:
    """Whether the kernels of additive scores hold all of its numbers; NaN is not held."""
    (w,) = request.similarity.parameters
    return bool((w.to(torch.float32).abs().sum(-1) <= WEIGHTS).all()) and all(
        bool((x.abs() <= RANGE).all()) for x in (request.q, request.k)
    )


def _beyond(highest: Tensor) -> bool:
    return bool(((highest.abs() > HIGHEST) & (highest != -torch.inf)).any())


class Ready(NamedTuple):
    """A request as the kernels are told of it: what is the same for all of its views."""

    plan: Plan
    q: Tensor
    """(B, H, Tq, D)"""
    k: Tensor
    """(B, H / groups, Tk, D)"""
    problem: tuple[Any, ...]
    """`Plan.problem`, with the keys in place of values"""

    @classmethod
    def of(cls, request: Request) -> Ready:
        found = _known.get(request)
        if found is not None:
            return found
        plan = Plan.of(request)
        q = four(request.q.to(torch.float32), request)
        k = four(request.k.to(torch.float32), request, request.groups)
        found = cls(plan, q, k, plan.problem(q, k, k, q.shape[-1]))
        dense = () if request.mask.dense is None else ((plan.held[-1], request.mask.dense),)
        if all(address(told) == address(given) for told, given in ((q, request.q), (k, request.k), *dense)):
            _known[request] = found  # a copy, of another dtype or layout, is not worth its memory
        return found


_known: WeakKeyDictionary[Request, Ready] = WeakKeyDictionary()
"""Of requests that are looked at again and again, tile by tile: making this anew takes a third as long as a tile."""


def _subtracted(statistic: Statistic, rows: Cells | None) -> tuple[Tensor, Tensor]:
    """`Statistic.subtracted` in float32; only the given rows are defined.

    A tile of a long map covers few of its rows: computing those of all would take longer than the tile.
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
    verb: str,
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
    """Run the kernel into out (*lead, rows, n), whose leading dimensions are contiguous; None: into the statistic.

    A task computes `per_task` of the `units` of a head: rows, unless the view says otherwise.
    """
    if out is not None and not out.numel():
        return
    ready = Ready.of(request)
    factor = None if x is None else four(x, request)
    if out is None:
        rows, into = (statistic.highest, statistic.total), (0, 0, 0, 0, 0)
    else:
        rows = _subtracted(statistic, None if cells is None else cells[0])
        count = out.shape[-2] if verb == "before" else out.shape[-1]
        into = (address(out), out.stride(-3) if request.lead else 0, out.stride(-2), address(at), count)
    columns = slice(0, request.keys) if cols is None else cols
    w, eq, ek = _additive(request, ready)
    served = kernels().observe(
        verb,
        ready.problem,
        None if w is None else (address(w), w.stride(0), w.stride(1), 0),
        address(eq),
        address(ek),
        (address(rows[0]), address(rows[1])),
        into,
        (0, 0, 0, 0) if factor is None else view(factor),
        None if cells is None else tuple(n for side in cells for n in (side.start, side.stop, side.count)),
        None if shades is None else _told(*shades),
        (columns.start, columns.stop, request.queries if units is None else units, per_task),
        torch.get_num_threads(),
    )
    assert served, "refusal comes first"


def _told(out: Tensor, shading: Shading) -> tuple[int | float, ...]:
    """Where shades go, (*lead, rows, cols), and how they are found."""
    *_, height, width = out.shape
    return address(out), height * width, width, int(shading.log), *shading.line


def _additive(request: Request, ready: Ready) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The channel weights of additive scores and room for the exponentials of queries and keys; else nothing."""
    if not isinstance(request.similarity, Additive):
        return None, None, None
    q, k = ready.q, ready.k
    eq = q.new_empty(*q.shape[:-1], kernels().query_row(q.shape[-1]))
    ek = k.new_empty(*k.shape[:-1], kernels().key_row(k.shape[-1]))
    return channel_weights(request, ready.plan), eq, ek
