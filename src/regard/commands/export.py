"""`regard export RUN`: write a trained model in the format of another program."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "example:\n  regard export runs/de-en --to ctranslate2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a run")
    parser.add_argument(
        "--to",
        choices=("ctranslate2", "huggingface"),
        default="ctranslate2",
        help="format: ctranslate2 for translators, huggingface for other models (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, help="output folder (default: RUN/ctranslate2 or RUN/huggingface)")


def run(options: argparse.Namespace) -> int:
    """Write the model and print the name of its folder."""
    from ..tasks import Translator
    from ..tasks.trained_model import load

    model = load(options.folder)
    fitting = "ctranslate2" if isinstance(model, Translator) else "huggingface"
    if options.to != fitting:
        raise ValueError(
            f"export: to ({options.to}) must be {fitting} for a {type(model).__name__}; {options.folder} has one. Try "
            f"regard export {options.folder} --to {fitting}."
        )
    out: Path = options.out or options.folder / options.to
    model.export(out)
    print(out)
    return 0
