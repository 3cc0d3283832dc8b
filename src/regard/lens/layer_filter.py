"""Selection of attention modules by index, name or pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

Layers: TypeAlias = int | str | Iterable[int | str] | None
"""Attention modules: indices in the order of their first call, names, or patterns such as "decoder.*"."""


class LayerFilter:
    """Predicate that returns whether a module is one of the selected layers."""

    def __init__(self, layers: Layers) -> None:
        self.all = layers is None
        selection: list[int | str] = []
        if layers is not None:
            selection = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
        for one in selection:
            if isinstance(one, bool) or not isinstance(one, int | str):
                raise ValueError(
                    f"watch: layers ({one!r}) must be indices, names or patterns; got {type(one).__name__}."
                )
        self.indices = [one for one in selection if isinstance(one, int)]
        self.patterns = [one for one in selection if isinstance(one, str)]

    def __call__(self, module: str, index: int, count: int = 0) -> bool:
        if self.all or index in self.indices or (count and index - count in self.indices):
            return True
        return any(is_below(module, pattern) or fnmatchcase(module, pattern) for pattern in self.patterns)

    def unmatched(self, modules: Sequence[str]) -> list[int | str]:
        """Return the indices and patterns that selected none of `modules`, which were numbered as they were called."""
        indices = [one for one in self.indices if not 0 <= one < len(modules)]
        patterns = [p for p in self.patterns if not any(is_below(m, p) or fnmatchcase(m, p) for m in modules)]
        return [*indices, *patterns]

    def check_indices(self, count: int) -> None:
        """Raise ValueError for the first index out of range, unless there are no layers."""
        for one in self.indices:
            if count and not -count <= one < count:
                raise ValueError(
                    f"seen: layers ({one}) must lie in 0…{count - 1}; got {one}. There are {count} layers."
                )


def is_below(module: str, name: str) -> bool:
    """Return whether `module` is `name` or one of its submodules."""
    return module == name or module.startswith(f"{name}.")
