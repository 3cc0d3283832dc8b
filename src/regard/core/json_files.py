"""JSON from files that people and other programs wrote: bounded in size and depth, refused in words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LARGEST = 256 * 2**20
"""Bytes of a file; tokenizers of many languages take about 20 MiB."""
DEEPEST = 64
"""Objects and lists within each other."""


def parse_json(text: str | bytes) -> Any:
    """Return the value that a JSON text describes.

    Raises:
        ValueError: for text that is not JSON or not UTF-8, and for nesting deeper than `DEEPEST`. The message says what
            was read, to follow the words "must be …; got".

    >>> parse_json('{"steps": 3}')
    {'steps': 3}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: more than 64 objects and lists within each other
    """
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"bytes that are not UTF-8 (at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"text that is not JSON ({error})") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # such as a number of thousands of digits
        raise ValueError(f"JSON that cannot be read ({error})") from None
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"more than {DEEPEST} objects and lists within each other")


def _children(value: Any) -> list[Any]:
    """The objects and lists directly within an object or a list."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inner if isinstance(child, dict | list)]


def read_json(path: str | os.PathLike[str], expected: str, remedy: str = "", *, where: str) -> Any:
    """Return the value in a JSON file.

    Args:
        path: the file.
        expected: what the file must be, for the message: "the settings of a run".
        remedy: what to do about it, a sentence.
        where: the part of regard that reads it; begins the message.

    Raises:
        ValueError: for a file that is missing, not readable, larger than `LARGEST`, or not JSON in UTF-8.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"a file of {size / 2**20:,.0f} MiB")
        return parse_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (OSError, ValueError) as error:
        raise _refusal(where, path, expected, getattr(error, "strerror", None) or str(error), remedy) from None


def read_json_object(path: str | os.PathLike[str], expected: str, remedy: str = "", *, where: str) -> dict[str, Any]:
    """As `read_json`, for a file that must hold an object."""
    value = read_json(path, expected, remedy, where=where)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        raise _refusal(where, path, f"{expected}, a JSON object", kind, remedy)
    return value


def _refusal(where: str, path: str | os.PathLike[str], expected: str, got: str, remedy: str) -> ValueError:
    return ValueError(f"{where}: {os.fspath(path)} must be {expected}; got {got}. {remedy}".rstrip())
