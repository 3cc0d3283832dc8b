"""AttentionMap: the N×N matrix of weights, lazy and exact, in O(N) memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor

from ..core import widget_hook
from ..core.messages import check_tokens
from ..core.tensors import broadcasts, shape_of, transformed, version
from ..core.widget_hook import Widget
from . import streamed_views
from .cells import Cells
from .indexing import Lookup, MapIndex, span
from .masks import Span
from .native import views as native_views
from .picture_options import HeatmapOptions
from .request import Index, Request, take_lead
from .row_bands import Progress, RowBands, views_of
from .statistic import Statistic, large_rows, with_large_rows
from .streamed_views import Reduce
from .tensor_like import TensorLike

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

DENSE_LIMIT = 2**30
"""Largest result of indexing, and of `dense` by default, in bytes."""

pictures: Callable[[], Any] | None = None
"""Returns the drawing module. `regard` sets it, so that this package does not import a drawing library."""


class AttentionMap(TensorLike):
    """The weights of one call of `attend`, before dropout, computed on access.

    It stores queries, keys, the parameters of the mask and two numbers per row (`Statistic`). Every view is computed
    from exact weights. Memory grows with Tq + Tk and the size of the result.

    >>> import regard
    >>> q = k = v = torch.eye(3)
    >>> _, m = regard.attend(q, k, v, scale=9.0, is_causal=True, return_map=True)
    >>> m.shape
    (3, 3)
    >>> [f"{w:.3f}" for w in m[2]]
    ['0.000', '0.000', '1.000']
    >>> m.top(1).indices.flatten().tolist()
    [0, 1, 2]
    """

    __array_ufunc__ = None  # so that NumPy calls our __rmatmul__ for `array @ map`

    def __init__(self, request: Request, statistic: Statistic | None = None) -> None:
        self._request = request
        self._versions: list[tuple[str, Tensor, int]] = []
        self.query_tokens: list[str] | None = None
        self.key_tokens: list[str] | None = None
        self.layer = ""
        """Name of the layer, shown in pictures; empty if it is unknown."""
        self.head: int | None = None
        """Index of the head if the map is one head of a layer, shown in pictures."""
        self.backend_statistic: Statistic | None = None
        """Statistic that the backend computed with the context. Views use it if it matches the scores they compute."""
        self._same_scores = False
        self._statistic = None if statistic is None else statistic.map(Tensor.detach)
        self._views: ModuleType | None = None
        self._bands: RowBands | None = None

    @classmethod
    def of(cls, request: Request, backend_statistic: Statistic | None, *, same_scores: bool) -> AttentionMap:
        """Return the map of a call.

        `same_scores`: the scores from which the backend computed its statistic are bit-identical to those of native
        views.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> torch.equal(AttentionMap.of(m.request, None, same_scores=False).dense(), m.dense())
        True
        """
        result = cls(request)
        result.backend_statistic, result._same_scores = (
            None if backend_statistic is None else backend_statistic.map(Tensor.detach),
            same_scores,
        )
        return result.guarded()

    def guarded(self, enabled: bool = True) -> Self:
        """Return the map itself. From now on it raises RuntimeError if its tensors are overwritten in place.

        Its weights would be wrong then. Maps of `attend` are guarded; `regard.watch` has its own checks. Pass False if
        only other parts of their memory will be written to.

        >>> import regard
        >>> x = torch.eye(3)
        >>> m = AttentionMap(regard.attend(x, x, x, return_map=True)[1].request).guarded()
        >>> x = x.mul_(2)
        >>> m[0]                                                      # doctest: +ELLIPSIS
        Traceback (most recent call last):
        RuntimeError: map: query (3×3) must not change after the call; it was overwritten in place. ...
        """
        self._versions = []
        if enabled and not (torch.compiler.is_compiling() or transformed()):
            q, k, _, dense, *parameters = self._request.tensors
            named = (("query", q), ("key", k), ("attn_mask", dense), *(("similarity", x) for x in parameters))
            self._versions = [(name, x, version(x)) for name, x in named if x is not None]
        return self

    @property
    def request(self) -> Request:
        """The request whose weights the map shows. Raises RuntimeError if its tensors were overwritten (`guarded`).

        >>> import regard
        >>> x = torch.eye(3)
        >>> regard.attend(x, x, x, is_causal=True, return_map=True)[1].request.mask.right
        0
        """
        for name, x, known in self._versions:
            if version(x) != known:
                raise RuntimeError(
                    f"map: {name} ({shape_of(x.shape)}) must not change after the call; it was overwritten in place. "
                    "Read what you need before, pass copies to attend, or pass keep='copy' to watch."
                )
        return self._request

    @property
    def statistic(self) -> Statistic:
        """Row statistics that turn scores into weights, (*lead, Tq). Computed on first use, unless the backend did.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> m.statistic.highest.tolist()
        [9.0, 9.0, 9.0]
        """
        if self._statistic is None:
            with torch.no_grad():
                self._statistic = self._compute_statistic()
        return self._statistic

    def _compute_statistic(self) -> Statistic:
        """Return the statistic of the backend if it matches the scores of the views, else compute it."""
        request, backend_statistic = self.request, self.backend_statistic
        if views_of(request, backend_statistic) is native_views:
            fits = backend_statistic is not None and (
                self._same_scores or not bool(large_rows(request, backend_statistic.highest).any())
            )
            return backend_statistic if backend_statistic is not None and fits else native_views.statistic(request)
        return with_large_rows(
            request, streamed_views.statistic(request) if backend_statistic is None else backend_statistic
        )

    @property
    def known(self) -> Statistic | None:
        """The statistic, or None if it would have to be computed from all scores.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> AttentionMap(m.request).known is None, AttentionMap(m.request, m.statistic).known is m.statistic
        (True, False)
        """
        return None if self._statistic is None and self.backend_statistic is None else self.statistic

    @property
    def views(self) -> ModuleType:
        """The module that computes views of the whole map: native kernels, or streaming if they cannot.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> torch.equal(m.views.entropy(m.request, m.statistic), m.entropy())
        True
        """
        if self._views is None:
            self._views = views_of(self.request, self.statistic)
        return self._views

    @property
    def bands(self) -> RowBands:
        """The rows in bands, for computations that can be cancelled and resumed.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> AttentionMap(m.request).bands.computed                    # the fraction of rows that are known
        0.0
        """
        request = self.request
        if self._bands is None:
            self._bands = RowBands(request, self.known)
        return self._bands

    def __getstate__(self) -> dict[str, Any]:
        # neither modules nor locks can be copied, and copies of tensors have versions of their own
        state = {"_request": self.request, "_views": None, "_bands": None, "_versions": bool(self._versions)}
        return {**self.__dict__, **state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _versions=[])
        if state["_versions"]:
            self.guarded()

    @property
    def shape(self) -> tuple[int, ...]:
        """(*lead, Tq, Tk), commonly (B, H, Tq, Tk)."""
        return self._request.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> m.ndim, m.dtype, m.device, m.nbytes
        (2, torch.float32, device(type='cpu'), 36)
        """
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: float64 for float64 queries, else float32. See `ndim` for an example.

        >>> import regard
        >>> half = torch.eye(3, dtype=torch.bfloat16)
        >>> regard.attend(half, half, half, return_map=True)[1].dtype
        torch.float32
        """
        return self._request.wide

    @property
    def device(self) -> torch.device:
        """The device of queries and keys, on which weights are computed.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> m.device
        device(type='cpu')
        """
        return self._request.device

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        stored = self._request.q.nbytes + self._request.k.nbytes
        kind = "hard" if self._request.hard else "soft"
        return f"AttentionMap({shape_of(self.shape)}, {kind}, holds {_bytes(stored)} of {_bytes(self.nbytes)})"

    @property
    def nbytes(self) -> int:
        """Size in bytes of the dense weights.

        >>> import regard
        >>> x = torch.zeros(100_000, 8)
        >>> AttentionMap(regard.attend(x[:1], x, x, return_map=True)[1].request).nbytes
        400000
        """
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, index: MapIndex) -> Tensor:
        """Return exact weights, like indexing the dense tensor.

        Supports integers, slices, `...` and at most one list or tensor.
        """
        lookup = Lookup.of(index, self.shape)
        size = math.prod(lookup.result(self.shape)) * self.dtype.itemsize
        return self._weights_at(lookup, size, DENSE_LIMIT)

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """Return all weights, (*lead, Tq, Tk). Raises ValueError if they take more than `limit` bytes.

        >>> import regard
        >>> x = torch.zeros(2, 4)
        >>> regard.attend(x, x, x, return_map=True)[1].dense()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
        """
        return self._weights_at(Lookup.of((), self.shape), self.nbytes, limit)

    @torch.no_grad()
    def _weights_at(self, lookup: Lookup, size: int, limit: int) -> Tensor:
        if size > limit:
            raise ValueError(
                f"map: the requested weights of {shape_of(self.shape)} take {_bytes(size)}; the limit is "
                f"{_bytes(limit)}. Look at a part, m[..., rows, cols], or a picture, m.pool(512, 512), or pass "
                f"dense(limit={size})."
            )
        if not self.request.separable:  # a callable must see all entries, so select afterwards
            request, statistic = self._rows(self.request, (), span(lookup.rows))
            whole = views_of(request, statistic).weights(request, statistic, span(lookup.cols))
            weights = take_lead(whole, lookup.lead)
        else:
            request, statistic = self._rows(self.request.select(lookup.lead), lookup.lead, span(lookup.rows))
            weights = views_of(request, statistic).weights(request, statistic, span(lookup.cols))
        return lookup.squeeze(weights)

    def _rows(self, request: Request, lead: tuple[Index, ...], rows: Span) -> tuple[Request, Statistic]:
        """Return the request of some rows and their statistic, computed for these rows only if it is not known."""
        request, known = request.of_rows(rows), self.known
        if known is None:
            return request, views_of(request).statistic(request)
        return request, known.map(lambda x: take_lead(x, lead)[..., rows])

    def at(self, *entry: int) -> AttentionMap:
        """Return the lazy map of one entry of the first leading dimensions: `m.at(0, 3)` is batch 0, head 3.

        >>> import regard
        >>> x = torch.randn(2, 8, 5, 4)
        >>> _, m = regard.attend(x, x, x, return_map=True)
        >>> m.at(0).shape, m.at(0, 3).shape
        ((8, 5, 5), (5, 5))
        """
        lead = self.request.lead
        if not self.request.separable:
            raise ValueError(
                "map: at() must have a similarity that treats batch entries separately; got a callable. Try m[0, 3]."
            )
        if len(entry) > len(lead):
            raise IndexError(
                f"map: at() must have at most {len(lead)} indices, one per leading dimension; got {len(entry)}."
            )
        index = Lookup.of(entry, self.shape).lead
        known = None if self.known is None else self.known.map(lambda x: take_lead(x, index))
        entry_map = AttentionMap(self.request.select(index), known)
        entry_map.layer, entry_map.head = self.layer, self.head
        if self._versions:
            entry_map.guarded()
        if len(entry) == len(lead) and entry:
            entry_map.head = int(entry[-1]) % lead[-1]
        return entry_map.tokens(query=self.query_tokens, key=self.key_tokens)

    @torch.no_grad()
    def top(self, count: int) -> torch.return_types.topk:
        """Return the largest weights of each query and their key indices, (*lead, Tq, count), in descending order.

        `count` is clamped to Tk. If a query may attend to fewer keys, the remaining values are 0 and indices −1.

        >>> import regard
        >>> x = torch.eye(3)
        >>> _, m = regard.attend(x, x, x, scale=9.0, is_causal=True, return_map=True)
        >>> m.top(2).indices.tolist()
        [[0, -1], [1, 0], [2, 0]]
        """
        if count < 1:
            raise ValueError(f"map: count ({count}) must be at least 1.")
        count = min(count, self.shape[-1])
        _check_size(f"count ({count})", (*self.shape[:-1], count), self.dtype.itemsize + torch.int64.itemsize)
        result = self.views.top(self.request, self.statistic, count)
        return torch.return_types.topk(result)

    @torch.no_grad()
    def entropy(self) -> Tensor:
        """Return the entropy −Σ w·log w of each query in nats, (*lead, Tq): 0 for one key, log n for n equal ones.

        >>> import regard
        >>> x = torch.zeros(3, 4)
        >>> _, m = regard.attend(x, x, x, is_causal=True, return_map=True)
        >>> [round(n, 3) for n in m.entropy().exp().tolist()]         # the effective number of keys
        [1.0, 2.0, 3.0]
        """
        entropy: Tensor = self.views.entropy(self.request, self.statistic)
        return entropy

    @torch.no_grad()
    def received(self) -> Tensor:
        """Return the total weight that each key receives: the column sums, (*lead, Tk).

        >>> import regard
        >>> x = torch.zeros(2, 4)
        >>> _, m = regard.attend(x, x, x, is_causal=True, return_map=True)
        >>> m.received()
        tensor([1.5000, 0.5000])
        """
        received: Tensor = self.views.received(self.request, self.statistic)
        return received

    def pool(self, rows: int, cols: int, reduce: Reduce = "max") -> Tensor:
        """Return an image of the whole map, (*lead, rows, cols).

        Cell c of m over n entries covers entries ⌊c·n/m⌋ … ⌊(c+1)·n/m⌋ − 1: cells are disjoint, cover every entry, and
        differ in size by at most one. An image larger than the map repeats entries.

        "max" takes the largest weight of a cell, so that a single strong link stays visible. "mean" divides by the
        number of pairs in the cell; masked pairs count as 0. The cells of "sum" add up to the number of queries that
        attend to any key, if the image is no larger than the map.

        >>> import regard
        >>> x = torch.zeros(4, 8)
        >>> _, m = regard.attend(x, x, x, is_causal=True, return_map=True)
        >>> m.pool(2, 2)
        tensor([[1.0000, 0.0000],
                [0.3333, 0.3333]])
        """
        return self.tile((0, self.shape[-2]), (0, self.shape[-1]), (rows, cols), reduce)

    @torch.no_grad()
    def tile(
        self,
        rows: tuple[int, int] | slice,
        cols: tuple[int, int] | slice,
        out: tuple[int, int] = (256, 256),
        reduce: Reduce = "max",
        progress: Progress | None = None,
    ) -> Tensor:
        """Return the image of a region, (*lead, *out). Rows and columns are (start, stop); cells are those of `pool`.

        With `progress`, the image is computed in bands of rows. `progress` can cancel between two bands by raising an
        exception. The next call resumes, because the statistic of finished bands is kept.

        >>> import regard
        >>> x = torch.zeros(4, 8)
        >>> _, m = regard.attend(x, x, x, is_causal=True, return_map=True)
        >>> m.tile((0, 2), (0, 4), out=(2, 2), reduce="sum")
        tensor([[1., 0.],
                [1., 0.]])
        """
        if reduce not in ("max", "mean", "sum"):
            raise ValueError(f"map: reduce ({reduce!r}) must be one of max, mean, sum.")
        row_cells = _cells("rows", rows, self.shape[-2], out[0])
        col_cells = _cells("cols", cols, self.shape[-1], out[1])
        _check_size(f"image ({out[0]}×{out[1]})", (*self.request.lead, *out), self.dtype.itemsize)
        if not row_cells.entries or not col_cells.entries:
            return torch.zeros(*self.request.lead, *out, dtype=self.dtype, device=self.device)
        if progress is not None:
            rows_, cols_ = (Cells(side.start, side.stop, side.count) for side in (row_cells, col_cells))
            picture = self.bands.picture([rows_], [cols_], reduce, progress)
            return col_cells.enlarge(row_cells.enlarge(picture, -2), -1)
        if self.known is not None or row_cells.entries == self.shape[-2]:
            request, statistic, views = self.request, self.statistic, self.views
        else:
            request, statistic = self._rows(self.request, (), row_cells.region)
            views, row_cells = views_of(request, statistic), Cells(0, row_cells.entries, row_cells.wanted)
        pooled: Tensor = views.pool(request, statistic, row_cells, col_cells, reduce)
        return pooled

    @torch.no_grad()
    def __matmul__(self, x: Tensor | ArrayLike) -> Tensor:
        """Return weights · x for x (*lead, Tk, E) or (Tk,). Streamed, without a gradient."""
        factor = self._factor(x, -2, self.shape[-1])
        columns = factor.unsqueeze(-1) if factor.ndim == 1 else factor  # (*lead, Tk, E)
        product: Tensor = self.views.matmul(self.request, self.statistic, columns)  # (*lead, Tq, E)
        return product.squeeze(-1) if factor.ndim == 1 else product

    @torch.no_grad()
    def __rmatmul__(self, x: Tensor | ArrayLike) -> Tensor:
        """Return x · weights for x (*lead, E, Tq) or (Tq,). Streamed, without a gradient."""
        factor = self._factor(x, -1, self.shape[-2])
        rows = factor.unsqueeze(0) if factor.ndim == 1 else factor  # (*lead, E, Tq)
        product: Tensor = self.views.rmatmul(self.request, self.statistic, rows)  # (*lead, E, Tk)
        return product.squeeze(-2) if factor.ndim == 1 else product

    def _factor(self, factor: Tensor | ArrayLike, dim: int, size: int) -> Tensor:
        factor = factor.dense() if isinstance(factor, TensorLike) else factor
        x = torch.as_tensor(factor, dtype=self.dtype, device=self.device)
        fits = x.ndim >= 1 and x.shape[-1 if x.ndim == 1 else dim] == size
        if not fits or not broadcasts(x.shape[:-2], self.request.lead):
            raise ValueError(
                f"map: the other factor ({shape_of(x.shape)}) must fit {shape_of(self.shape)}: {size} long in "
                f"dimension {dim}, with leading dimensions that broadcast."
            )
        return x

    def tokens(self, query: Sequence[str] | None = None, key: Sequence[str] | None = None) -> AttentionMap:
        """Set the labels of queries and keys for plots, and return the map itself.

        >>> import regard
        >>> x = torch.eye(2)
        >>> _, m = regard.attend(x, x, x, return_map=True)
        >>> m.tokens(query=["le", "chat"], key=["the", "cat"]).query_tokens
        ['le', 'chat']
        """
        check_tokens("map", query=query, key=key)
        for name, labels, size in (("query", query, self.shape[-2]), ("key", key, self.shape[-1])):
            if labels is not None and len(labels) != size:
                raise ValueError(f"map: tokens ({name}, {len(labels)}) must be {size}, one each; got {len(labels)}.")
        self.query_tokens = None if query is None else [str(token) for token in query]
        self.key_tokens = None if key is None else [str(token) for token in key]
        return self

    def save(self, path: str | Path, **options: Unpack[HeatmapOptions]) -> Path:
        """Save an image; the file extension selects the format. Options: see `regard.pictures.heatmap.draw`.

        >>> import regard, tempfile
        >>> x = torch.randn(2, 3, 5, 4)
        >>> _, m = regard.attend(x, x, x, return_map=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     m.save(f"{folder}/map.png", batch=0, heads=[0, 2], scale="log").name
        'map.png'
        """
        assert pictures is not None
        saved: Path = pictures().save(self, path, **options)
        return saved

    def show(self, **options: Unpack[HeatmapOptions]) -> None:
        """Show an image in a notebook, a window or the terminal. Options: see `regard.pictures.heatmap.draw`.

        >>> import matplotlib, regard
        >>> matplotlib.use("agg")                                     # no window, so it prints
        >>> x = torch.eye(2)
        >>> _, m = regard.attend(x, x, x, scale=9.0, return_map=True)
        >>> m.show(title="two tokens")                                # doctest: +NORMALIZE_WHITESPACE
        two tokens
                0       1
        0  █ 1.00    0.00
        1    0.00  █ 1.00
        0  ░▒▓█ 1
        """
        assert pictures is not None
        pictures().show(self, **options)

    def widget(self, height: int = 640) -> Widget:
        """Return a widget that shows the map in a notebook, with the page of `regard view`: zoom, text and links.

        A notebook displays a map as its widget, if `regard[notebook]` is installed.

        Raises:
            ImportError: without anywidget.
            FileNotFoundError: if the page is not built.

        >>> import regard
        >>> _, m = regard.attend(torch.eye(2), torch.eye(2), torch.eye(2), return_map=True)
        >>> m.widget(height=100)
        Traceback (most recent call last):
        ValueError: widget: height (100) must be at least 200 pixels; got 100.
        """
        return widget_hook.create(self, height)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, object], dict[str, object]]:
        return widget_hook.mimebundle(self)

    def _repr_html_(self) -> str:
        """Return the notebook representation: the shape and a small pooled image."""
        assert pictures is not None
        html: str = pictures().html(self)
        return html


def _check_size(what: str, shape: Sequence[int], itemsize: int) -> None:
    size = math.prod(shape) * itemsize
    if size > DENSE_LIMIT:
        raise ValueError(
            f"map: {what} must give a result of at most {_bytes(DENSE_LIMIT)}; {shape_of(shape)} takes {_bytes(size)}. "
            "Ask for less, or for one head: m.at(0, 0)."
        )


def _cells(name: str, region: tuple[int, int] | slice, size: int, wanted: int) -> Cells:
    start, stop, step = region.indices(size) if isinstance(region, slice) else (*region, 1)
    if step != 1:
        raise ValueError(f"map: {name} ({region}) must be a range without a step; got step {step}.")
    if not 0 <= start <= stop <= size:
        raise ValueError(f"map: {name} ({start}, {stop}) must be a range within 0…{size}.")
    if wanted < 1:
        raise ValueError(f"map: {name} ({wanted}) of the image must be at least 1.")
    return Cells(start, stop, wanted)


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
