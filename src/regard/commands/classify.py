"""`regard classify RUN [TEXT…]`: print the labels and probabilities of texts or image files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..core.chunks import chunks
from ..core.files import check_output_file
from ..core.settings import refuse
from .options import add_file_and_out, numbered, output, plot_errors, read_texts, text_counter

if TYPE_CHECKING:
    from ..tasks.image_classifier import ImageClassifier

CHUNK = 512
"""Number of lines read before results are written, so that texts of similar length can be batched."""


EXAMPLE = """example:
  regard classify runs/mood "a lovely film"
  regard classify runs/mood --file lines.txt --out labels.tsv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="RUN", type=Path, help="the folder of a trained classifier, or a model directory"
    )
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="texts or image files (default: lines of the standard input)"
    )
    add_file_and_out(parser, "classify")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--top", type=int, default=1, metavar="N", help="print the N most likely labels (default: %(default)s)"
    )
    shown.add_argument("--all", action="store_true", help="print every label")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the attention over each image: .png, .svg or .pdf"
    )


def run(options: argparse.Namespace) -> int:
    """Classify texts, images or lines of the standard input; print LABEL TAB PROBABILITY, most likely first."""
    if options.top < 1:
        raise ValueError(f"top ({options.top}) must be at least 1.")
    refuse(plot_errors(options.plot))
    images = _is_image_classifier(options.folder)
    if options.plot and not images:
        raise ValueError(f"plot ({options.plot}) needs an image classifier; {options.folder} classifies texts.")
    if options.plot:
        check_output_file(options.plot)
    inputs = read_texts(options, are_files=images)
    with output(options.out) as out, text_counter(shown=options.out is not None) as done:
        (_classify_images if images else _classify_texts)(options, inputs, out, done)
    return 0


def _classify_texts(
    options: argparse.Namespace, inputs: Iterable[str], out: TextIO, done: Callable[[int], None]
) -> None:
    from ..tasks.loading import load_text_classifier

    classifier = load_text_classifier(options.folder)
    count = len(classifier.labels) if options.all else options.top
    for texts in chunks(inputs, CHUNK):
        rows = iter(classifier.probabilities([text for text in texts if text.strip()]).tolist())
        for text in texts:  # an empty line stays empty
            print(_line(next(rows), classifier.labels, count) if text.strip() else "", file=out)
        out.flush()
        done(len(texts))


def _line(row: Sequence[float], labels: Sequence[str], count: int) -> str:
    best = sorted(range(len(row)), key=lambda index: -row[index])[:count]
    return "\t".join(f"{labels[index]}\t{row[index]:.4f}" for index in best)


def _is_image_classifier(folder: Path) -> bool:
    from ..training import read_config

    config = read_config(folder)
    return config.get("recipe") == "images" or config.get("model_type") == "vit"


def _classify_images(
    options: argparse.Namespace, files: Iterable[str], out: TextIO, done: Callable[[int], None]
) -> None:
    from ..tasks.loading import load_image_classifier

    classifier = load_image_classifier(options.folder)
    count = len(classifier.classes) if options.all else options.top
    number = 0
    for paths in chunks(files, CHUNK):
        labels = iter(classifier.classify([Path(path) for path in paths if path.strip()]))
        for path in paths:  # an empty line stays empty
            label = next(labels) if path.strip() else None
            print("" if label is None else _line(label.probabilities.tolist(), classifier.classes, count), file=out)
            if options.plot and label is not None:
                _draw(classifier, Path(path), f"{label.name} ({label.probability:.2f})", numbered(options.plot, number))
            number += 1
        out.flush()
        done(len(paths))


def _draw(classifier: ImageClassifier, image: Path, title: str, path: Path) -> None:
    from ..data.image_files import decode
    from ..pictures.image_overlay import overlay

    weights = classifier.look(image)
    if weights is None:
        raise ValueError(f"plot ({path}) needs a model with attention; this one has none.")
    overlay(decode(image, classifier.shape), weights, path, title)
