"""A matplotlib figure that is saved atomically and displayed by notebooks, without pyplot's global state."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import IO, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.files import replacing
from .layout import DPI

FORMATS = (".png", ".svg", ".pdf")


class Picture(Figure):
    """A figure that a notebook displays without pyplot.

    >>> import tempfile
    >>> picture = Picture.of_pixels(300, 200)
    >>> axes = picture.add_axes_at(50, 40, 200, 120, xlabel="key")
    >>> picture.save(tempfile.mkdtemp() + "/empty.svg").name
    'empty.svg'
    """

    pixels: tuple[int, int]

    @classmethod
    def of_pixels(cls, width: int, height: int) -> Picture:
        """Create a white figure with a layout in pixels, independent of the user's settings."""
        picture = cls(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        picture.set_layout_engine("none")
        picture.pixels = width, height
        return picture

    def add_axes_at(self, left: float, bottom: float, width: float, height: float, **options: object) -> Axes:
        """Add axes at a position in pixels, to a figure created by `of_pixels`."""
        wide, high = self.pixels
        axes_options: dict[str, Any] = options
        return self.add_axes((left / wide, bottom / high, width / wide, height / high), **axes_options)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save the picture as .png, .svg or .pdf, depending on the suffix."""
        return save(self, check_path("save", path))

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        write(self, stream, "png")
        return stream.getvalue()

    def _repr_html_(self) -> str:
        data = base64.b64encode(self._repr_png_()).decode()
        width = round(self.get_figwidth() * 96)  # CSS pixels; the file has more, for dense screens
        return f'<img style="max-width:100%" width="{width}" alt="attention" src="data:image/png;base64,{data}">'


def write(figure: Figure, target: Path | IO[bytes], format: str) -> None:
    """Write the figure without trimming, which would misalign cells and pixels."""
    figure.savefig(target, format=format, dpi=figure.dpi, bbox_inches=figure.bbox_inches)


def check_path(where: str, path: str | os.PathLike[str]) -> Path:
    """Return the path. Raise an error if a picture cannot be saved there."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"{where}: path ({path}) must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; got {path.suffix!r}. "
            f"Save it as {path.with_suffix('.png').name}."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{where}: path ({path}) must be in an existing directory; got {path.parent}. Create that first."
        )
    return path


def save(figure: Figure, path: Path) -> Path:
    """Save the figure atomically: an error never leaves a partial file."""
    with replacing(path) as temporary:
        write(figure, temporary, path.suffix.lower()[1:])
    return path
