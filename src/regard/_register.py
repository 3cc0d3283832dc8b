"""Import a module of regard as soon as the module of another package that it extends has been imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def after_import(name: str, extension: str) -> None:
    """Import `extension` after the module `name`: now if that is imported already, otherwise once it is.

    `name` itself is never imported here, and an `extension` that cannot be imported is left out.
    """
    if name in sys.modules:
        _extend(extension)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, extension))


class _Finder(MetaPathFinder):
    """Finds one module as Python does, and has its loader import `extension` once the module has been executed."""

    def __init__(self, name: str, extension: str) -> None:
        self.name, self.extension = name, extension

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _extend(self.extension)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _extend(extension: str) -> None:
    with contextlib.suppress(ImportError):  # a version without the interface that the extension uses
        importlib.import_module(extension)
