"""Attention weights overlaid on an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Rectangle

from .figure import Picture, save

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SIDE = 512
"""Minimum number of pixels of the longer side."""


def overlay(
    image: ArrayLike,
    weights: ArrayLike,
    path: str | Path | None = None,
    title: str = "",
    mark: tuple[int, int] | None = None,
) -> Picture:
    """Draw an image beside itself with weights overlaid.

    Args:
        image: bytes (C, H, W) or (H, W, C), 1 or 3 channels.
        weights: (rows, columns), of image patches. The scale beside the picture ends with the largest.
        path: also save the picture to this file (.png, .svg or .pdf).
        title: title of the figure.
        mark: row and column of a patch to frame, such as the query.

    Raises:
        ValueError: if the shapes are invalid.

    >>> picture = overlay(np.zeros((24, 24, 3), np.uint8), np.eye(3), title="the diagonal", mark=(0, 0))
    >>> [axes.get_ylabel() for axes in picture.axes]                    # the image, the image with weights, the scale
    ['', '', 'weight']
    """
    pixels, map_ = _pixels(image), np.asarray(weights, np.float64)
    if map_.ndim != 2 or not map_.size:
        raise ValueError(f"overlay: weights {map_.shape} must be (rows, columns) of patches.")
    height, width = pixels.shape[:2]
    figure = Picture(
        figsize=(2 * 3.2 + 0.8, 3.2 * height / width + 0.4), layout="constrained", dpi=max(120, SIDE / 3.2)
    )
    original, overlaid = figure.subplots(1, 2)
    extent = (0, width, height, 0)
    for axes in (original, overlaid):
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")
        axes.set_axis_off()
    highest = max(map_.max(), 1e-12)
    drawn = overlaid.imshow(map_, cmap="inferno", vmin=0, vmax=highest, alpha=0.6, extent=extent)
    figure.colorbar(drawn, ax=[original, overlaid], label="weight", shrink=0.8)
    if mark is not None:
        down, across = height / map_.shape[0], width / map_.shape[1]
        corner = (mark[1] * across, mark[0] * down)
        for axes in (original, overlaid):
            axes.add_patch(Rectangle(corner, across, down, fill=False, edgecolor="white", linewidth=2.6))
            axes.add_patch(Rectangle(corner, across, down, fill=False, edgecolor="#1f77b4", linewidth=1.4))
    if title:
        figure.suptitle(title, parse_math=False)
    if path is not None:
        save(figure, Path(path))
    return figure


def _pixels(image: ArrayLike) -> np.ndarray:
    """Convert an image to (H, W) or (H, W, 3)."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise ValueError(f"overlay: image ({pixels.dtype} {pixels.shape}) must be bytes of 1 or 3 channels.")
    return pixels
