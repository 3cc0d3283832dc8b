"""Names that are stored or spoken outside the code, collected from the code itself.

Users' files, scripts and bookmarks contain them, so they stay when modules and classes are renamed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open

import regard
from tests.goldens import server_answers
from tests.goldens.entry_points import ROOT, command
from tests.goldens.small_runs import RECIPES, metrics, without_time

TRAINING = (
    "translate",
    "translate --kind recurrent",
    "pretrain",
    "classify",
    "classify --from X",
    "classify --images X",
    "classify --images X --kind cnn",
)
"""Every recipe and kind of model, as arguments of `regard train`."""
DEFAULT = re.compile(r"\(default: (.*?)\)|\(required\)")


def collect(files: Path, results: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """All frozen names. `files`: what `small_runs` wrote; `results`, `states`: what was recorded from it."""
    return {
        "parameters": _distinct(states),
        "runs": {name: _run(files / name, results["runs"][name]["json"]) for name in RECIPES},
        "capture": _capture(files / "capture.safetensors"),
        "exports": {name: _files(files / name) for name in ("ctranslate2", "huggingface")},
        "answers": {name: keys_of(result) for name, result in results["server"].items()},
        "routes": server_answers.routes(files / "capture.safetensors"),
        "commands": commands(),
        "operators": operators(),
        "environment variables": environment_variables(),
        "entry points": entry_points(),
    }


def _distinct(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first of each group of module variants that have the same parameters."""
    result: dict[str, Any] = {}
    for case, state in states.items():
        kind = case.partition("/")[0]
        if state and state not in [other for name, other in result.items() if name.partition("/")[0] == kind]:
            result[case] = state
    return result


def keys_of(value: Any) -> Any:
    """The keys of nested JSON; in place of other values their type, and for a list its first entry."""
    if isinstance(value, dict):
        return {name: keys_of(part) for name, part in value.items()}
    if isinstance(value, list):
        return [keys_of(value[0])] if value and isinstance(value[0], dict | list) else "list"
    return type(value).__name__


def _run(folder: Path, descriptions: Mapping[str, Any]) -> dict[str, Any]:
    """File names, keys of every JSON file and of each kind of line in the metrics, tensor names and metadata."""
    state = sorted(folder.glob("state-*"))[-1]
    return {
        "files": _files(folder),
        "json": {name: keys_of(value) for name, value in descriptions.items() if not _of_tokenizer(name)},
        "metrics": {line["event"]: keys_of(line) for line in metrics(folder)},
        "model": tensors_of(folder / "model.safetensors"),
        "state": tensors_of(state / "tensors.safetensors"),
    }


def _of_tokenizer(name: str) -> bool:
    """Files in the format of the tokenizers library, whose keys are not ours."""
    return Path(name).name in ("tokenizer.json", "source.json", "target.json")


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def tensors_of(path: Path) -> dict[str, Any]:
    """Names, types and shapes of the tensors of a file, and the keys of its metadata."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        metadata = sorted(file.metadata() or {})
    return {
        "metadata": metadata,
        "tensors": {name: f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for name, x in tensors.items()},
    }


def _capture(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["regard"])
    return {**tensors_of(path), "description": keys_of(without_time(description))}


class _Parser(BaseException):
    """Carries the parser of a command out of it."""


def commands() -> dict[str, dict[str, Any]]:
    """Options of every command: names, defaults and choices."""
    result: dict[str, dict[str, Any]] = {}
    for arguments in (["info"], ["train"]):
        result |= dict(_options(_parser(arguments)))
    for recipe in TRAINING:
        result[f"regard train {recipe}"] = dict(_training_options(recipe))
    return result


def _parser(arguments: list[str], program: str = "regard") -> argparse.ArgumentParser:
    read = argparse.ArgumentParser.parse_known_args

    def caught(self: argparse.ArgumentParser, *args: Any, **options: Any) -> Any:
        if self.prog.startswith(program):  # of images, the name of the program ends with what the data are
            raise _Parser(self)
        return read(self, *args, **options)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", caught):
        try:
            command()(arguments)
        except _Parser as parser:
            result: argparse.ArgumentParser = parser.args[0]
            return result
    raise AssertionError("commands are parsed by argparse")


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, dict[str, Any]]]:
    own: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _options(inner)
            continue
        name = ", ".join(action.option_strings) or f"{action.metavar or action.dest}"
        default = None if action.default in (None, argparse.SUPPRESS) else str(action.default)
        choices = None if action.choices is None else [str(choice) for choice in action.choices]
        own[name] = {"default": default, "nargs": action.nargs, **({"choices": choices} if choices else {})}
    if own:
        yield parser.prog, own


def _training_options(recipe: str) -> Iterator[tuple[str, str | None]]:
    """Yield each option of a recipe, under each of its names, and the default that its help shows."""
    name, *inputs = recipe.split()
    with tempfile.TemporaryDirectory() as folder:
        parser = _parser(["train", name, f"{folder}/run", *inputs], f"regard train {name} RUN")
    for action in parser._actions:
        switch = isinstance(action, argparse.BooleanOptionalAction)
        default = DEFAULT.search(action.help or "")
        for option in [", ".join(action.option_strings)] if switch else action.option_strings:
            yield option, default[1] if default else None


def operators() -> dict[str, str]:
    """The schemas of our operators in torch."""
    names = sorted(
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("regard::")
    )
    return {name: str(getattr(torch.ops.regard, name).default._schema) for name in names}


def environment_variables() -> list[str]:
    """Variables of ours that the package reads."""
    paths = [
        path
        for folder, kinds in (("src", (".py",)), ("native", (".cpp", ".hpp", ".txt")))
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in kinds
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return sorted(set(re.findall(r"[\"'](REGARD_[A-Z_]+)[\"']", text)))


def entry_points() -> dict[str, Any]:
    """Commands, the extension module, importable packages and their public names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {"regard": regard, "regard.layers": regard.layers, "regard.models": regard.models}
    return {
        "commands": sorted(project["scripts"]),
        "modules": [name for name in ("regard.__main__", "regard.huggingface") if importlib.util.find_spec(name)],
        "public names": {name: sorted(module.__all__) for name, module in modules.items()},
    }
