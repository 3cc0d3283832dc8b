"""SHA-256 digests of files, folders and JSON: what was written is compared with what is there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .files import visible_files
from .json_files import parse_json


class Damaged(ValueError):
    """A file does not hold what was written."""


def file_digest(path: Path) -> str:
    """The digest of a file's contents, read as a stream.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"abc")
    >>> file_digest(path)[:16]
    'ba7816bf8f01cfea'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def input_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Digests of files, by path; of a folder, one for each folder below it, over names and contents of its files.

    Files are read by several threads. Hidden files do not count.
    """
    files = {path: visible_files(path) if path.is_dir() else [path] for path in paths}
    every = [file for found in files.values() for file in found]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = dict(zip(every, pool.map(file_digest, every), strict=True))
    result: dict[str, str] = {}
    for path, found in files.items():
        if not path.is_dir():
            result[str(path)] = digests[path]
            continue
        for folder in sorted({file.parent for file in found}):
            listed = [f"{digests[file]} {file.name}\n" for file in found if file.parent == folder]
            result[str(folder)] = text_digest("".join(listed))
    return result


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def json_digest(value: Any) -> str:
    """The digest of a JSON value, whatever the order of its keys."""
    return text_digest(json.dumps(value, sort_keys=True))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """An object as indented JSON, with a digest of the rest under "sha256"."""
    return (json.dumps({**value, "sha256": json_digest(value)}, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """What `json_bytes` gave; raises `Damaged`, with the name of the file, if it is not that."""
    try:
        value = parse_json(path.read_bytes())
        expected = value.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(f"training: {path} must be whole JSON; got one that is not: {error!r}.") from error
    if json_digest(value) != expected:
        raise Damaged(f"training: {path} must have the digest written into it; got another: its contents changed.")
    return dict(value)
