"""Settings typed by dataclasses: to and from JSON, and their errors."""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .json_files import parse_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def refuse(errors: list[str]) -> None:
    """Raise one ValueError that lists all `errors`, if there are any."""
    if errors:
        raise ValueError("\n".join(errors))


Settings = TypeVar("Settings")


def errors_of(settings: object) -> list[str]:
    """Return the errors of `settings` and of all nested dataclasses, from their `errors()` methods."""
    own = settings.errors() if hasattr(settings, "errors") else []
    inner = [getattr(settings, item.name) for item in fields(settings)] if is_dataclass(settings) else []
    return [*own, *(error for value in inner if is_dataclass(value) for error in errors_of(value))]


LATER = {"omit_none": True}
"""Metadata of a field that was added after a release: runs store it only if it is set, so that earlier runs resume."""


def to_values(settings: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as nested dictionaries, without `LATER` settings that are None.

    >>> from regard.training import Training
    >>> to_values(Training(steps=3))["steps"]
    3
    """
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    later = {item.name for item in fields(settings) if item.metadata.get("omit_none")}
    return {
        name: to_values(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
        if value is not None or name not in later
    }


def to_json(settings: DataclassInstance) -> str:
    """Return a dataclass as JSON text with all values, including defaults.

    >>> from regard.training import Training
    >>> from_json(Training, to_json(Training(steps=3))) == Training(steps=3)
    True
    """
    return json.dumps(asdict(settings), indent=2, ensure_ascii=False, default=str) + "\n"


def from_json(kind: type[Settings], text: str) -> Settings:
    """Parse the output of `to_json`. A ValueError lists every unknown key, missing key and value of a wrong type.

    >>> from regard.training import Training
    >>> from_json(Training, '{"stpes": 3}')
    Traceback (most recent call last):
    ValueError: settings: stpes (3) must be a known setting; got another name. Did you mean steps?
    """
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ValueError(f"settings: text must be JSON; got {error}. Check that line.") from None
    return from_values(kind, values)


def from_values(kind: type[Settings], values: object, path: str = "") -> Settings:
    """Like `from_json`, for parsed JSON. `path` is a prefix of setting names in errors, such as "model.".

    >>> from regard.training import Training
    >>> from_values(Training, {"steps": 3, "betas": [0.9, 0.95]}).betas
    (0.9, 0.95)
    """
    problems: list[str] = []
    settings: Settings = _instance(kind, values, path, problems)
    refuse(problems)
    return settings


def _instance(kind: Any, values: Any, path: str, problems: list[str]) -> Any:
    """Return an instance of the dataclass `kind`, or None with the errors appended to `problems`."""
    if not isinstance(values, Mapping):
        name = path.removesuffix(".") or kind.__name__
        problems.append(f"settings: {name} ({values!r}) must be an object with settings; got a value.")
        return None
    hints, known = get_type_hints(kind), {item.name: item for item in fields(kind)}
    for key in values.keys() - known.keys():
        problems.append(unknown_setting(key, values[key], known, path))
    arguments = {
        name: convert(hints[name], values[name], f"{path}{name}", problems) for name in known if name in values
    }
    for name, item in known.items():
        if name not in arguments and item.default is item.default_factory:  # both MISSING: there is no default
            problems.append(f"settings: {path}{name} must be given; got nothing. Add it.")
    return None if problems else kind(**arguments)


def unknown_setting(name: str, value: object, known: Iterable[str], path: str = "") -> str:
    """Return the error for a name that is not among the known ones, with the nearest of them."""
    remedy = suggestion(name, known, "Remove it.")
    return f"settings: {path}{name} ({value!r}) must be a known setting; got another name. {remedy}"


def suggestion(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question that names the known word closest to a misspelled one, or `otherwise` if none is close.

    >>> suggestion("trnaslate", ["train", "translate"], "Try --help."), suggestion("zzz", ["train"], "Try --help.")
    ('Did you mean translate?', 'Try --help.')
    """
    near = difflib.get_close_matches(word, list(known), 1)
    return f"Did you mean {near[0]}?" if near else otherwise


def convert(hint: Any, value: Any, path: str, problems: list[str]) -> Any:
    """Convert `value`, from JSON or from a call, to the type `hint`. Append errors to `problems`.

    A single file is accepted where a setting takes several.

    >>> problems = []
    >>> convert(tuple[int, ...], [3, 4], "widths", problems), convert(float, "x", "clip", problems), problems
    ((3, 4), 'x', ["settings: clip ('x') must be of type float; got str. Change it."])
    """
    if is_dataclass(hint):
        return _instance(hint, value, f"{path}.", problems)
    if get_origin(hint) is tuple and get_args(hint)[0] is Path and isinstance(value, str | os.PathLike):
        value = [value]
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        inner = get_args(hint)
        each = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        if len(each) == len(value):
            return tuple(convert(kind, one, path, problems) for kind, one in zip(each, value, strict=True))
        problems.append(f"settings: {path} ({value!r}) must be {len(each)} values; got {len(value)}. Change it.")
        return value
    if hint is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    if hint is float and isinstance(value, int) and abs(value) >= 2**64:  # beyond the integers of tensors
        largest = sys.float_info.max
        return float(value) if abs(value) <= largest else math.inf if value > 0 else -math.inf
    if get_origin(hint) in (Union, types.UnionType):
        chosen = next((arm for arm in get_args(hint) if _fits(arm, value)), None)
        if chosen is not None:
            return None if value is None else convert(chosen, value, path, problems)
    if not _fits(hint, value):
        rule = f"be of type {getattr(hint, '__name__', hint)}"
        if get_origin(hint) is Literal:
            rule = f"be one of {', '.join(map(str, get_args(hint)))}"
        problems.append(f"settings: {path} ({value!r}) must {rule}; got {type(value).__name__}. Change it.")
    return value


def _fits(hint: Any, value: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(arm, value) for arm in get_args(hint))
    if is_dataclass(hint):
        return isinstance(value, Mapping)
    if hint in (int, float):
        return isinstance(value, int | float if hint is float else int) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str | os.PathLike)
    plain = list | tuple if origin in (tuple, list) else (origin or hint)
    return not isinstance(plain, type | types.UnionType) or isinstance(value, plain)
