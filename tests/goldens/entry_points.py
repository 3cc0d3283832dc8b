"""Imports of the goldens from modules that are not public packages; all of them are in this file."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.attention.native import engine
from regard.lens.patch_weights import Patches
from regard.server.open_target import open_target
from regard.server.routes import create as create_app

__all__ = ["ADDRESS_MODULE", "ROOT", "Patches", "command", "create_app", "kernels", "open_target"]

ROOT = Path(__file__).parents[2]
ADDRESS_MODULE = ROOT / "web/src/shell/url_state.ts"
"""The TypeScript module whose functions `read` and `write` convert the address of the page to its state and back."""


def command() -> Callable[[Sequence[str]], int]:
    """The function behind the command `regard`, from the entry point in pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["regard"].partition(":")
    result: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), name)
    return result


def kernels() -> Any:
    """The extension module with the native kernels, or None."""
    return engine.module
