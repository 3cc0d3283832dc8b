"""Every public name has complete types, a docstring and an example, and can be imported from one obvious module."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import itertools
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parent.parent / "src/regard"
INTERNAL = {"commands", "core", "server"}
"""Packages without a Python interface for users: their interfaces are commands, files and HTTP."""
MODULES = [
    "attention.masks",
    "data.dates",
    "huggingface",
    "tasks.alignment",
    "tasks.bleu",
    "tasks.metrics",
]
"""Public modules that are not packages."""
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py") if path.parent.name not in INTERNAL)
PUBLIC = ["regard", *(f"regard.{name}" for name in (*PACKAGES, *MODULES))]


def import_public(name: str) -> ModuleType:
    if name == "regard.huggingface":
        pytest.importorskip("transformers")
    return importlib.import_module(name)


def examples(*docstrings: str | None) -> str:
    """Return the code of the examples that run in some docstrings."""
    listed = [example for text in docstrings for example in doctest.DocTestParser().get_examples(text or "")]
    return "\n".join(example.source for example in listed if not example.options.get(doctest.SKIP))


def untyped(function: Callable[..., object]) -> list[str]:
    """Return the parameters of a function, and of its overloads, that have no type or Any, and "return" likewise."""
    wrong = []
    for each in (function, *typing.get_overloads(function)):
        signature = inspect.signature(each)
        types = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        first = next(iter(types), "")
        if first in ("self", "cls"):
            del types[first]
        types["return"] = signature.return_annotation
        wrong += [name for name, kind in types.items() if kind is inspect.Parameter.empty or _mentions_any(kind)]
    return sorted(set(wrong))


def _mentions_any(kind: object) -> bool:
    return re.search(r"\bAny\b", str(kind)) is not None


def function_gaps(name: str, function: Callable[..., object]) -> Iterator[str]:
    if not function.__doc__:
        yield f"{name}: docstring"
    if not examples(function.__doc__):
        yield f"{name}: example"
    for part in untyped(function):
        yield f"{name}: type of {part}"


def methods(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public methods and properties that a class defines or inherits from a class of regard."""
    for base in kind.__mro__:
        for name, member in vars(base).items():
            function = member
            if isinstance(member, classmethod | staticmethod):
                function = member.__func__
            elif isinstance(member, property):
                function = member.fget
            elif isinstance(member, cached_property):
                function = member.func
            ours = inspect.isfunction(function) and function.__module__.startswith(("regard.", __name__))
            if ours and not name.startswith("_") and getattr(kind, name, None) is getattr(base, name, None):
                yield name, function


def class_gaps(name: str, kind: type) -> Iterator[str]:
    """Yield the gaps of a class and of its methods.

    An example of a method may be in its own docstring, in that of the class, or in those of its base classes, whose
    method it implements. The docstring of a dataclass of settings is the text of `--help`, so its example is in
    `errors`. Exceptions and tuples only need a docstring. `extra_repr` is called by PyTorch only.
    """
    own_docstring = vars(kind).get("__doc__")
    if not own_docstring or own_docstring.startswith(f"{kind.__name__}("):  # the default of dataclasses and tuples
        yield f"{name}: docstring"
    shown = examples(own_docstring)
    is_settings = dataclasses.is_dataclass(kind) and "errors" in vars(kind)
    plain = issubclass(kind, BaseException | tuple) or typing.is_typeddict(kind)
    if not shown and not plain and not (is_settings and examples(vars(kind)["errors"].__doc__)):
        yield f"{name}: example"
    if inspect.isfunction(vars(kind).get("__init__")) and not getattr(kind, "_is_protocol", False):
        yield from (f"{name}: type of {part}" for part in untyped(vars(kind)["__init__"]))
    for method, function in methods(kind):
        inherited = [
            function.__doc__,
            *(getattr(getattr(base, method, None), "__doc__", None) for base in kind.__mro__),
        ]
        if not any(inherited):
            yield f"{name}.{method}: docstring"
        around = examples(*inherited, *(vars(base).get("__doc__") for base in kind.__mro__))
        used = bool(around) if method in ("forward", "extra_repr") else re.search(rf"\b{method}\b", around)
        if not used and not plain:
            yield f"{name}.{method}: example"
        yield from (f"{name}.{method}: type of {part}" for part in untyped(function))


def documented_values(module: ModuleType) -> set[str]:
    """Return the names of values and aliases with a docstring in the source of a module, or of a package's modules."""
    assert module.__file__ is not None
    path = Path(module.__file__)
    files = path.parent.glob("*.py") if path.stem == "__init__" else [path]
    names = set()
    for file in files:
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for statement, following in itertools.pairwise(body):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                names |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return names


def gaps(module: ModuleType) -> Iterator[str]:
    """Yield the gaps of all names in `__all__`. A name that several packages export is listed in each."""
    for name in module.__all__:
        value, full = getattr(module, name), f"{module.__name__}.{name}"
        if inspect.isfunction(value):
            yield from function_gaps(full, value)
        elif inspect.isclass(value):
            yield from class_gaps(full, value)
        elif not isinstance(value, ModuleType) and name not in documented_values(module):
            yield f"{full}: docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_types_a_docstring_and_an_example(name: str) -> None:
    assert list(gaps(import_public(name))) == []


class Incomplete:
    """A class without examples."""

    def __init__(self, size) -> None:  # type: ignore[no-untyped-def]  # on purpose
        self.size = size

    def double(self) -> typing.Any:
        return 2 * self.size

    @property
    def half(self) -> float:
        """Half of the size."""
        return self.size / 2


def test_gaps_are_found() -> None:
    assert list(class_gaps("x", Incomplete)) == [
        "x: example",
        "x: type of size",
        "x.double: docstring",
        "x.double: example",
        "x.double: type of return",
        "x.half: example",
    ]
    assert list(function_gaps("f", lambda x: x)) == [
        "f: docstring",
        "f: example",
        "f: type of return",
        "f: type of x",
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_all_public_names_exist_and_are_listed_by_dir(name: str) -> None:
    module = import_public(name)
    assert module.__all__ == sorted(set(module.__all__), key=module.__all__.index) != []
    assert set(module.__all__) <= set(dir(module))
    for each in module.__all__:
        assert getattr(module, each) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018 the access raises


def test_no_internal_module_has_public_names() -> None:
    assert [name for name in INTERNAL if hasattr(importlib.import_module(f"regard.{name}"), "__all__")] == []


def test_lazy_names_stay_lazy() -> None:
    program = (
        "import sys, regard, regard.lens, regard.pictures, regard.tasks; dir(regard); dir(regard.pictures);"
        "print([name for name in ('matplotlib', 'PIL', 'rich', 'sacrebleu', 'tokenizers', 'transformers') "
        "if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
