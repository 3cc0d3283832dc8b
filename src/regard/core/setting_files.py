"""Settings from a file: JSON, TOML, or YAML if PyYAML is installed."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from .files import checked_path
from .json_files import MAX_BYTES, check_depth, read_json_object, too_deep

EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
"""Numbers such as 2e-3, which YAML 1.2 and JSON have. PyYAML reads YAML 1.1, which demands 2.0e-3."""
SUFFIXES = (".json", ".toml", ".yaml", ".yml")


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings in a file by name; groups such as training may be nested.

    A file is a table of settings, or the config.json of a run, whose digest is omitted.

    Raises:
        ValueError: if the file is missing or not in its format, or if YAML cannot be read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "settings.toml"
    >>> _ = path.write_text("width = 64\\n[training]\\nminutes = 10\\n")
    >>> read_settings(path)
    {'width': 64, 'training': {'minutes': 10}}
    """
    path = checked_path("settings", "config", path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"settings: config ({path}) must end in {', '.join(SUFFIXES)}; got {path.suffix or 'none'}.")
    if path.suffix == ".json":
        values = read_json_object(path, "a file of settings", where="settings")
        values.pop("sha256", None)
        return values
    try:
        text = _text(path)
        try:
            values = tomllib.loads(text) if path.suffix == ".toml" else _yaml(text)
        except RecursionError:
            raise too_deep() from None
        check_depth(values)
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"settings: config ({path}) must be a {path.suffix[1:]} file; got {got}.") from None
    if not isinstance(values, dict):
        raise ValueError(f"settings: config ({path}) must hold settings by name; got {type(values).__name__}.")
    return values


def _text(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"a file of {size / 2**20:,.0f} MiB")
    return path.read_text(encoding="utf-8-sig")


def _yaml(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]  # optional, without type information
    except ImportError:
        raise ValueError("no PyYAML to read it with. Try pip install pyyaml, or write the settings as TOML") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # without type information
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
