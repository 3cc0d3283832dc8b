"""Checkpoints in the Hugging Face layout: a folder with `config.json` and named tensors."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.files import replacing_files, write_text
from ..core.json_files import explain_missing, parse_json, read_json_object
from ..core.messages import few

CONFIG = "config.json"
MAX_LISTED = 20
"""Number of tensors listed in a message."""
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Index of a checkpoint with several files: tensor → file."""
PICKLED = "pytorch_model.bin"


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the settings in `config.json`.

    Raises:
        ValueError: if it does not exist or is not a JSON object. The message has the path.
    """
    problem = explain_missing(folder, CONFIG)
    if problem is not None:
        raise ValueError(f"exchange: folder ({folder}) must be a model directory of Hugging Face; {problem}.")
    return _read_object(Path(folder) / CONFIG)


def refuse_run(where: str, stored: Mapping[str, Any], folder: str | Path) -> None:
    """Raise ValueError if a `config.json` is that of a run of regard, not of a model directory."""
    if "recipe" in stored:
        raise ValueError(
            f"{where}: {folder} must be a model directory of Hugging Face; got a run of regard. Try regard export RUN "
            "--to huggingface, and pass the directory that it writes."
        )


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name.

    They are read from `model.safetensors`, else from the files listed in `model.safetensors.index.json`, else from
    `pytorch_model.bin`. Only tensors are read from the latter; no code in it is executed.

    Raises:
        ValueError: if none of these exists, or one is damaged. The message has the path.
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
    """Copy the tensors of a checkpoint into a model: all of them, or none if there is an error.

    Args:
        model: model whose parameters and buffers are filled. Their dtype and device stay.
        tensors: tensors of the checkpoint by name.
        names: our name → theirs, for every parameter and persistent buffer; for tied ones, one of their names.
        optional: patterns of our names that may be missing. They are left unchanged.
        ignored: patterns of their names that may be unused, such as "*.position_ids".

    Returns:
        Our names that were missing and are left unchanged.

    Raises:
        ValueError: lists all missing and unexpected tensors, and those with a wrong shape.

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
    missing = [ours for ours, theirs in names.items() if theirs not in tensors]
    kept = [ours for ours in missing if _matches(ours, optional)]
    used = set(names.values())
    shared = [(own[ours], theirs) for ours, theirs in names.items() if theirs in tensors]
    problems = {
        "missing": [names[ours] for ours in missing if ours not in kept],
        "unexpected": [name for name in tensors if name not in used and not _matches(name, ignored)],
        "of another shape": [
            f"{theirs} {tuple(tensors[theirs].shape)} for {tuple(value.shape)}"
            for value, theirs in shared
            if tensors[theirs].shape != value.shape
        ],
    }
    if any(problems.values()):
        details = "\n".join(f"  {kind}: {few(sorted(set(of)), MAX_LISTED)}" for kind, of in problems.items() if of)
        raise ValueError(
            f"exchange: tensors ({len(tensors)}) must be those of a {type(model).__name__} ({len(set(names.values()))})"
            f"; got\n{details}\nLoad it with the head and the configuration it was saved with."
        )
    for value, theirs in shared:
        value.copy_(tensors[theirs])
    return kept


