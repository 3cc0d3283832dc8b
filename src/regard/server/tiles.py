"""Image tiles of attention maps: the cells of a tile, the shades of weights, and the encoding.

A map is a Deep Zoom image: the x axis has keys, the y axis has queries. The deepest level, ⌈log₂ max(Tq, Tk)⌉, has one
cell per pixel. Each level above it has twice as many cells per pixel along each axis.

A tile is sent as shades, one byte per pixel, in a binary PGM (portable graymap) file: 0 for the weakest weight of the
scale, 255 for the strongest. The page applies the colours.
"""

from __future__ import annotations

import io

from PIL import Image, ImageOps
from torch import Tensor

from ..attention.cells import Cells, Shading, split

TILE = 256
SCALES = ("linear", "log")
PALETTES = ("light", "dark")


def deepest(queries: int, keys: int) -> int:
    """Return the level with one cell per pixel.

    >>> deepest(5, 256), deepest(257, 3), deepest(1, 1)
    (8, 9, 0)
    """
    return (max(queries, keys, 1) - 1).bit_length()


def side(number: int, entries: int, cells: int) -> list[Cells]:
    """Return the cells that tile `number` covers along an axis; empty beyond its end."""
    start = number * TILE * cells
    return split(start, max(start, min(start + TILE * cells, entries)), cells)


def thumbnail(queries: int, keys: int, size: int) -> tuple[int, int]:
    """Return height and width of a thumbnail: the longer side has `size` pixels, or one per entry if there are fewer.

    >>> thumbnail(512, 128, 96), thumbnail(5, 9, 96)
    ((96, 24), (5, 9))
    """
    longest = max(queries, keys)
    if longest <= size:
        return queries, keys
    return max(1, round(queries * size / longest)), max(1, round(keys * size / longest))


def floor(keys: int) -> float:
    """Return the lower limit of the log scale: a tenth of the uniform weight, at most 0.001."""
    return min(1e-3, 0.1 / max(1, keys))


def shading(scale: str, keys: int) -> Shading:
    """Return the mapping of weights to shades. It is the same for all tiles of a map."""
    return Shading(floor(keys) if scale == "log" else None)


def pgm(shades: Tensor) -> bytes:
    """Encode shades, uint8 (height, width), as a binary PGM file.

    >>> import torch
    >>> pgm(torch.tensor([[0, 65, 66]], dtype=torch.uint8))
    b'P5\\n3 1\\n255\\n\\x00AB'
    """
    height, width = shades.shape
    return b"P5\n%d %d\n255\n" % (width, height) + shades.cpu().numpy().tobytes()


def grey_png(pgm: bytes, palette: str) -> bytes:
    """Convert a PGM file to a grey PNG file; with the palette "light", strong weights are dark."""
    image = Image.open(io.BytesIO(pgm))
    return _png(ImageOps.invert(image) if palette == "light" else image)


def png(pixels: Tensor) -> bytes:
    """Encode colours, uint8 (height, width, 3), as a PNG file."""
    return _png(Image.fromarray(pixels.cpu().numpy()))


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png", compress_level=1)
    return file.getvalue()
