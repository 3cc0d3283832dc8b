"""SHA-256 digests of files, folders and JSON, to detect changed or damaged inputs."""

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
    """The contents of a file differ from what was written."""


def file_digest(path: Path) -> str:
    """Return the digest of a file's contents. The file is read as a stream.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"abc")
    >>> file_digest(path)[:16]
    'ba7816bf8f01cfea'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def input_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of `paths`. Each file has one; each folder has one per subfolder.

    The digest of a folder covers the names and contents of its files. Hidden files are ignored. Several threads read
    the files.
    """
    files = {path: visible_files(path) if path.is_dir() else [path] for path in paths}
    all_files = [file for members in files.values() for file in members]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = dict(zip(all_files, pool.map(file_digest, all_files), strict=True))
    result: dict[str, str] = {}
    for path, members in files.items():
        if not path.is_dir():
            result[str(path)] = digests[path]
            continue
        for folder in sorted({file.parent for file in members}):
            entries = [f"{digests[file]} {file.name}\n" for file in members if file.parent == folder]
            result[str(folder)] = text_digest("".join(entries))
    return result


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def json_digest(value: Any) -> str:
    """Return the digest of a JSON value. The order of keys does not matter."""
    return text_digest(json.dumps(value, sort_keys=True))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as indented text. The key "sha256" holds the digest of the other keys."""
    return (json.dumps({**value, "sha256": json_digest(value)}, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """Read a file written with `json_bytes`. Raise `Damaged`, with the path, if it is not JSON or was changed."""
    try:
        value = parse_json(path.read_bytes())
        expected = value.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(f"training: {path} must be complete JSON; got one that is not: {error!r}.") from error
    if json_digest(value) != expected:
        raise Damaged(f"training: {path} must have the digest written into it; got another: its contents changed.")
    return dict(value)
