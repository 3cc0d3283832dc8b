"""Names of a package that are imported on first use, because their modules import a lot (matplotlib, tokenizers, …)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]], packages: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    Type checkers do not see these names. The package imports them under `if TYPE_CHECKING:`, too, and defines the two
    functions under `if not TYPE_CHECKING:`, so that unknown names stay errors.

    Args:
        package: the name of the package, `__name__`.
        modules: modules relative to the package, and the names that each defines: {".seen": ["Seen"]}.
        packages: names of packages inside the package.

    >>> get, _ = lazy_names("regard.lens", {".rollout": ["Rollout"]})
    >>> get("Rollout")
    <class 'regard.lens.rollout.Rollout'>
    >>> get("Rollouts")
    Traceback (most recent call last):
    AttributeError: module 'regard.lens' has no attribute 'Rollouts'
    """

    homes = {name: module for module, defined in modules.items() for name in defined}

    def get(name: str) -> object:
        if name in packages:
            return importlib.import_module(f".{name}", package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name], package), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *packages})

    return get, names
