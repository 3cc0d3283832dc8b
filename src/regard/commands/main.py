"""The command line: `regard demo`, `train`, `translate`, `classify`, `view`, `explain` and others."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import classify, data, demo, embed, explain, export, info, train, translate, view
from .options import decode_argument

COMMANDS: dict[str, tuple[Any, str]] = {
    "demo": (demo, "train two translators of dates in a minute or two; one shows where it looks"),
    "train": (train, "train a model by a recipe: regard train --help"),
    "translate": (translate, "translate sentences with a trained model"),
    "classify": (classify, "name the class of texts, or of images"),
    "embed": (embed, "sentence embeddings by a BERT of Hugging Face"),
    "view": (view, "a page that shows what a model looks at, at any size"),
    "explain": (explain, "a flowchart of a mechanism, from what really ran"),
    "export": (export, "write a trained model in the format of another program"),
    "data": (data, "fetch and prepare text and images to learn from"),
    "info": (info, "what is built and in use, and which backend serves a call and why"),
}
"""Modules with `add_arguments` and `run`, and their lines in the help; `train` parses its options itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the process's exit status.

    0: done; 1: refused, with a message on the standard error; 2: wrong options; 130: stopped by Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    name = " ".join(["regard", *given[:1]])
    try:
        try:
            return _run(given)
        finally:  # also after --help, which ends the process
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nregard: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has enough: `regard … | head`
        _discard_output()
        return 0
    except (OSError, ValueError) as error:
        print(f"{name}: {str(error).removeprefix(f'{given[0]}: ' if given else '')}", file=sys.stderr)
        _discard_output()
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print(f"{name}: memory must hold the model and a batch; got too little. Make either smaller.", file=sys.stderr)
        return 1


def _run(given: Sequence[str]) -> int:
    if given[:1] == ["train"]:  # its options depend on the recipe, which reads them itself
        return train.run(given[1:])
    options = _parsed(given)
    return int(options.run(options))


def _prepare_streams() -> None:
    """Make the standard streams usable: none is missing, and output is UTF-8 whatever the locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: `regard … >&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")


def _discard_output() -> None:
    """Drop output that cannot be written: otherwise Python would try again when the process ends, and complain."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def _parsed(given: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a command.

    Texts may stand before and after options, where argparse alone takes only one group of them; after `--` every
    argument is a text.
    """
    cut = list(given).index("--") if "--" in given else len(given)
    parser = _parser()
    options, rest = parser.parse_known_args(translate.complete_alignments(given[:cut]))
    last = [*given[cut + 1 :]]
    if ((rest or last) and not hasattr(options, "texts")) or any(word.startswith("-") for word in rest):
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


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(prog="regard", description="Attention at fused-kernel speed, and visible.")
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if module is not train:
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
