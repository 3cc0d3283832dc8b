"""`regard classify RUN [TEXT…]`: print the labels and probabilities of texts or image files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .options import chunks, numbered, read_texts

if TYPE_CHECKING:
    from ..tasks.image_classifier import ImageClassifier

CHUNK = 512
"""Number of lines read before results are written, so that texts of similar length can be batched."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="RUN", type=Path, help="the folder of a trained classifier, or a model directory"
    )
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="texts or image files (default: lines of the standard input)"
    )
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
    inputs = read_texts(options)
    if _is_image_classifier(options.folder):
        return _classify_images(options, inputs)
    if options.plot:
        raise ValueError(f"plot ({options.plot}) needs an image classifier; {options.folder} classifies texts.")
    from ..tasks.loading import load_text_classifier

    classifier = load_text_classifier(options.folder)
    count = len(classifier.labels) if options.all else options.top
    done = 0
    for texts in chunks(inputs, CHUNK):
        _refuse_empty(texts, done, bool(options.texts))
        for row in classifier.probabilities(texts).tolist():
            print(_line(row, classifier.labels, count))
        done += len(texts)
        sys.stdout.flush()
    return 0


def _line(row: Sequence[float], labels: Sequence[str], count: int) -> str:
    best = sorted(range(len(row)), key=lambda index: -row[index])[:count]
    return "\t".join(f"{labels[index]}\t{row[index]:.4f}" for index in best)


def _refuse_empty(texts: Sequence[str], done: int, from_arguments: bool) -> None:
    for number, text in enumerate(texts, done + 1):
        if not text.strip():
            where = "argument" if from_arguments else "line"
            raise ValueError(f"text ({where} {number}) must not be empty. Leave it out.")


def _is_image_classifier(folder: Path) -> bool:
    from ..training import read_config

    config = read_config(folder)
    return config.get("recipe") == "images" or config.get("model_type") == "vit"


def _classify_images(options: argparse.Namespace, files: Iterable[str]) -> int:
    from ..tasks.loading import load_image_classifier

    classifier = load_image_classifier(options.folder)
    count = len(classifier.classes) if options.all else options.top
    number = 0
    for paths in chunks(files, CHUNK):
        for path, label in zip(paths, classifier.classify([Path(path) for path in paths]), strict=True):
            print(_line(label.probabilities.tolist(), classifier.classes, count))
            if options.plot:
                _draw(classifier, Path(path), f"{label.name} ({label.probability:.2f})", numbered(options.plot, number))
            number += 1
        sys.stdout.flush()
    return 0


def _draw(classifier: ImageClassifier, image: Path, title: str, path: Path) -> None:
    from ..data.image_files import decode
    from ..pictures.image_overlay import overlay

    weights = classifier.look(image)
    if weights is None:
        raise ValueError(f"plot ({path}) needs a model with attention; this one has none.")
    overlay(decode(image, classifier.shape), weights, path, title)
