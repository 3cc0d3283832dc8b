"""Settings of a dataclass by name: one description for the command line, for files of settings and for Python.

--learning-rate 1e-3            learning_rate = 1e-3 (TOML)            learning_rate=1e-3 (Python)
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from .settings import convert, errors_of, refuse, unknown_setting

Settings = TypeVar("Settings")


def named(*names: str) -> dict[str, tuple[str, ...]]:
    """Return the metadata of a field whose option has another name than the field. The field's name works, too.

    >>> named("from")
    {'names': ('from',)}
    """
    return {"names": names}


@dataclass(frozen=True)
class Option:
    """A setting: a field of a dataclass, or of a dataclass in one of its fields."""

    name: str
    """Name with underscores, such as learning_rate."""
    aliases: tuple[str, ...]
    """Other names."""
    path: tuple[str, ...]
    """Names of the fields that lead to it, such as ("training", "learning_rate")."""
    hint: Any
    """Its type."""
    default: Any
    """Its default; MISSING if the setting is required."""
    text: str
    """Its description: the docstring of the attribute, on one line."""
    group: str
    """First sentence of the docstring of its dataclass."""

    @property
    def flags(self) -> list[str]:
        """Option strings of the command line."""
        return [f"--{name.replace('_', '-')}" for name in (self.name, *self.aliases)]


def options_of(kind: type, defaults: object = None, *, flat: bool = True) -> list[Option]:
    """Return all settings of a dataclass and of the dataclasses in its fields.

    Args:
        kind: the dataclass.
        defaults: an instance whose values are the defaults, instead of those of the class.
        flat: name nested settings without the field that holds them: steps instead of training.steps.

    >>> from regard.training import Training
    >>> [option.name for option in options_of(Training)][:3]
    ['steps', 'epochs', 'minutes']
    """
    return list(_options(kind, defaults, flat, ()))


def _options(kind: type, defaults: object, flat: bool, path: tuple[str, ...]) -> Iterator[Option]:
    hints, texts = get_type_hints(kind), attribute_docstrings(kind)
    group = (kind.__doc__ or "").partition("\n\n")[0].partition(". ")[0].removesuffix(".")
    prefix = "" if flat else "".join(f"{name}." for name in path)
    for item in fields(kind):
        if not is_dataclass(hints[item.name]):
            name, *aliases = dict.fromkeys((*item.metadata.get("names", ()), item.name))
            yield Option(
                prefix + name,
                tuple(prefix + alias for alias in aliases),
                (*path, item.name),
                hints[item.name],
                _default(item, defaults),
                texts.get(item.name, ""),
                group,
            )
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            inner = _default(item, defaults)
            yield from _options(hints[item.name], None if inner is MISSING else inner, flat, (*path, item.name))


def _default(item: Field[Any], defaults: object) -> Any:
    if defaults is not None:
        return getattr(defaults, item.name)
    return item.default if item.default_factory is MISSING else item.default_factory()


@lru_cache(maxsize=64)
def attribute_docstrings(kind: type) -> Mapping[str, str]:
    """Return the docstring below each attribute of a class or its bases, as a help text on one line.

    >>> from regard.training import Training
    >>> attribute_docstrings(Training)["seed"]
    'seed of all random number generators'
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for one, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
                text = " ".join(ast.literal_eval(after.value).split()).removesuffix(".")
                text = text.replace("; None for", "; none for")
                name = text.partition(" ")[0]  # such as AdamW
                texts[one.target.id] = text if name[1:].lower() != name[1:] else text[:1].lower() + text[1:]
    return texts


def settings_from(
    kind: type[Settings],
    values: Mapping[str, object],
    defaults: Settings | None = None,
    *,
    file: Mapping[str, object] | None = None,
) -> Settings:
    """Return the settings with these values by name, as in a call or in a file. Groups such as training may be nested.

    Args:
        kind: the dataclass.
        values: settings by name.
        defaults: settings that apply unless others are set; default: those of the class.
        file: settings from a file, which replace the defaults; `values` replace them.

    Raises:
        ValueError: lists every unknown name, wrong type, missing setting and invalid value.

    >>> from regard.training import Training
    >>> settings_from(Training, {"steps": 1000, "learning-rate": 0.01}).learning_rate
    0.01
    >>> settings_from(Training, {"stpes": 3})
    Traceback (most recent call last):
    ValueError: settings: stpes (3) must be a known setting; got another name. Did you mean steps?
    """
    problems: list[str] = []
    chosen = chosen_values(kind, file or {}, problems) | chosen_values(kind, values, problems)
    required = [option for option in options_of(kind, defaults) if option.default is MISSING]
    missing = [option.name for option in required if option.path not in chosen]
    refuse([*problems, *(f"settings: {name} must be given; got nothing. Add it." for name in missing)])
    return checked_settings(kind, chosen, defaults)


def chosen_values(kind: type, values: Mapping[str, object], problems: list[str]) -> dict[tuple[str, ...], Any]:
    """Return values by the path of their setting, with the right type. Append errors to `problems`."""
    known = {name: option for option in options_of(kind) for name in (option.name, *option.aliases)}
    chosen = {}
    for name, value in _flat(kind, values):
        option = known.get(name.replace("-", "_"))
        if option is None:
            problems.append(unknown_setting(name, value, known))
        elif option.path in chosen:
            problems.append(f"settings: {name} ({value!r}) must be set once; got two values. Remove one.")
        else:
            chosen[option.path] = convert(option.hint, value, name, problems)
    return chosen


def _flat(kind: Any, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield names and values, with those of nested groups such as {"training": {"steps": 3}} in place of the group."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if is_dataclass(hints.get(name)) and isinstance(value, Mapping):
            yield from _flat(hints[name], value)
        else:
            yield str(name), value  # YAML has names of other types


def checked_settings(
    kind: type[Settings], chosen: Mapping[tuple[str, ...], Any], defaults: Settings | None
) -> Settings:
    """Return the settings with values by path, or raise a ValueError that lists all errors."""
    settings: Settings = _built(kind, chosen, defaults, ())
    refuse(errors_of(settings))
    return settings


def _built(kind: Any, chosen: Mapping[tuple[str, ...], Any], defaults: object, path: tuple[str, ...]) -> Any:
    hints, arguments = get_type_hints(kind), {}
    for item in fields(kind):
        here, default = (*path, item.name), _default(item, defaults)
        if is_dataclass(hints[item.name]):
            arguments[item.name] = _built(hints[item.name], chosen, None if default is MISSING else default, here)
        else:
            arguments[item.name] = chosen.get(here, default)
    return kind(**arguments)
