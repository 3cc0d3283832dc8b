"""Image files: folders by class, idx files and archives of arrays; any format that Pillow reads.

An idx file, the format of the MNIST family, contains an array of any shape, plain or gzip:

    00 00 type dimensions | size of each dimension, 4 bytes, big-endian | the numbers
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.files import visible_files
from ..core.messages import few
from .image_batches import Images, Shape

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from PIL.Image import Image

ImageInput: TypeAlias = "str | Path | Image | NDArray[np.uint8]"
"""An image: a file, a Pillow image, or an array (H, W) or (H, W, C) of bytes."""

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PARTS = {"train": ("train",), "test": ("t10k", "test", "valid", "val")}
"""Names of the parts: prefixes of idx files, or folder names."""
CLASSES = "classes.txt"
"""File beside idx files with one class name per line."""
MAX_CACHED_BYTES = 1 << 30
"""Largest size in bytes of the decoded images that a folder keeps in memory."""
ANY = Shape()
IDX_BYTES = 8
"""The idx type of unsigned bytes, the only one supported."""
GZIP = b"\x1f\x8b"


class Folder(Images):
    """Images in one folder per class, in alphabetical order. They are decoded on access.

        cats/1.png  cats/2.jpg  dogs/a.png   →   labels 0, 0, 1 of classes cats, dogs

    Each image is rotated by its EXIF orientation, scaled to cover the shape, cropped around its centre and converted to
    its number of channels. Up to 1 GB of decoded images is kept in memory.

    Args:
        path: the folder above the classes. Images are searched at any depth below.
        shape: target size; each 0 is taken from the first image.
        classes: class names in the order of their labels, for a trained model; default: the folder names.

    Raises:
        ValueError: if the folder has no images, or for files that are not images. The message lists their paths.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for name, shade in (("dark", 20), ("light", 240)):
    ...     (root / name).mkdir()
    ...     Image.new("L", (4, 4), shade).save(root / name / "1.png")
    >>> images = Folder(root)
    >>> images, images.take([1]).unique().tolist(), images.subset([1]).labels.tolist()
    (Folder(2 of 4×4, grey, 2 classes), [240], [1])
    """

    def __init__(self, path: str | Path, shape: Shape = ANY, classes: Sequence[str] | None = None) -> None:
        path = Path(path)
        files_by_class = {folder.name: _pictures(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
        files_by_class = {name: files for name, files in files_by_class.items() if files}
        names = list(classes) if classes is not None else list(files_by_class)
        if unknown := sorted(files_by_class.keys() - set(names)):
            raise ValueError(
                f"images: classes of {path} must be those that were learned ({few(names)}); got {few(unknown)} too."
            )
        self.files = [file for files in files_by_class.values() for file in files]
        if not self.files:
            raise ValueError(
                f"images: folder ({path}) must hold a folder of images ({', '.join(ENDINGS[:3])} …) for each class; "
                f"got {'images in the folder itself' if _pictures(path) else 'none'}. Pass the folder that has one "
                "subfolder for each class."
            )
        _check_pictures(self.files)
        labels = np.repeat(
            [names.index(name) for name in files_by_class], [len(files) for files in files_by_class.values()]
        )
        self._pixels = None
        self._initialize(labels, names, shape.filled(_shape_of(self.files[0])))
        bytes_each = self.shape.height * self.shape.width * self.shape.channels
        self._cache: dict[int, Tensor] | None = {} if bytes_each * len(self.files) <= MAX_CACHED_BYTES else None

    def take(self, indices: ArrayLike) -> Tensor:
        """Return the images at `indices`: (B, C, H, W), uint8. They are read from their files."""
        positions = [int(index) for index in np.asarray(indices, np.int64)]
        if not positions:
            return torch.empty(0, self.shape.channels, self.shape.height, self.shape.width, dtype=torch.uint8)
        return torch.stack([self._image(index) for index in positions])

    def _image(self, index: int) -> Tensor:
        if self._cache is None:
            return decode(self.files[index], self.shape)
        if index not in self._cache:
            self._cache[index] = decode(self.files[index], self.shape)
        return self._cache[index]


def decode(image: ImageInput, shape: Shape) -> Tensor:
    """Decode an image to (C, H, W) bytes of the given shape.

    image: a path, a Pillow image, or an array (H, W) or (H, W, C) of bytes.

    Raises:
        ValueError: if it is not an image or is incomplete. The message has its path.
    """
    from PIL import Image, ImageOps

    if isinstance(image, str | Path):
        with _opened(Path(image)) as file:
            try:
                file.load()
            except (OSError, SyntaxError, ValueError) as error:
                raise ValueError(
                    f"images: file ({image}) must be a complete image; got a damaged one: {error}."
                ) from error
            return decode(file, shape)
    if not isinstance(image, Image.Image):
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            raise ValueError(
                f"images: image ({type(image).__name__} {pixels.dtype} {pixels.shape}) must be a file, a Pillow image, "
                "or bytes of (height, width) or (height, width, 3)."
            )
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    picture = ImageOps.exif_transpose(_eight_bits(image)).convert("L" if shape.channels == 1 else "RGB")
    if picture.size != (shape.width, shape.height):
        picture = ImageOps.fit(picture, (shape.width, shape.height), Image.Resampling.BILINEAR)
    pixels = np.array(picture).reshape(shape.height, shape.width, shape.channels)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))  # (C, H, W)


def _eight_bits(image: Any) -> Any:
    """Scale images of 16 bits and of floats to 8 bits. Pillow would clip values above 255."""
    from PIL import Image

    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image, np.float64)
    top = 65535 if values.max(initial=0) > 255 else 255 if values.max(initial=0) > 1 else 1
    return Image.fromarray((values * (255 / top)).clip(0, 255).round().astype(np.uint8))


def read_images(
    path: str | Path,
    part: Literal["train", "test"] = "train",
    *,
    shape: Shape = ANY,
    classes: Sequence[str] | None = None,
) -> Images | None:
    """Return the images of a part, or None if it does not exist.

    path: a folder of idx files (`train-images-idx3-ubyte`, plain or .gz, with labels, and `t10k-…`), a folder with
    `train` and `test` (or `val`) subfolders, a folder of classes, which is the training part, or an .npz file of arrays
    (`images` and `labels`, or `x_train`, `y_train`, `x_test`, `y_test`).
    shape: target size; each 0 is taken from the first image. classes: class names in the order of their labels.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "digits.npz"
    >>> np.savez(path, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5) % 2)
    >>> read_images(path), read_images(path, "test")
    (Images(5 of 8×8, grey, 2 classes), None)
    """
    path = Path(path)
    if path.suffix == ".npz" and path.is_file():
        return _resized(_from_arrays(path, part, classes), shape)
    if not path.is_dir():
        got = "another file" if path.exists() else "no such file"
        raise ValueError(f"images: path ({path}) must be a folder, or an .npz file of arrays; got {got}.")
    if list(path.glob("*-images-idx?-ubyte*")):
        return _resized(_from_idx(path, part, classes), shape)
    inner = [path / name for names in PARTS.values() for name in names if (path / name).is_dir()]
    if not inner:
        return Folder(path, shape, classes) if part == "train" else None
    chosen = [path / name for name in PARTS[part] if (path / name).is_dir()]
    return Folder(chosen[0], shape, classes) if chosen else None


def _resized(images: Images | None, shape: Shape) -> Images | None:
    """Scale arrays of another shape in the same way as files."""
    if images is None or (shape := shape.filled(images.shape)) == images.shape:
        return images
    pixels = images.take(np.arange(len(images))).permute(0, 2, 3, 1).numpy()  # (N, H, W, C)
    scaled = np.stack([decode(one, shape).permute(1, 2, 0).numpy() for one in pixels])
    return Images(scaled, images.labels.numpy(), images.classes)


def _from_idx(path: Path, part: str, classes: Sequence[str] | None) -> Images | None:
    files = {
        kind: sorted(file for name in PARTS[part] for file in path.glob(f"{name}-{kind}-idx?-ubyte*"))
        for kind in ("images", "labels")
    }
    if not files["images"]:
        return None
    if not files["labels"]:
        raise ValueError(f"images: {files['images'][0]} must have a file of labels beside it; got none.")
    names = path / CLASSES
    if classes is None and names.exists():
        classes = names.read_text(encoding="utf-8").splitlines()
    return Images(read_idx(files["images"][0]), read_idx(files["labels"][0]), classes)


def _from_arrays(path: Path, part: str, classes: Sequence[str] | None) -> Images | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            arrays_by_name = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"images: file ({path}) must be an .npz of arrays; got: {error}.") from error
    pairs = [(f"x_{part}", f"y_{part}"), *([("images", "labels")] if part == "train" else [])]
    for pixels, labels in pairs:
        if pixels in arrays_by_name and labels in arrays_by_name:
            return Images(arrays_by_name[pixels], arrays_by_name[labels].reshape(-1), classes)
    if part == "test":
        return None
    raise ValueError(
        f"images: file ({path}) must hold images and labels, or x_train and y_train; got {few(list(arrays_by_name))}."
    )


def _pictures(folder: Path) -> list[Path]:
    return [path for path in visible_files(folder) if path.suffix.lower() in ENDINGS]


def _opened(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path)
    except FileNotFoundError:
        raise ValueError(f"images: file ({path}) must exist; got no such file.") from None
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"images: file ({path}) must be an image; got something else: {error}.") from error


def _check_pictures(files: Sequence[Path]) -> None:
    """Open every file once, so that a bad one is reported before training starts."""
    wrong = []
    for file in files:
        try:
            _opened(file).close()
        except ValueError:
            wrong.append(str(file))
    if wrong:
        raise ValueError(f"images: files must be images; got {len(wrong)} of {len(files)} that are not: {few(wrong)}.")


def _shape_of(file: Path) -> Shape:
    with _opened(file) as image:
        grey = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;")
        return Shape(image.height, image.width, 1 if grey else 3)


def read_idx(path: str | Path) -> np.ndarray:
    """Read the array of an idx file of bytes. Gzip is detected by its first bytes.

    Raises:
        ValueError: if it is not an idx file or is incomplete. The message has its path.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"idx: file ({path}) must exist; got no such file.")
    return parse_idx(path.read_bytes(), str(path))


def parse_idx(content: bytes, name: str = "content") -> np.ndarray:
    """Parse the contents of an idx file.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))
    array([5, 6, 7], dtype=uint8)
    """
    if content[:2] == GZIP:
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"idx: file ({name}) must be complete; got damaged gzip: {error}.") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != IDX_BYTES or not content[3]:
        raise ValueError(
            f"idx: file ({name}) must begin with 00 00 {IDX_BYTES:02x} and a number of dimensions, an idx file of "
            f"bytes; got {content[:4].hex(' ') or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start]) if len(content) >= start else ()
    if not shape or len(content) != start + math.prod(shape):
        sizes = "×".join(map(str, shape)) or "unknown"
        raise ValueError(
            f"idx: file ({name}) must have {sizes} bytes after its {start}; got {max(0, len(content) - start):,}. "
            "Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def idx_bytes(array: np.ndarray) -> bytes:
    """Return the contents of an idx file for an array of bytes.

    >>> parse_idx(idx_bytes(np.eye(2, dtype=np.uint8))).tolist()
    [[1, 0], [0, 1]]
    """
    assert array.dtype == np.uint8, array.dtype
    return bytes([0, 0, IDX_BYTES, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
