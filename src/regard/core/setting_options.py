"""Settings of a dataclass by name: one description for the command line, for files of settings and for Python.

--learning-rate 1e-3            learning_rate = 1e-3 (TOML)            learning_rate=1e-3 (Python)
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

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
    chosen = _chosen(kind, file or {}, problems) | _chosen(kind, values, problems)
    required = [option for option in options_of(kind, defaults) if option.default is MISSING]
    missing = [option.name for option in required if option.path not in chosen]
    refuse([*problems, *(f"settings: {name} must be given; got nothing. Add it." for name in missing)])
    return _checked(kind, chosen, defaults)


def _chosen(kind: type, values: Mapping[str, object], problems: list[str]) -> dict[tuple[str, ...], Any]:
    """Return values by the path of their setting, with the right type. Append errors to `problems`."""
    known = {name: option for option in options_of(kind) for name in (option.name, *option.aliases)}
    chosen = {}
    for name, value in _flat(kind, values):
        option = known.get(name.replace("-", "_"))
        if option is None:
            problems.append(unknown_setting(name, value, known))
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
            yield name, value


def _checked(kind: type[Settings], chosen: Mapping[tuple[str, ...], Any], defaults: Settings | None) -> Settings:
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


def parse(
    kind: type[Settings],
    arguments: Sequence[str],
    defaults: Settings | None = None,
    *,
    program: str | None = None,
    flat: bool = False,
    values: Mapping[str, object] | None = None,
    important: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
    description: str | None = None,
    example: str = "",
) -> Settings:
    """Parse a command line into a dataclass. Attribute docstrings become the `--help` texts.

    Options of nested dataclasses are named `--training.steps`, or `--steps` if `flat` is true.

    A command line that does not parse ends the process with status 2 and names the option. Values that have the right
    type but are invalid raise one ValueError, which lists the `errors()` of all dataclasses, including nested ones.

    Args:
        kind: the dataclass.
        arguments: the words of the command line.
        defaults: settings that apply unless an option changes them; default: those of the class.
        program: name of the program in its help.
        flat: name the options of nested dataclasses without their group.
        values: settings by name, as in a file of settings. They replace the defaults; options replace them.
        important: names of the settings that `--help` shows. `--help-all` shows all of them. Default: all.
        more: options that the caller has parsed, with their help texts.
        description: first lines of the help; default: the docstring of the class.
        example: last lines of the help.

    >>> from regard.training import Training
    >>> parse(Training, ["--steps", "100", "--warmup", "10", "--betas", "0.9", "0.95"]).betas
    (0.9, 0.95)
    """
    options = options_of(kind, defaults, flat=flat)
    about = description or (kind.__doc__ or "").partition("\n\n")[0]
    words = [_with_hyphens(word) for word in arguments]
    if "--help-all" in words or {"-h", "--help"} & set(words):
        shown = options if "--help-all" in words or not important else _select(options, important)
        _print_help(program, about, shown, more or {}, len(options) - len(shown), example)
    parser = argparse.ArgumentParser(prog=program, usage=_usage(program), add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(*option.flags, dest=option.name, default=argparse.SUPPRESS, **argument(option))
    read, rest = parser.parse_known_args(words)
    if rest:
        _refuse_unknown(parser, rest, options)
    problems: list[str] = []
    chosen = _chosen(kind, values or {}, problems)
    refuse(problems)
    chosen |= {option.path: _plain(getattr(read, option.name)) for option in options if hasattr(read, option.name)}
    if missing := [option.flags[0] for option in options if option.default is MISSING and option.path not in chosen]:
        parser.error(f"{', '.join(missing)} must be given; got nothing. {program or 'The command'} --help shows how.")
    return _checked(kind, chosen, defaults)


def _usage(program: str | None) -> str:
    return f"{program or '%(prog)s'} [--OPTION VALUE …]"


def _print_help(
    program: str | None, about: str, options: Sequence[Option], more: Mapping[str, str], hidden: int, example: str
) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog=program,
        usage=_usage(program),
        description=about,
        epilog=example,
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28),
    )
    groups: dict[str, Any] = {}
    for option in options:
        title = "main options" if hidden else option.group
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title] = group
        group.add_argument(option.flags[0], default=argparse.SUPPRESS, **argument(option))
    others = parser.add_argument_group("more")
    for flags, text in more.items():
        name, _, value = flags.partition(" ")
        others.add_argument(name, metavar=value, help=text.replace("%", "%%"))
    others.add_argument("-h", "--help", action="store_true", help="show the main options")
    others.add_argument("--help-all", action="store_true", help=f"show all options, {hidden} more" * bool(hidden))
    parser.print_help()
    raise SystemExit(0)


def _select(options: Sequence[Option], names: Sequence[str]) -> list[Option]:
    by_name = {option.name: option for option in options}
    return [by_name[name] for name in names if name in by_name]


def _refuse_unknown(parser: argparse.ArgumentParser, rest: Sequence[str], options: Sequence[Option]) -> NoReturn:
    flag = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
    if flag is None:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    near = difflib.get_close_matches(flag, [known for option in options for known in option.flags], 1)
    parser.error(f"unrecognized option {flag}. {f'Did you mean {near[0]}?' if near else 'Try --help-all.'}")


def _with_hyphens(word: str) -> str:
    """Accept --learning_rate for --learning-rate."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


METAVARS = {int: "N", float: "X", Path: "FILE", str: "TEXT"}


def argument(option: Option) -> dict[str, Any]:
    """Return the keyword arguments of argparse's `add_argument` for a setting, with its help and without a default."""
    default = "(required)" if option.default is MISSING else f"(default: {format_value(option.default)})"
    return {**_argument(option.hint), "help": f"{option.text} {default}".strip().replace("%", "%%")}


def format_value(value: object) -> str:
    """Return a value as it is written on a command line.

    >>> format_value((0.9, 0.98)), format_value(()), format_value(None), format_value("")
    ('0.9 0.98', 'None', 'None', "''")
    """
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "None"
    return "''" if value == "" else str(value)


def _argument(hint: Any) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is bool or hint == bool | None:
        return {"action": argparse.BooleanOptionalAction}
    if origin is tuple:
        return {**_argument(inner[0]), "nargs": "*" if inner[1:] == (...,) else len(inner)}
    if origin is Literal:
        return {"choices": inner}
    if origin in (Union, types.UnionType):
        return _argument_of_union([arm for arm in inner if arm is not types.NoneType], types.NoneType in inner)
    return {"type": hint, "metavar": METAVARS.get(hint, "VALUE")}


def _argument_of_union(arms: Sequence[Any], optional: bool) -> dict[str, Any]:
    names = [name for arm in arms if get_origin(arm) is Literal for name in get_args(arm)]
    plain = [arm for arm in arms if get_origin(arm) is not Literal]

    def read(text: str) -> Any:
        if optional and text.lower() == "none":
            return None
        return text if text in names or not plain else plain[0](text)

    read.__name__ = " or ".join([*(arm.__name__ for arm in plain), *names, *["none"] * optional])  # shown in messages
    if not plain:
        return {"type": read, "choices": (*names, *[None] * optional)}
    metavar = METAVARS.get(plain[0], "VALUE")
    return {"type": read, "metavar": "|".join([*names, metavar])}
