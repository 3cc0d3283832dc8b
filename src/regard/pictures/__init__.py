"""Pictures of maps, arrays and (name, map) pairs, with matplotlib or in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .alignment_matrix import alignment
    from .figure import Picture
    from .head_grid import grid
    from .heatmap import show_heatmaps
    from .image_overlay import overlay
    from .link_diagram import links
    from .training_charts import save_confusion
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".alignment_matrix": ["alignment"],
            ".figure": ["Picture"],
            ".head_grid": ["grid"],
            ".heatmap": ["show_heatmaps"],
            ".image_overlay": ["overlay"],
            ".link_diagram": ["links"],
            ".training_charts": ["save_confusion"],
        },
    )

__all__ = ["Picture", "alignment", "grid", "links", "overlay", "save_confusion", "show_heatmaps"]
