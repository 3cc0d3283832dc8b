"""Checkpoints in the layout of Hugging Face: a folder of `config.json` and tensors by name, read and written whole."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.files import replacing, write_text
from ..core.json_files import read_json_object
from ..core.messages import few

CONFIG = "config.json"
LISTED = 20
"""Tensors that a message names."""
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Of a checkpoint in several files: which tensor is in which."""
PICKLED = "pytorch_model.bin"


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings in `config.json`.

    Raises:
        ValueError: where there is none, or it is not a JSON object; by the name of the file.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(f"exchange: folder ({folder}) must be a model directory with a {CONFIG}; got none in it.")
    return _read_object(path)


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by name.

    From `model.safetensors`, else from the files that `model.safetensors.index.json` lists, else from
    `pytorch_model.bin`, of which nothing but tensors is read: no code in it is run.

    Raises:
        ValueError: where there is none of them, or one is truncated or something else; by the name of the file.
    """
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return _read_safetensors(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_parts(folder / INDEX)
    if (folder / PICKLED).is_file():
        return _read_pickled(folder / PICKLED)
    raise ValueError(
        f"exchange: folder ({folder}) must hold {WEIGHTS}, {INDEX} or {PICKLED}; got none of them. Checkpoints of "
        "other frameworks have to be converted first."
    )


@torch.no_grad()
def fill(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    *,
    optional: Iterable[str] = (),
    ignored: Iterable[str] = (),
) -> list[str]:
    """Copy the tensors of a checkpoint into a model, all of them or none.

    Args:
        model: whose parameters and buffers are filled; their dtype and device stay.
        tensors: of the checkpoint, by their names.
        names: our name → theirs, for every parameter and persistent buffer; of tied ones, for one of their names.
        optional: patterns of our names that may be missing there: they stay as they are.
        ignored: patterns of their names that need not be used, such as "*.position_ids".

    Returns:
        Our names that were missing there and stay as they are.

    Raises:
        ValueError: that lists every missing, unexpected and mis-shaped tensor.

    >>> model = nn.Linear(2, 3)
    >>> fill(model, {"dense.weight": torch.ones(3, 2), "dense.bias": torch.ones(3)},
    ...      {"weight": "dense.weight", "bias": "dense.bias"})
    []
    >>> fill(model, {"dense.weight": torch.ones(2, 3), "more": torch.ones(1)},
    ...      {"weight": "dense.weight", "bias": "dense.bias"})
    Traceback (most recent call last):
        ...
    ValueError: exchange: tensors (2) must be those of a Linear (2); got
      missing: dense.bias
      unexpected: more
      of another shape: dense.weight (2, 3) for (3, 2)
    Load it with the head and the configuration it was saved with.
    """
    own = model.state_dict(keep_vars=True)
    _check_names(own, names)
    optional, ignored = list(optional), list(ignored)
    absent = [ours for ours, theirs in names.items() if theirs not in tensors]
    spared = [ours for ours in absent if _matches(ours, optional)]
    used = set(names.values())
    shared = [(own[ours], theirs) for ours, theirs in names.items() if theirs in tensors]
    problems = {
        "missing": [names[ours] for ours in absent if ours not in spared],
        "unexpected": [name for name in tensors if name not in used and not _matches(name, ignored)],
        "of another shape": [
            f"{theirs} {tuple(tensors[theirs].shape)} for {tuple(value.shape)}"
            for value, theirs in shared
            if tensors[theirs].shape != value.shape
        ],
    }
    if any(problems.values()):
        told = "\n".join(f"  {kind}: {few(sorted(set(of)), LISTED)}" for kind, of in problems.items() if of)
        raise ValueError(
            f"exchange: tensors ({len(tensors)}) must be those of a {type(model).__name__} ({len(set(names.values()))})"
            f"; got\n{told}\nLoad it with the head and the configuration it was saved with."
        )
    for value, theirs in shared:
        value.copy_(tensors[theirs])
    return spared


def tensor_names(parts: Mapping[str, str]) -> dict[str, str]:
    """Names of the weight and the bias of each part, ours → theirs, from names of parts.

    >>> tensor_names({"up": "fc1"})
    {'up.weight': 'fc1.weight', 'up.bias': 'fc1.bias'}
    """
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in parts.items() for kind in ("weight", "bias")}


def block_names(count: int, parts: Mapping[str, str], above: str) -> dict[str, str]:
    """Names of the parts of each block, ours → theirs; `above` is what they call the list of blocks."""
    return {f"blocks.{n}.{ours}": f"{above}.{n}.{theirs}" for n in range(count) for ours, theirs in parts.items()}


def label_names(labels: Sequence[str]) -> dict[str, Any]:
    """The settings of a `config.json` that name the classes.

    >>> label_names(["cat"])
    {'id2label': {'0': 'cat'}, 'label2id': {'cat': 0}}
    """
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def write(folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors` into a folder, each whole or not at all; other files in it stay.

    Tied tensors are written under one of their names: the caller leaves out the others.
    """
    folder = Path(folder)
    whole = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    with replacing(folder / WEIGHTS) as made:
        save_file(whole, made, {"format": "pt"})  # transformers asks for the format
    write_text(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _read_object(path: Path) -> dict[str, Any]:
    return read_json_object(path, "JSON of a model directory", where="exchange")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, "safetensors", error) from error


def _read_parts(index: Path) -> dict[str, Tensor]:
    places = _read_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"exchange: file ({index}) must have a weight_map of tensor → file; got {places!r}.")
    files = sorted(set(places.values()))
    if wrong := [name for name in files if Path(name).name != name or not (index.parent / name).is_file()]:
        raise ValueError(f"exchange: files that {index} lists must lie beside it; got none of {', '.join(wrong)}.")
    found = {name: value for file in files for name, value in _read_safetensors(index.parent / file).items()}
    if absent := sorted(places.keys() - found.keys()):
        raise ValueError(f"exchange: tensors that {index} lists must be in its files; got no {', '.join(absent)}.")
    return found


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise _damaged(path, "tensors and nothing else", error) from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"exchange: file ({path}) must hold tensors by name; got a {type(found).__name__}.")
    return found


def _damaged(path: Path, what: str, error: Exception) -> ValueError:
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    return ValueError(f"exchange: file ({path}) must be a whole file of {what}; got: {said}. Fetch it again.")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_names(own: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Our own invariant: a parameter that nothing names would stay random without a word."""
    unknown = names.keys() - own.keys()
    assert not unknown, f"names of no parameter: {sorted(unknown)}"
    named = {id(own[name]) for name in names}
    forgotten = [name for name, value in own.items() if id(value) not in named]
    assert not forgotten, f"parameters without a name there: {forgotten}"
