"""The rows of a map in bands: their statistic is computed when a view first needs them, and kept.

A tile of a long map needs the statistic of its own rows only. Work can be cancelled between two bands, and work that
was done before a cancellation is not repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from . import streamed_views
from .cells import Cells, Shading, bands, sizes
from .native import views as native_views
from .request import Request
from .statistic import Statistic, examined
from .streamed_views import Reduce

T = TypeVar("T")

PAIRS = 2**25
"""Pairs of query and key that are computed between two checks for cancellation: about a tenth of a second."""


class Progress(Protocol):
    """Observes long work. Each method may raise an exception, which cancels the work."""

    def check(self) -> None:
        """Called before each band."""

    def over(self, steps: Sequence[T]) -> Iterator[T]:
        """Iterate over the steps of the work."""


def views_of(request: Request, statistic: Statistic | None = None) -> ModuleType:
    """The module that computes the views of a request: the native kernels, or streaming where these cannot serve.

    With `statistic`, its rows are checked too.
    """
    return streamed_views if native_views.refusal(request, statistic) else native_views


class RowBands:
    """The statistic of the rows of one request, and the pictures that are computed from it band by band."""

    def __init__(self, request: Request, known: Statistic | None = None) -> None:
        self.request = request
        self.height = max(1, min(request.queries, PAIRS // max(1, request.entries * request.keys)))
        """Rows of a band."""
        self._computed = [False] * -(-request.queries // self.height)
        self._views = views_of(request)
        shape, dtypes = (*request.lead, request.queries), (torch.int64 if request.hard else request.wide, request.wide)
        highest, total = (torch.zeros(shape, dtype=dtype, device=request.device) for dtype in dtypes)
        large = None
        if self._views is streamed_views:
            large = torch.zeros(shape, dtype=torch.bool, device=request.device)
        self._statistic = Statistic(highest, total, large=large)
        self._lock = threading.Lock()
        if known is not None:
            self._statistic = replace(self._statistic, sink=known.sink)
            self._set(0, known)

    @property
    def computed(self) -> float:
        """The fraction of bands whose statistic is known."""
        return sum(self._computed) / max(1, len(self._computed))

    def rows(self, start: int, stop: int, progress: Progress) -> tuple[Request, Statistic]:
        """The request of some rows, and their statistic."""
        self._compute(start, stop, progress)
        return self.request.of_rows(slice(start, stop)), self._statistic[..., start:stop]

    def _compute(self, start: int, stop: int, progress: Progress) -> None:
        """Compute the statistic of those rows that do not have one yet."""
        for band in range(start // self.height, -(-stop // self.height)):
            progress.check()
            if self._computed[band]:
                continue
            with self._lock, torch.no_grad():  # a second thread waits for the band instead of computing it again
                if not self._computed[band]:
                    rows = slice(band * self.height, min((band + 1) * self.height, self.request.queries))
                    request = self.request.of_rows(rows)
                    self._set(band, views_of(request).statistic(request))

    def _set(self, band: int, statistic: Statistic) -> None:
        """Store the statistic of the rows from `band` on."""
        count = statistic.shape[-1]
        rows = slice(band * self.height, band * self.height + count)
        held, request = self._statistic, self.request.of_rows(rows)
        held.highest[..., rows], held.total[..., rows] = statistic.highest, statistic.total
        if held.large is not None:
            large = examined(request, statistic).large
            if large is not None:
                held.large[..., rows] = large
        if views_of(request, statistic) is streamed_views:
            self._views = streamed_views  # the kernels do not serve some row, such as one that attends to NaN
        for at in range(band, band + -(-count // self.height)):
            self._computed[at] = True

    @torch.no_grad()
    def picture(
        self,
        rows: Sequence[Cells],
        cols: Sequence[Cells],
        reduce: Reduce,
        progress: Progress,
        shading: Shading | None = None,
    ) -> Tensor:
        """A region as a picture, (*lead, cells of rows, cells of cols); with `shading`, as shades, uint8.

        `rows` and `cols` are adjacent stretches, none with more cells than entries. Shades are computed without
        intermediate numbers unless a cell takes more than one band.
        """
        most = max(1, PAIRS // max(1, self.request.entries * (cols[-1].stop - cols[0].start)))
        steps = [band for cells in rows for band in bands(cells, most)]
        joined = any(band.joins for band in steps)
        if joined and shading is not None:
            return shading.of(self.picture(rows, cols, reduce, progress))
        each: Reduce = "sum" if joined and reduce == "mean" else reduce
        pieces: list[Tensor] = []
        for band in progress.over(steps):
            self._compute(band.start, band.stop, progress)
            some = Cells(band.start, band.stop, band.pixels)
            piece = _cat([self._pool(some, part, each, shading) for part in cols], -1)
            if not band.joins:
                pieces.append(piece)
            else:
                pieces[-1] = torch.maximum(pieces[-1], piece) if reduce == "max" else pieces[-1] + piece
        whole = _cat(pieces, -2)
        if each == reduce:
            return whole
        return whole / (sizes(rows).unsqueeze(-1) * sizes(cols)).to(whole.device)

    def _pool(self, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading | None) -> Tensor:
        asked = self.request, self._statistic, rows, cols, reduce
        return self._views.pool(*asked) if shading is None else self._views.shades(*asked, shading)


def _cat(pieces: list[Tensor], dim: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
