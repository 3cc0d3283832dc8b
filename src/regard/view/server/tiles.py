"""From numbers to pictures: which cells a tile covers, how a weight is coloured, and the bytes of a PNG.

A map is a Deep Zoom image: x counts keys, y counts queries. The deepest level, ⌈log₂ max(Tq, Tk)⌉, has one cell a
pixel; each level above it twice as many cells a pixel, each way.

Pictures have 256 colours, so a PNG is its shades and a palette: what is kept is the shades, whatever the palette.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ...attention import engine
from ...attention.native_plan import address
from ...attention.shading import Shading
from .heads import Stretch

TILE = 256
SCALES = ("linear", "log")
WORTH = 64
"""Cells a pixel from which computing a picture takes longer than compressing it."""
# (lightness, chroma, hue in degrees) in OKLCh: lightness alone tells the weight, so that a map can be read in grey
STOPS = {
    "light": ((0.985, 0.004, 90), (0.8, 0.09, 10), (0.58, 0.17, 5), (0.42, 0.15, 350), (0.27, 0.09, 320)),
    "dark": ((0.2, 0.01, 300), (0.4, 0.12, 330), (0.6, 0.19, 5), (0.78, 0.12, 35), (0.95, 0.05, 80)),
}


def deepest(queries: int, keys: int) -> int:
    """The level with one cell a pixel.

    >>> deepest(5, 256), deepest(257, 3), deepest(1, 1)
    (8, 9, 0)
    """
    return (max(queries, keys, 1) - 1).bit_length()


def stretches(start: int, stop: int, cells: int) -> list[Stretch]:
    """Entries in pixels of `cells` each; the last may have fewer.

    >>> stretches(0, 10, 4)
    [Stretch(start=0, stop=8, pixels=2), Stretch(start=8, stop=10, pixels=1)]
    """
    count, rest = divmod(stop - start, cells)
    found = [Stretch(start, stop - rest, count)] if count else []
    return [*found, Stretch(stop - rest, stop, 1)] if rest else found


def side(number: int, entries: int, cells: int) -> list[Stretch]:
    """What tile `number` covers of an axis; nothing beyond its end."""
    start = number * TILE * cells
    return stretches(start, max(start, min(start + TILE * cells, entries)), cells)


def thumbnail(queries: int, keys: int, size: int) -> tuple[int, int]:
    """Height and width of a picture of the whole: the longer side has `size` pixels, or as many as there are entries.

    >>> thumbnail(512, 128, 96), thumbnail(5, 9, 96)
    ((96, 24), (5, 9))
    """
    longest = max(queries, keys)
    if longest <= size:
        return queries, keys
    return max(1, round(queries * size / longest)), max(1, round(keys * size / longest))


def floor(keys: int) -> float:
    """Where the log scale begins: a tenth of what each key would get if all were alike, a thousandth at the most."""
    return min(1e-3, 0.1 / max(1, keys))


def shading(scale: str, keys: int) -> Shading:
    """How weights become entries of a palette: as on the whole map, so that tiles fit together whatever is on them."""
    return Shading(floor(keys) if scale == "log" else None)


@cache
def palette(name: str) -> bytes:
    """256 colours from nothing to the strongest, 3 bytes each: lightness changes evenly (OKLab, Ottosson 2020)."""
    stops = [(l, c * math.cos(math.radians(h)), c * math.sin(math.radians(h))) for l, c, h in STOPS[name]]
    first, last = stops[0][0], stops[-1][0]
    colours = bytearray()
    for entry in range(256):
        lightness = first + (last - first) * entry / 255
        place = next(
            (n for n in range(1, len(stops) - 1) if (stops[n][0] - lightness) * (last - first) >= 0), len(stops) - 1
        )
        low, high = stops[place - 1], stops[place]
        share = (lightness - low[0]) / (high[0] - low[0])
        colours += _rgb(lightness, *(low[n] + share * (high[n] - low[n]) for n in (1, 2)))
    return bytes(colours)


def _rgb(lightness: float, a: float, b: float) -> bytes:
    l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
        -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
        -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
    )
    return bytes(_channel(x) for x in linear)


def _channel(linear: float) -> int:
    value = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * min(1.0, max(0.0, value)))


def effort(rows: Sequence[Stretch], cols: Sequence[Stretch]) -> int:
    """How hard to compress a picture: not at all where that would take longer than computing it.

    >>> effort(side(0, 4096, 1), side(0, 4096, 1)), effort(side(0, 4096, 8), side(0, 4096, 8)), effort([], [])
    (0, 1, 0)
    """
    cells = pixels = 1
    for axis in (rows, cols):
        cells *= sum([stretch.entries for stretch in axis])
        pixels *= sum([stretch.pixels for stretch in axis])
    return 1 if cells >= WORTH * pixels > 0 else 0


def pack(pixels: Tensor, effort: int = 1) -> bytes:
    """Shades (h, w) or colours (h, w, 3), uint8 → what `png` wraps: the size, and the chunk of the lines.

    They are deflated with this effort; 0 is for none.
    """
    height, width = pixels.shape[:2]
    if not effort and engine.module is not None:
        pixels = pixels.contiguous()
        return engine.module.stored(address(pixels), height, width, 1 if pixels.ndim == 2 else 3)
    lines = torch.zeros(height, 1 + pixels[0].numel(), dtype=torch.uint8)  # each begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    return struct.pack(">II", width, height) + _chunk(b"IDAT", zlib.compress(lines.numpy().data, effort))


def png(packed: bytes, colours: bytes | None = None) -> bytes:
    """A PNG of what `pack` made: of shades with the colours of a palette, of colours without."""
    kind = b"\x08\x02\0\0\0" if colours is None else b"\x08\x03\0\0\0"  # 8 bits each, of colours or of a palette
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", packed[:8] + kind),
            b"" if colours is None else _chunk(b"PLTE", colours),
            memoryview(packed)[8:],
            b"\0\0\0\0IEND\xaeB`\x82",
        )
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))
