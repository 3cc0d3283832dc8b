"""Rows of a map in bands. The statistic of a band is computed when a view first needs it, and kept.

A tile of a long map needs only the statistic of its own rows. A computation can be cancelled between two bands;
finished bands are not computed again.
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
from .statistic import Statistic, with_large_rows
from .streamed_views import Reduce

T = TypeVar("T")

PAIRS = 2**25
"""Query-key pairs that are computed between two checks for cancellation: about a tenth of a second."""


class Progress(Protocol):
    """Observer of a long computation. Each method may raise an exception to cancel it."""

    def check(self) -> None:
        """Called before each band."""

    def over(self, steps: Sequence[T]) -> Iterator[T]:
        """Iterate over the steps of the computation."""


def views_of(request: Request, statistic: Statistic | None = None) -> ModuleType:
    """Return the module that computes the views of a request: native kernels, or streaming if they cannot serve it.

    With `statistic`, its values are checked too.
    """
    return streamed_views if native_views.refusal(request, statistic) else native_views


class RowBands:
    """The row statistics of one request, and images that are computed from them band by band."""

    def __init__(self, request: Request, known: Statistic | None = None) -> None:
        self.request = request
        self.height = max(1, min(request.queries, PAIRS // max(1, request.entries * request.keys)))
        """Number of rows of a band."""
        self._computed = [False] * -(-request.queries // self.height)
        self._views = views_of(request)
        shape, dtypes = (*request.lead, request.queries), (torch.int64 if request.hard else request.wide, request.wide)
        highest, total = (torch.zeros(shape, dtype=dtype, device=request.device) for dtype in dtypes)
        large = None
        if self._views is streamed_views or (known is not None and known.large is not None):
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
        """Return the request of some rows, and their statistic."""
        self._compute(start, stop, progress)
        return self.request.of_rows(slice(start, stop)), self._statistic[..., start:stop]

    def _compute(self, start: int, stop: int, progress: Progress) -> None:
        """Compute the statistic of rows that do not have it yet."""
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
        stored, request = self._statistic, self.request.of_rows(rows)
        stored.highest[..., rows], stored.total[..., rows] = statistic.highest, statistic.total
        if stored.large is not None:
            large = with_large_rows(request, statistic).large
            if large is not None:
                stored.large[..., rows] = large
        if views_of(request, statistic) is streamed_views:
            self._views = streamed_views  # the kernels do not support some row, such as one that attends to NaN
        for index in range(band, band + -(-count // self.height)):
            self._computed[index] = True

    @torch.no_grad()
    def picture(
        self,
        rows: Sequence[Cells],
        cols: Sequence[Cells],
        reduce: Reduce,
        progress: Progress,
        shading: Shading | None = None,
    ) -> Tensor:
        """Return an image of a region, (*lead, cells of rows, cells of cols); with `shading`, as uint8 shades.

        `rows` and `cols` are adjacent ranges, none with more cells than entries. Shades are computed without an
        intermediate float image, unless a cell spans more than one band.
        """
        most = max(1, PAIRS // max(1, self.request.entries * (cols[-1].stop - cols[0].start)))
        steps = [band for cells in rows for band in bands(cells, most)]
        joined = any(band.joins for band in steps)
        if joined and shading is not None:
            return shading.of(self.picture(rows, cols, reduce, progress))
        each: Reduce = "sum" if joined and reduce == "mean" else reduce
        images: list[Tensor] = []
        for band in progress.over(steps):
            self._compute(band.start, band.stop, progress)
            cells_of_band = Cells(band.start, band.stop, band.pixels)
            image = _cat([self._pool(cells_of_band, part, each, shading) for part in cols], -1)
            if not band.joins:
                images.append(image)
            else:
                images[-1] = torch.maximum(images[-1], image) if reduce == "max" else images[-1] + image
        whole = _cat(images, -2)
        if each == reduce:
            return whole
        return whole / (sizes(rows).unsqueeze(-1) * sizes(cols)).to(whole.device)

    def _pool(self, rows: Cells, cols: Cells, reduce: Reduce, shading: Shading | None) -> Tensor:
        arguments = self.request, self._statistic, rows, cols, reduce
        result: Tensor = self._views.pool(*arguments) if shading is None else self._views.shades(*arguments, shading)
        return result


def _cat(images: list[Tensor], dim: int) -> Tensor:
    return images[0] if len(images) == 1 else torch.cat(images, dim)
