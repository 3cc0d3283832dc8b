"""Idx files, the format of the MNIST family: whole numbers in an array of any shape, plain or gzip.

00 00 type dimensions | size of each, 4 bytes, the highest first | the numbers
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

BYTES = 8
"""The type of unsigned bytes, the only one that images and labels are written in."""
GZIP = b"\x1f\x8b"


def read_idx(path: str | Path) -> np.ndarray:
    """The array of an idx file of bytes, plain or gzip, told by its first bytes.

    Raises:
        ValueError: for a file that is not one, or not all of one; by its name.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"idx: file ({path}) must exist; got none there.")
    return parse_idx(path.read_bytes(), str(path))


def parse_idx(content: bytes, name: str = "content") -> np.ndarray:
    """The array in the bytes of an idx file.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))
    array([5, 6, 7], dtype=uint8)
    """
    if content[:2] == GZIP:
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"idx: file ({name}) must be whole; got gzip that ends badly: {error}.") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != BYTES or not content[3]:
        raise ValueError(
            f"idx: file ({name}) must begin with 00 00 {BYTES:02x} and a number of dimensions, an idx file of bytes; "
            f"got {content[:4].hex(' ') or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start]) if len(content) >= start else ()
    if not shape or len(content) != start + math.prod(shape):
        sizes = "×".join(map(str, shape)) or "unknown"
        raise ValueError(
            f"idx: file ({name}) must hold {sizes} bytes after its {start}; got {max(0, len(content) - start):,}. "
            "Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of bytes as an idx file.

    >>> parse_idx(idx_bytes(np.eye(2, dtype=np.uint8))).tolist()
    [[1, 0], [0, 1]]
    """
    assert array.dtype == np.uint8, array.dtype
    return bytes([0, 0, BYTES, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
