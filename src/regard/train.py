"""`regard train RECIPE RUN …`: the command line of every training; on a folder that holds a run, it goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

RECIPES = ("translate",)
EPILOG = """recipes:
  translate   sentence pairs → a translator: a Transformer, or with --kind recurrent an encoder and decoder with
              attention (or, with --context fixed, without)

examples:
  regard train translate runs/de-en --train train.de train.en --valid val.de val.en --minutes 45
  regard train translate runs/de-en                  goes on with the run, by the settings it has
  regard train translate runs/x --kind recurrent --help
  torchrun --nproc-per-node 2 -m regard train translate runs/de-en …

regard train translate RUN --help lists every setting."""


def run(arguments: Sequence[str]) -> int:
    """Train by a recipe; the result is an exit status."""
    parser = argparse.ArgumentParser(
        prog="regard train",
        description="Train a model. A run is a folder: settings, vocabularies, weights, metrics, curves, samples. "
        "Training that was interrupted goes on when the command is given again.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=RECIPES, nargs="?")
    parser.add_argument("folder", metavar="RUN", type=Path, nargs="?", help="the folder of the run")
    parser.add_argument("--kind", default=None, help="of model: transformer (default) or recurrent")
    known, rest = parser.parse_known_args(list(arguments))
    if known.recipe is None:
        parser.print_help()
        return 0 if set(rest) & {"-h", "--help"} else 2
    if known.folder is None and not set(rest) & {"-h", "--help"}:
        parser.error("RUN must be given: the folder of the run, such as runs/de-en")
    return _translate(known.folder, known.kind, rest)


def _translate(folder: Path | None, kind: str | None, rest: list[str]) -> int:
    from .training import parse
    from .training import translate as recipe

    held = recipe.stored(folder) if folder is not None and (folder / "config.json").exists() else None
    if kind is not None and kind not in recipe.KINDS:
        raise ValueError(f"kind ({kind}) must be one of {', '.join(recipe.KINDS)}.")
    chosen = type(held) if held is not None and kind is None else recipe.KINDS[kind or "transformer"]
    defaults = held if isinstance(held, chosen) else None
    found = parse(chosen, rest, defaults, program="regard train translate RUN", flat=True)
    assert folder is not None, "help ends the process"
    recipe.train(found, folder)
    return 0
