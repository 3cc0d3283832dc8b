"""Reading of JSON files, with limits on size and depth and with readable errors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TypeAlias

MAX_BYTES = 256 * 2**20
"""Largest file in bytes. Multilingual tokenizers need about 20 MiB."""
MAX_DEPTH = 64
"""Deepest nesting of objects and lists."""

JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"
"""A value that JSON can represent."""


def is_finite_number(value: object) -> bool:
    """Return whether a value is a number that a float can represent; booleans are not.

    >>> [is_finite_number(value) for value in (1, 0.5, True, "1", float("inf"), 10**400)]
    [True, True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: if the text is not JSON, not UTF-8, or nested deeper than `MAX_DEPTH`. The message describes the
            input, so that it can follow the words "must be …; got".

    >>> parse_json('{"steps": 3}')
    {'steps': 3}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: more than 64 nested objects and lists
    """
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"bytes that are not UTF-8 (at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"text that is not JSON ({error})") from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:  # for example a number with thousands of digits
        raise ValueError(f"JSON that cannot be read ({error})") from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError if objects and lists are nested deeper than `MAX_DEPTH`. They may be shared, as in YAML."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = list({id(child): child for parent in level for child in _children(parent)}.values())
        if not level:
            return
    raise too_deep()


def too_deep() -> ValueError:
    """Return the error for objects and lists that are nested too deeply."""
    return ValueError(f"more than {MAX_DEPTH} nested objects and lists")


def _children(value: Any) -> list[Any]:
    """Return the objects and lists that are direct elements of `value`."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inner if isinstance(child, dict | list)]


def read_json(path: str | os.PathLike[str], expected: str, remedy: str = "", *, where: str) -> Any:
    """Read a JSON file and return its value.

    Args:
        path: the file.
        expected: description of the file for the error message, such as "the settings of a run".
        remedy: sentence that explains what to do about an error.
        where: component that reads the file. The error message begins with it.

    Raises:
        ValueError: if the file is missing, unreadable, larger than `MAX_BYTES`, or not JSON in UTF-8.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"a file of {size / 2**20:,.0f} MiB")
        return parse_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (OSError, ValueError) as error:
        raise _read_error(where, path, expected, getattr(error, "strerror", None) or str(error), remedy) from None


def explain_missing(folder: str | os.PathLike[str], name: str) -> str | None:
    """Describe why a folder does not contain the file `name`, for an error message; None if it does.

    >>> explain_missing("nowhere", "config.json")
    'it does not exist'
    """
    folder = Path(folder)
    if (folder / name).is_file():
        return None
    if folder.is_dir():
        return f"got a folder without {name}"
    return "got a file" if folder.exists() else "it does not exist"


def read_json_object(path: str | os.PathLike[str], expected: str, remedy: str = "", *, where: str) -> dict[str, Any]:
    """Like `read_json`, for a file that must contain an object."""
    value = read_json(path, expected, remedy, where=where)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        raise _read_error(where, path, f"{expected}, a JSON object", kind, remedy)
    return value


def _read_error(where: str, path: str | os.PathLike[str], expected: str, got: str, remedy: str) -> ValueError:
    return ValueError(f"{where}: {os.fspath(path)} must be {expected}; got {got}. {remedy}".rstrip())
