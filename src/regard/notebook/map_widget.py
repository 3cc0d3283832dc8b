"""The widget that shows maps in JupyterLab, VS Code and Colab: the page of `regard view` in the output of a cell."""

from __future__ import annotations

import anywidget
import traitlets

from ..core.assets import page_folder
from ..server.target import Target
from .kernel_bridge import KernelBridge


class MapWidget(anywidget.AnyWidget):
    """The page of `regard view` in a notebook. `Seen.widget` and `AttentionMap.widget` create it.

    Pan, zoom and choose tokens as on the page. The notebook file does not contain the maps: run the cell again after a
    restart of the kernel, or use `regard view --save`.
    """

    height = traitlets.Int(640).tag(sync=True)
    """Height in pixels."""

    def __init__(self, target: Target, height: int = 640) -> None:
        script = page_folder() / "alone" / "widget.js"
        super().__init__(_esm=script.read_text(encoding="utf-8"), height=height)
        self.bridge = KernelBridge(target, lambda content, buffers: self.send(content, buffers))
        self.on_msg(lambda _, content, buffers: self.bridge.receive(content))

    def close(self) -> None:
        """Close the widget and stop its work."""
        self.bridge.close()
        super().close()