def tensor_names(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the names of weight and bias of each part, ours → theirs.

    >>> tensor_names({"up": "fc1"})
    {'up.weight': 'fc1.weight', 'up.bias': 'fc1.bias'}
    """
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in parts.items() for kind in ("weight", "bias")}


def block_names(count: int, parts: Mapping[str, str], above: str) -> dict[str, str]:
    """Return the names of the parts of each block, ours → theirs. `above` is their name of the list of blocks."""
    return {f"blocks.{n}.{ours}": f"{above}.{n}.{theirs}" for n in range(count) for ours, theirs in parts.items()}


def split_fused(tensors: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """Split the tensors of a layer that computes queries, keys and values: `attn.qkv.weight` to `attn.qkv.0.weight`, ….

    >>> list(split_fused({"attn.qkv.bias": torch.zeros(6)}, "attn.qkv."))
    ['attn.qkv.0.bias', 'attn.qkv.1.bias', 'attn.qkv.2.bias']
    """
    result: dict[str, Tensor] = {}
    for name, value in tensors.items():
        before, fused, kind = name.rpartition(layer)
        if fused and len(value) % 3 == 0:  # otherwise `fill` lists it as unexpected
            result |= {f"{before}{fused}{n}.{kind}": part for n, part in enumerate(value.chunk(3))}  # (out / 3, in)
        else:
            result[name] = value
    return result


def join_fused(tensors: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """Undo `split_fused`."""
    result: dict[str, Tensor] = {}
    for name, value in tensors.items():
        before, fused, rest = name.rpartition(layer)
        number, _, kind = rest.partition(".")
        if not fused:
            result[name] = value
        elif number == "0":
            result[f"{before}{fused}{kind}"] = torch.cat([tensors[f"{before}{fused}{n}.{kind}"] for n in range(3)])
    return result


def label_names(labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a `config.json` that name the classes.

    >>> label_names(["cat"])
    {'id2label': {'0': 'cat'}, 'label2id': {'cat': 0}}
    """
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def class_names(stored: Mapping[str, Any], folder: str | Path) -> list[str]:
    """Return the names of the classes in a `config.json`, in order; empty if it has none.

    >>> class_names({"id2label": {"1": "dog", "0": "cat"}}, "model")
    ['cat', 'dog']
    """
    labels = stored.get("id2label")
    if not isinstance(labels, dict):
        return []
    try:
        return [str(labels[key]) for key in sorted(labels, key=int)]
    except ValueError:
        raise ValueError(f"exchange: id2label ({labels!r}) of {folder} must have integers as keys.") from None


def architectures_of(stored: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes of transformers in a `config.json`; empty if it has none.

    >>> architectures_of({"architectures": ["BertModel"]}), architectures_of({"architectures": None})
    (['BertModel'], [])
    """
    names = stored.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def write(folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors` to a folder, each atomically. Other files in it stay.

    Tied tensors are written under one of their names; the caller omits the others.

    Raises:
        ValueError: if the folder holds a run, or is a file.
        Unwritable: if a file cannot be written, for example because the disk is full.
    """
    whole = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    with exporting(folder) as temporary:
        save_file(whole, temporary / WEIGHTS, {"format": "pt"})  # transformers requires the format
        write_text(temporary / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def exporting(folder: str | Path) -> Iterator[Path]:
    """Write the files of an export atomically: yields a temporary folder, whose files move to `folder` at the end.

    Other files in the folder stay, and those of an earlier export are replaced.

    Raises:
        ValueError: if the folder holds a run, whose weights and settings would be lost, or is a file.
        Unwritable: if a file cannot be written, for example because the disk is full.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"export: folder ({folder}) must be a folder or not exist; got a file. Choose another --out.")
    if _holds_run(folder):
        raise ValueError(
            f"export: folder ({folder}) must not hold a run; got one, whose model would be lost. Choose another --out."
        )
    with replacing_files(folder) as temporary:
        yield temporary


def _holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run of training, even an incomplete or damaged one."""
    if (folder / "metrics.jsonl").exists() or any(folder.glob("state-*")):
        return True
    try:
        config = parse_json((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ("recipe" in config or isinstance(config.get("training"), dict))


def _read_object(path: Path) -> dict[str, Any]:
    return read_json_object(path, "JSON of a model directory", where="exchange")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, "safetensors", error) from error


def _read_parts(index: Path) -> dict[str, Tensor]:
    files_by_tensor = _read_object(index).get("weight_map")
    if not isinstance(files_by_tensor, dict) or not all(isinstance(name, str) for name in files_by_tensor.values()):
        raise ValueError(f"exchange: file ({index}) must have a weight_map of tensor → file; got {files_by_tensor!r}.")
    files = sorted(set(files_by_tensor.values()))
    if wrong := [name for name in files if Path(name).name != name or not (index.parent / name).is_file()]:
        raise ValueError(f"exchange: files that {index} lists must be in its folder; got none of {', '.join(wrong)}.")
    tensors = {name: value for file in files for name, value in _read_safetensors(index.parent / file).items()}
    if missing := sorted(files_by_tensor.keys() - tensors.keys()):
        raise ValueError(f"exchange: tensors that {index} lists must be in its files; got no {', '.join(missing)}.")
    return tensors


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise _damaged(path, "tensors and nothing else", error) from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"exchange: file ({path}) must hold tensors by name; got a {type(tensors).__name__}.")
    return tensors


def _damaged(path: Path, what: str, error: Exception) -> ValueError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return ValueError(f"exchange: file ({path}) must be a complete file of {what}; got: {reason}. Fetch it again.")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_names(own: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Check our own invariant: a parameter that `names` omits would silently stay random."""
    unknown = names.keys() - own.keys()
    assert not unknown, f"names of no parameter: {sorted(unknown)}"
    named = {id(own[name]) for name in names}
    unnamed = [name for name, value in own.items() if id(value) not in named]
    assert not unnamed, f"parameters without a name there: {unnamed}"
