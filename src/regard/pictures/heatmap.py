"""Heatmaps of attention maps in files, windows and notebooks: rows are queries, columns are keys."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import matplotlib
import torch
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from ..attention.attention_map import AttentionMap
from ..attention.picture_options import HeatmapOptions
from ..core.widget_hook import in_notebook
from . import figure as picture
from . import panel_selection, terminal
from .layer_names import shorten
from .layout import Sheet
from .panel_selection import Dense, Map, Selection
from .panels import PAPER, Style, paint

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Matrices: TypeAlias = Tensor | ArrayLike | Sequence[Tensor] | Sequence[Sequence[Tensor]]


def draw(
    map: Map,
    *,
    heads: Selection = None,
    batch: Selection = None,
    reduce: str = "max",
    cmap: str | Colormap = PAPER,
    scale: str = "linear",
    limits: tuple[float, float] | None = None,
    size: tuple[float, float] | None = None,
    title: str | None = None,
    annotate: bool | None = None,
) -> Figure:
    """Draw the weights of a map: a panel for each head of each batch entry, and one colour bar.

    `heads` and `batch` select panels by one index or several. A map with more cells than its panel has pixels is pooled
    by `reduce`: "max" keeps every strong link visible. `scale="log"` emphasizes small weights and draws zeros in grey.
    `limits` sets the range of the colour bar, to compare pictures. `size` is the width and height of the figure in
    inches; it grows if the panels do not fit. `title` is by default the layer and head of the map, if they are set.
    `annotate` writes the weights in the cells, by default if they fit.

    Raises ValueError if a selection is out of range, if there are no or more than 64 panels, or for unknown options.

    >>> class Eye:
    ...     shape, query_tokens, key_tokens = (3, 3), ["a", "b", "c"], None
    ...     def __getitem__(self, index):
    ...         return torch.eye(3)[index]
    >>> [tick.get_text() for tick in draw(Eye()).axes[0].get_yticklabels()]
    ['a', 'b', 'c']
    """
    panels = panel_selection.panels("draw", map, batch, heads)
    panel_selection.check_options("draw", reduce, scale, limits)
    sheet = Sheet(
        cells=lambda rows, columns: panel_selection.cells(map, panels, reduce, rows, columns).numpy(),
        lengths=(map.shape[-2], map.shape[-1]),
        tokens=(map.query_tokens, map.key_tokens),
        names=("query", "key"),
        titles=panel_selection.titles(map, panels),
        columns=panel_selection.columns(panels),
        title=name_of(map) if title is None else title,
    )
    return paint(sheet, Style(cmap, scale, limits, annotate, reduce), size)


def name_of(map: Map) -> str:
    """Return the layer and head of a map; empty if neither is set."""
    head = getattr(map, "head", None)
    return ", ".join(filter(None, (shorten(getattr(map, "layer", "")), "" if head is None else f"head {head}")))


def save(map: Map, path: str | os.PathLike[str], **options: Unpack[HeatmapOptions]) -> Path:
    """Save the picture of a map as .png, .svg or .pdf, depending on the suffix. Options are those of `draw`.

    The file is written atomically. Raises ValueError for another suffix, FileNotFoundError if there is no directory.

    >>> save(None, "map.jpg")
    Traceback (most recent call last):
    ValueError: save: path (map.jpg) must end in .png, .svg or .pdf; got '.jpg'. Save it as map.png.
    """
    path = picture.check_path("save", path)
    return picture.save(draw(map, **options), path)


def show(map: Map, **options: Unpack[HeatmapOptions]) -> None:
    """Show the picture of a map in a notebook, a window, or else the terminal. Options are those of `draw`."""
    inspect.signature(draw).bind(map, **options)  # reject unknown options in the terminal, too
    if in_notebook():
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]  # not a dependency

        show_in_cell: Callable[[Figure], object] = display
        show_in_cell(draw(map, **options))
    elif not _show_window(map, options):
        _print(map, **options)


def html(map: AttentionMap) -> str:
    """Return the HTML that a notebook displays for a map."""
    from .notebook_html import of_map

    return of_map(map)


def show_heatmaps(
    matrices: Map | Matrices,
    xlabel: str,
    ylabel: str,
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] = (2.5, 2.5),
    cmap: str | Colormap = "Reds",
    *,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw heatmaps of matrices (rows, columns, queries, keys): a panel for each, shared axes, one colour bar.

    `matrices` is a tensor, an array, nested lists, or an AttentionMap, whose last leading dimension gives the columns.
    `titles` has one entry per column or per panel. With `path`, the picture is also saved to that file.

    It differs from the function of the same name in Dive into Deep Learning (section 11.1): all panels share one colour
    scale, the figure is returned, and it grows if the panels do not fit in `figsize`.

    >>> figure = show_heatmaps(torch.eye(10).reshape(1, 1, 10, 10), xlabel="Keys", ylabel="Queries")
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('Keys', 'Queries')
    """
    path = None if path is None else picture.check_path("show_heatmaps", path)
    map: Any = matrices if hasattr(matrices, "pool") else Dense(_stack(matrices))
    panels = panel_selection.panels("show_heatmaps", map, None, None)
    columns = map.shape[-3] if len(map.shape) > 2 else 1
    sheet = Sheet(
        cells=lambda rows, columns: panel_selection.cells(map, panels, "max", rows, columns).numpy(),
        lengths=(map.shape[-2], map.shape[-1]),
        tokens=(map.query_tokens, map.key_tokens),
        names=(ylabel, xlabel),
        titles=_panel_titles(titles, len(panels) // columns, columns),
        columns=columns,
    )
    figure = paint(sheet, Style(cmap, annotate=False), figsize)
    if path is not None:
        picture.save(figure, path)
    return figure


def _panel_titles(titles: Sequence[str] | None, rows: int, columns: int) -> list[str]:
    if titles is None:
        return [""] * (rows * columns)
    if len(titles) not in (columns, rows * columns):
        raise ValueError(
            f"show_heatmaps: titles ({len(titles)}) must name each of the {columns} columns or each of the "
            f"{rows * columns} panels; got {len(titles)}."
        )
    return list(titles) * (rows if len(titles) == columns else 1)


def _stack(matrices: Matrices) -> Tensor:
    """Convert nested numbers with four dimensions to a tensor."""
    try:
        stacked = _tensor(matrices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"show_heatmaps: matrices ({type(matrices).__name__}) must be numbers (rows, columns, queries, keys); got "
            f"an error ({error}). Make all rows equally long."
        ) from error
    if stacked.ndim != 4:
        shape = tuple(stacked.shape)
        likely = (*(1,) * (4 - len(shape)), *shape) if len(shape) < 4 else (-1, *shape[-3:])
        raise ValueError(
            f"show_heatmaps: matrices ({shape}) must have 4 dimensions (rows, columns, queries, keys); "
            f"got {stacked.ndim}. Reshape them, for example to {likely}."
        )
    return stacked


def _tensor(matrices: Matrices) -> Tensor:
    if isinstance(matrices, list | tuple) and not all(isinstance(each, int | float) for each in matrices):
        return torch.stack([_tensor(each) for each in matrices])
    return torch.as_tensor(matrices).to("cpu", torch.float32)


def _show_window(map: Map, options: HeatmapOptions) -> bool:
    """Open a window if matplotlib has an interactive backend. Blocks until the window is closed."""
    import matplotlib.pyplot as plt
    from matplotlib.backends.registry import BackendFilter, backend_registry

    try:
        if matplotlib.get_backend().lower() not in backend_registry.list_builtin(BackendFilter.INTERACTIVE):
            return False
        figure = draw(map, **options)
        try:
            plt.figure(figure)
        except ValueError:  # matplotlib before 3.11 opens windows only for figures created by pyplot
            return False
    except ImportError:  # the user's settings name a backend that is not installed
        return False
    plt.show()
    return True


def _print(map: Map, *, heads: Selection = None, batch: Selection = None, reduce: str = "max", **options: Any) -> None:
    """Print the panels in the terminal, with its colours and size."""
    panels = panel_selection.panels("show", map, batch, heads)
    panel_selection.check_options("draw", reduce, options.get("scale", "linear"), options.get("limits"))
    lengths = (map.shape[-2], map.shape[-1])
    rows, columns = (min(length, 256) for length in lengths)
    console = Console(highlight=False, markup=False)
    title = name_of(map) if options.get("title") is None else options["title"]
    if title:
        console.print(title)
    for name, weights in zip(
        panel_selection.titles(map, panels), panel_selection.cells(map, panels, reduce, rows, columns), strict=True
    ):
        if name:
            console.print(name)
        console.print(terminal.draw(weights, map.query_tokens, map.key_tokens, lengths=lengths))
