"""`regard export RUN`: write a trained model in the format of another program."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = """examples:
  regard export runs/de-en                  a translator, for CTranslate2
  regard export runs/mood --out mood-bert   other models, for transformers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a run")
    parser.add_argument(
        "--to",
        choices=("ctranslate2", "huggingface"),
        help="format (default: ctranslate2 for translators, huggingface for other models)",
    )
    parser.add_argument("--out", type=Path, help="output folder (default: RUN/ctranslate2 or RUN/huggingface)")


def run(options: argparse.Namespace) -> int:
    """Write the model and print the name of its folder."""
    from ..tasks import Translator
    from ..tasks.trained_model import load

    model = load(options.folder)
    fitting = "ctranslate2" if isinstance(model, Translator) else "huggingface"
    if options.to not in (None, fitting):
        raise ValueError(
            f"export: to ({options.to}) must be {fitting} for a {type(model).__name__}; {options.folder} has one. Try "
            f"regard export {options.folder} --to {fitting}."
        )
    out: Path = options.out or options.folder / fitting
    model.export(out)
    print(out)
    return 0
