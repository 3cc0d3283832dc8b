"""Tensor files of a run, verified when read.

Each file contains a digest of its contents, which detects a single flipped bit. safetensors itself only detects a
wrong length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .digests import Damaged, json_digest


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the contents of a safetensors file.

    Its metadata contain a digest of the tensors (sha256) and a digest of the other metadata (metadata_sha256), which
    covers the first digest.
    """
    whole = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    every = {"format": "pt", "sha256": digest(whole), **(metadata or {})}
    return _with_sorted_header(save(whole, {**every, "metadata_sha256": json_digest(every)}))


def _with_sorted_header(data: bytes) -> bytes:
    """Sort the metadata of a safetensors file, which has them in a random order. Equal contents then have equal bytes.

    The file is the length of its header in 8 bytes, the header as JSON, padded with spaces, and the tensors.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + data[start:]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file. Raise `Damaged`, with the path, if they differ from what was written."""
    tensors, _ = read_tensors_and_metadata(path)
    return tensors


def read_tensors_and_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Like `read_tensors`, but also return the metadata of the file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"training: {path} must be a complete safetensors file; got one that is not: {error}.") from error
    others = {name: value for name, value in metadata.items() if name != "metadata_sha256"}
    changed = "metadata_sha256" in metadata and json_digest(others) != metadata["metadata_sha256"]
    if changed or ("sha256" in metadata and digest(tensors) != metadata["sha256"]):
        raise Damaged(f"training: {path} must have the digest written into it; got another: its contents changed.")
    return tensors, metadata


def digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
