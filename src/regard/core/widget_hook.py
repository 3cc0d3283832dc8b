"""The hook by which maps and captures create widgets. `regard` sets it, because widgets are in a higher layer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol


class Widget(Protocol):
    """A widget that shows maps in a notebook: an `anywidget.AnyWidget`."""

    height: int
    """Height in pixels."""

    def close(self) -> None:
        """Remove the widget from the notebook and stop its work."""


display: Callable[[], Any] | None = None
"""Returns the module `regard.notebook.display`."""


def create(maps: object, height: int) -> Widget:
    """Create a widget for an `AttentionMap` or a `Seen`."""
    assert display is not None
    widget: Widget = display().create(maps, height)
    return widget


def in_notebook() -> bool:
    """Return whether the code runs in a notebook kernel. IPython is already imported there."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def mimebundle(maps: object) -> tuple[dict[str, object], dict[str, object]]:
    """Return data and metadata of a widget for IPython; empty if no widget can be shown here."""
    assert display is not None
    data, metadata = display().mimebundle(maps)
    return data, metadata
