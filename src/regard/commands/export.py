"""`regard export RUN`: write a trained model in the format of another program."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a trained Transformer or BERT")
    parser.add_argument(
        "--to", choices=("ctranslate2", "huggingface"), default="ctranslate2", help="format (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="output folder (default: RUN/ctranslate2 or RUN/huggingface)")


def run(options: argparse.Namespace) -> int:
    """Write the model and print the name of its folder."""
    out: Path = options.out or options.folder / options.to
    if options.to == "huggingface":
        to_huggingface(options.folder, out)
    else:
        from ..models.ctranslate2_export import to_ctranslate2
        from ..tasks.loading import load_translator

        translator = load_translator(options.folder)
        to_ctranslate2(translator.model, translator.source, translator.target, out)
    print(out)
    return 0


def to_huggingface(run: Path, out: Path) -> None:
    """Write the best model of a BERT run as a directory that `transformers` can load."""
    from ..data.wordpiece import WordPiece
    from ..models.huggingface_bert import save_bert
    from ..tasks.loading import best

    save_bert(best(run), out)
    WordPiece.load(run).save(out)
