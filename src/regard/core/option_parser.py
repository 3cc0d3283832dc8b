"""A command line for the settings of a dataclass, by argparse. Attribute docstrings are the help texts."""

from __future__ import annotations

import argparse
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from .setting_options import Option, Settings, checked_settings, chosen_values, options_of
from .settings import refuse, suggestion


class HelpTexts(NamedTuple):
    """Contents of `--help`."""

    important: Sequence[str] = ()
    """Names of the settings that `--help` shows; `--help-all` shows all. Default: all."""
    more: Mapping[str, str] | None = None
    """Options that the caller has parsed, with their help texts: {"--config FILE": "…"}."""
    example: str = ""
    """Last lines of the help."""


def parse(
    kind: type[Settings],
    arguments: Sequence[str],
    defaults: Settings | None = None,
    *,
    program: str | None = None,
    flat: bool = False,
    values: Mapping[str, object] | None = None,
    texts: HelpTexts | None = None,
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
        texts: contents of `--help`; default: all settings.

    >>> from regard.training import Training
    >>> parse(Training, ["--steps", "100", "--warmup", "10", "--betas", "0.9", "0.95"]).betas
    (0.9, 0.95)
    """
    options = options_of(kind, defaults, flat=flat)
    words = [_with_hyphens(word) for word in arguments]
    if "--help-all" in words or {"-h", "--help"} & set(words):
        about = (kind.__doc__ or "").partition("\n\n")[0]
        _print_help(program, about, options, texts or HelpTexts(), "--help-all" in words)
    parser = argparse.ArgumentParser(prog=program, usage=_usage(program), add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(*option.flags, dest=option.name, default=argparse.SUPPRESS, **argument(option))
    read, rest = parser.parse_known_args(words)
    if rest:
        _refuse_unknown(parser, rest, options)
    problems: list[str] = []
    chosen = chosen_values(kind, values or {}, problems)
    refuse(problems)
    chosen |= {option.path: _plain(getattr(read, option.name)) for option in options if hasattr(read, option.name)}
    if missing := [option.flags[0] for option in options if option.default is MISSING and option.path not in chosen]:
        parser.error(f"{', '.join(missing)} must be given; got nothing. {program or 'The command'} --help shows how.")
    return checked_settings(kind, chosen, defaults)


def _usage(program: str | None) -> str:
    return f"{program or '%(prog)s'} [--OPTION VALUE …]"


def _print_help(
    program: str | None, about: str, options: Sequence[Option], texts: HelpTexts, everything: bool
) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog=program,
        usage=_usage(program),
        description=about,
        epilog=texts.example,
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28),
    )
    shown = options if everything or not texts.important else _select(options, texts.important)
    hidden = len(options) - len(shown)
    groups: dict[str, Any] = {}
    for option in shown:
        title = "main options" if hidden else option.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(option.flags[0], default=argparse.SUPPRESS, **argument(option))
    others = parser.add_argument_group("more")
    for flags, text in (texts.more or {}).items():
        name, _, value = flags.partition(" ")
        others.add_argument(name, metavar=value, help=text.replace("%", "%%"))
    others.add_argument("-h", "--help", action="store_true", help="show the main options")
    others.add_argument("--help-all", action="store_true", help=f"show all options{f', {hidden} more' * bool(hidden)}")
    parser.print_help()
    raise SystemExit(0)


def _select(options: Sequence[Option], names: Sequence[str]) -> list[Option]:
    by_name = {option.name: option for option in options}
    return [by_name[name] for name in names if name in by_name]


def _refuse_unknown(parser: argparse.ArgumentParser, rest: Sequence[str], options: Sequence[Option]) -> NoReturn:
    flag = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
    if flag is None:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    known = [known for option in options for known in option.flags]
    parser.error(f"unrecognized option {flag}. {suggestion(flag, known, 'Try --help-all.')}")


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
    if option.default is None or option.default == ():  # the text describes what happens without a value
        default = ""
    folder = {"metavar": "RUN"} if option.flags[0] == "--from" else {}  # other paths are those of files
    return {**_argument(option.hint), **folder, "help": f"{option.text} {default}".strip().replace("%", "%%")}


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

    kinds = ["number" if arm in (int, float) else arm.__name__ for arm in plain]
    read.__name__ = " or ".join([*kinds, *names, *["none"] * optional])  # argparse shows it in messages
    if not plain:
        return {"type": read, "choices": (*names, *[None] * optional)}
    metavar = METAVARS.get(plain[0], "VALUE")
    return {"type": read, "metavar": "|".join([*names, metavar])}
