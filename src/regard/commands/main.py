"""The command line: `regard demo`, `train`, `translate`, `classify`, `view`, `explain` and others."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.settings import suggestion
from . import classify, data, demo, embed, evaluate, explain, export, generate, info, train, translate, view
from .options import decode_argument

COMMANDS: dict[str, tuple[Any, str]] = {
    "demo": (demo, "train two translators of dates in a minute or two, with and without attention"),
    "train": (train, "train a model by a recipe: regard train --help"),
    "translate": (translate, "translate sentences with a trained model"),
    "classify": (classify, "classify texts or images"),
    "generate": (generate, "continue prompts with a language model"),
    "evaluate": (evaluate, "compute the scores of a trained model on any file"),
    "embed": (embed, "compute sentence embeddings with a Hugging Face BERT"),
    "view": (view, "show attention maps of any size on a web page"),
    "explain": (explain, "draw a flowchart of a mechanism from an actual computation"),
    "export": (export, "write a trained model in the format of another program"),
    "data": (data, "fetch and prepare text and images for training"),
    "info": (info, "print versions and kernels, and which backend is chosen for a call and why"),
}
"""Modules with `add_arguments`, `run` and `EXAMPLE`, and their help texts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    0: success; 1: error, with a message on the standard error; 2: invalid options; 130: stopped by Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    name = " ".join(["regard", *words[:1]])
    try:
        try:
            with _plain_warnings(name):
                return _run(words)
        finally:  # also after --help, which ends the process
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nregard: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader closed the pipe: `regard … | head`
        _discard_output()
        return 0
    except (OSError, ValueError) as error:
        print(f"{name}: {str(error).removeprefix(f'{words[0]}: ' if words else '')}", file=sys.stderr)
        _discard_output()
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print(f"{name}: out of memory. Use a smaller model or a smaller batch.", file=sys.stderr)
        return 1


def _run(words: Sequence[str]) -> int:
    if not words:
        _parser()[0].print_help()
        return 0
    options = _parse(words)
    return int(options.run(options))


def _prepare_streams() -> None:
    """Replace closed standard streams, and make output UTF-8 in any locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: `regard … >&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")


@contextmanager
def _plain_warnings(name: str) -> Iterator[None]:
    """Print our own warnings as messages of the command, without the path and the line of the source that warned."""
    original, package = warnings.formatwarning, str(Path(__file__).parents[1])
    prefix = f"{name.removeprefix('regard ')}: "

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if filename.startswith(package):
            return f"{name}: {str(message).removeprefix(prefix)}\n"
        return original(message, category, filename, lineno, line)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = original


def _discard_output() -> None:
    """Discard output that cannot be written. Otherwise Python would retry at exit and print an error."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a command.

    Texts may come before and after options, although argparse accepts only one group of them. After `--`, every
    argument is a text. The options of `train` depend on the recipe, so that unknown ones are left in `rest`.
    """
    cut = list(words).index("--") if "--" in words else len(words)
    parser, commands = _parser()
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        parser.error(f"unknown command {words[0]}. {suggestion(words[0], COMMANDS, 'regard --help lists them.')}")
    options, rest = parser.parse_known_args(translate.complete_alignments(words[:cut]))
    last = [*words[cut + 1 :]]
    if options.command == "train":
        options.rest = [decode_argument(word, "argument") for word in rest + last]
        return options
    parser = commands[options.command]
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
    if unknown is not None:
        known = [flag for action in parser._actions for flag in action.option_strings]
        remedy = "Put a text after --." if hasattr(options, "texts") else f"{parser.prog} --help lists all options."
        parser.error(f"unrecognized option {unknown}. {suggestion(unknown, known, remedy)}")
    if (rest or last) and not hasattr(options, "texts"):
        parser.error(f"unrecognized arguments: {' '.join(rest + last)}")
    if hasattr(options, "texts"):
        options.texts += rest + last
    for name, value in vars(options).items():
        if isinstance(value, str):
            setattr(options, name, decode_argument(value, f"--{name}"))
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            shown = {"texts": "TEXT"}.get(name, f"--{name}")
            decoded = [decode_argument(item, f"{shown} {number}") for number, item in enumerate(value, 1)]
            setattr(options, name, decoded)
    return options


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and that of each command by name."""
    from .. import __version__

    parser = argparse.ArgumentParser(prog="regard", description="Attention at fused-kernel speed, and visible.")
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=text,
            epilog=module.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=module is not train,  # which shows the settings of a recipe
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser, commands.choices
