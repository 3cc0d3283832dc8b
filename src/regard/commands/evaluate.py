"""`regard evaluate RUN FILE…`: scores of a trained model on any file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tasks.trained_model import TrainedModel

EXAMPLE = """examples:
  regard evaluate runs/de-en test.de test.en         BLEU and chrF, with their signatures
  regard evaluate runs/mood reviews.tsv              accuracy, F1 and the confusion matrix
  regard evaluate runs/plays more.txt --json         loss, perplexity and bits per character"""
MAX_LABELS = 20
"""Number of labels up to which the confusion matrix is printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a run, or a model directory")
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="data in the format of training: two files of lines or one TSV of pairs, labelled texts, images, or text",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--beam", type=int, default=5, help="beam size of a translator (default: %(default)s)")
    parser.add_argument(
        "--longest", type=int, default=128, help="maximum tokens of a translation (default: %(default)s)"
    )
    parser.add_argument("--text-column", default="", metavar="NAME", help="column of the text (default: text)")
    parser.add_argument("--label-column", default="", metavar="NAME", help="column of the label (default: label)")
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="whether the first line of a .tsv file names its columns (default: if the names are known)",
    )
    parser.add_argument(
        "--documents",
        choices=("blank", "line", "file"),
        default="blank",
        help="document separator of a masked language model (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Evaluate a model on files and print its scores."""
    from ..tasks.trained_model import load

    for name in ("beam", "longest"):
        if not 1 <= getattr(options, name) <= 2**16:
            raise ValueError(f"{name} ({getattr(options, name)}) must lie in 1…65,536.")
    for path in options.files:
        if not path.exists():
            raise ValueError(f"file ({path}) must exist.")
    scores = evaluated(load(options.folder), options)
    if options.json:
        print(json.dumps(scores, ensure_ascii=False))
    else:
        _print(scores)
    return 0


def evaluated(model: TrainedModel, options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the scores of a model on the files.

    Raises:
        ValueError: for a model that cannot be evaluated, or another number of files than it needs.
    """
    from ..tasks import Embedder, ImageClassifier, LanguageModel, MaskedLanguageModel, TextClassifier

    files = options.files
    if isinstance(model, Embedder):
        raise ValueError(f"RUN ({options.folder}) must predict something; got a model that only embeds texts.")
    if isinstance(model, LanguageModel):
        return model.evaluate(*files)
    if isinstance(model, MaskedLanguageModel):
        return model.evaluate(*files, documents=options.documents)
    if isinstance(model, TextClassifier | ImageClassifier):
        if len(files) != 1:
            raise ValueError(f"files ({len(files)}) must be one for a classifier. Evaluate one after the other.")
        if isinstance(model, ImageClassifier):
            return model.evaluate(files[0])
        columns = {"text_column": options.text_column, "label_column": options.label_column}
        return model.evaluate(files[0], **columns, header=options.header)
    return model.evaluate(*files, size=options.beam, longest=options.longest, header=options.header)


def _print(scores: Mapping[str, Any]) -> None:
    for name, value in scores.items():
        if isinstance(value, int | float):
            print(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
    for name, signature in scores.get("signatures", {}).items():
        print(f"{name} signature: {signature}")
    if len(scores.get("labels", ())) > MAX_LABELS:
        print(f"{len(scores['labels'])} labels; --json prints the confusion matrix")
    elif "confusion" in scores:
        _print_confusion(scores["labels"], scores["confusion"], scores["f1_by_label"])


def _print_confusion(labels: list[str], matrix: list[list[int]], f1: Mapping[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("true \\ predicted", box=None, pad_edge=False)
    for label in (*labels, "F1"):
        table.add_column(label, justify="right", no_wrap=True)
    for label, row in zip(labels, matrix, strict=True):
        table.add_row(label, *map(str, row), f"{f1[label]:.3f}")
    Console(highlight=False, markup=False).print(table)
