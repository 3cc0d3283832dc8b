"""Interactive maps in notebooks, with the page of `regard view` (the extra `regard[notebook]`).

kernel_bridge    requests of the page as messages      map_widget    the widget, an anywidget
"""

from .kernel_bridge import KernelBridge

__all__ = ["KernelBridge"]
