"""Display of maps and captures in a notebook: as a widget if anywidget is installed and the page is built."""

from __future__ import annotations

import importlib.util
from html import escape
from typing import TYPE_CHECKING

from ..attention.attention_map import AttentionMap
from ..core import assets, widget_hook
from ..core.messages import counted
from ..lens.recorded_call import kind_of
from ..lens.seen import NO_MAPS, Seen
from ..server.target import Capture, Layer, Snapshot, Target

if TYPE_CHECKING:
    from .map_widget import MapWidget

HEIGHT = 640
"""Default height in pixels."""
MIN_HEIGHT = 200
MAX_PICTURE = 2**22
"""Weights of a head above which no picture is computed beside the widget, which would delay it."""


def target_of(maps: AttentionMap | Seen) -> Target:
    """Return maps as a target of the server."""
    if isinstance(maps, Seen):
        if not maps:
            raise ValueError(NO_MAPS)
        return Capture(maps, counted(len(maps), "map"))
    target = Target()
    name = maps.layer or "map"
    target.snapshot = Snapshot("capture", name, [Layer(name, kind_of(maps.request), maps)])
    return target


def create(maps: AttentionMap | Seen, height: int = HEIGHT) -> MapWidget:
    """Create a widget that shows maps.

    Raises:
        ImportError: without anywidget.
        FileNotFoundError: if the page is not built.
        ValueError: if there are no maps.
    """
    if height < MIN_HEIGHT:
        raise ValueError(f"widget: height ({height}) must be at least {MIN_HEIGHT} pixels; got {height}.")
    if importlib.util.find_spec("anywidget") is None:
        raise ImportError("widget: anywidget must be installed; it is not. Run: pip install 'regard[notebook]'.")
    assets.page_folder()
    from .map_widget import MapWidget

    return MapWidget(target_of(maps), height)


def available() -> bool:
    """Return whether a widget can be displayed here: in the kernel of a notebook, with anywidget and the page."""
    built = (assets.FOLDER / "index.html").is_file()
    return widget_hook.in_notebook() and built and importlib.util.find_spec("anywidget") is not None


def mimebundle(maps: AttentionMap | Seen) -> tuple[dict[str, object], dict[str, object]]:
    """Return the widget of maps for IPython; empty if it cannot be displayed, or if there is nothing to display."""
    empty = isinstance(maps, Seen) and not maps
    if empty or 0 in (maps.maps[0].shape if isinstance(maps, Seen) else maps.shape) or not available():
        return {}, {}
    bundle = create(maps)._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    shown: dict[str, object] = {kind: value for kind, value in (data or {}).items() if kind != "text/plain"}
    largest = max(m.shape[-2] * m.shape[-1] for m in (maps if isinstance(maps, Seen) else [maps]))
    if largest > MAX_PICTURE:
        shown["text/html"] = f"<pre>{escape(repr(maps))}</pre>"
    return shown, metadata
