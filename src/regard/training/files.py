"""Files that are whole or absent: written aside, forced to the disk, renamed; checked when read.

Every tensor file carries a digest of its contents, so that one flipped bit is found; safetensors by itself finds only
a wrong length.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..data.json_files import parse_json


class Damaged(ValueError):
    """A file that does not hold what was written."""


class Unwritable(OSError):
    """A file that could not be written, as on a full disk."""


def write(path: Path, data: bytes) -> None:
    """Write a file that is whole or absent; what stood there before stays until then."""
    aside = path.with_name(f".{path.name}.part")
    try:
        write_through(aside, data)
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise unwritable(path, len(data), error) from error


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files that is whole or absent."""
    aside = path.with_name(f".{path.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, data in files.items():
            write_through(aside / name, data)
        sync(aside)
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
        sync(path.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unwritable(path, sum(map(len, files.values())), error) from error


def sync(folder: Path) -> None:
    """Wait until the disk has the names in a folder: without it a rename may be lost though the contents are not."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, size: int, error: OSError) -> Unwritable:
    free = shutil.disk_usage(path.parent).free / 2**20 if path.parent.exists() else 0.0
    return Unwritable(
        f"training: {path} ({size / 2**20:.1f} MiB) must be written; got {error.strerror or error} with {free:,.1f} "
        "MiB free. Make room and run the same command again: it goes on from the last state, which is as it was."
    )


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The contents of a safetensors file, with a digest of the tensors in its metadata."""
    whole = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    return bytes(save(whole, {"format": "pt", "sha256": digest(whole), **(metadata or {})}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; raises `Damaged`, naming the file, unless they are those that were written."""
    tensors, _ = read_tensors_and_metadata(path)
    return tensors


def read_tensors_and_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `read_tensors`, and the words that were written with them."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"training: {path} must be a whole safetensors file; got one that is not: {error}.") from error
    if "sha256" in metadata and digest(tensors) != metadata["sha256"]:
        raise Damaged(f"training: {path} must have the digest written into it; got another: its contents changed.")
    return tensors, metadata


def digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """JSON for people, with a digest of the rest."""
    text = json.dumps(value, sort_keys=True)
    return (json.dumps({**value, "sha256": _digest_of(text)}, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """What `json_bytes` gave; raises `Damaged`, naming the file, where it is not that."""
    try:
        value = parse_json(path.read_bytes())
        wanted = value.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(f"training: {path} must be whole JSON; got one that is not: {error!r}.") from error
    if _digest_of(json.dumps(value, sort_keys=True)) != wanted:
        raise Damaged(f"training: {path} must have the digest written into it; got another: its contents changed.")
    return dict(value)


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
