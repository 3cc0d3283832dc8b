"""`regard classify RUN [TEXT…]`: texts in, labels and probabilities out; of a run on images, files in."""

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
"""Lines that are read before the first is written: texts of like length are read together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="RUN", type=Path, help="the folder of a trained classifier, or a model directory"
    )
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="texts, or files of images (default: lines of the standard input)"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--top", type=int, default=1, metavar="N", help="the N likeliest labels (default: %(default)s)")
    shown.add_argument("--all", action="store_true", help="every label")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="images: what was looked at, over the picture: .png, .svg or .pdf"
    )


def run(options: argparse.Namespace) -> int:
    """Classify texts, images or lines of the standard input: a line each of LABEL TAB PROBABILITY, likeliest first."""
    if options.top < 1:
        raise ValueError(f"top ({options.top}) must be at least 1, the labels of a text.")
    given = read_texts(options)
    if _of_images(options.folder):
        return _images(options, given)
    if options.plot:
        raise ValueError(f"plot ({options.plot}) must come with a classifier of images; {options.folder} reads texts.")
    from ..tasks.loading import load_text_classifier

    classifier = load_text_classifier(options.folder)
    count = len(classifier.labels) if options.all else options.top
    done = 0
    for texts in chunks(given, CHUNK):
        _refuse_empty(texts, done, bool(options.texts))
        for row in classifier.probabilities(texts).tolist():
            print(_line(row, classifier.labels, count))
        done += len(texts)
        sys.stdout.flush()
    return 0


def _line(row: Sequence[float], labels: Sequence[str], count: int) -> str:
    best = sorted(range(len(row)), key=lambda place: -row[place])[:count]
    return "\t".join(f"{labels[place]}\t{row[place]:.4f}" for place in best)


def _refuse_empty(texts: Sequence[str], done: int, given: bool) -> None:
    for number, text in enumerate(texts, done + 1):
        if not text.strip():
            where = "argument" if given else "line"
            raise ValueError(f"text ({where} {number}) must hold something to read; got none. Leave it out.")


def _of_images(folder: Path) -> bool:
    from ..training import read_config

    found = read_config(folder)
    return found.get("recipe") == "images" or found.get("model_type") == "vit"


def _images(options: argparse.Namespace, files: Iterable[str]) -> int:
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
        raise ValueError(f"plot ({path}) needs a model that looks; this one has no attention.")
    overlay(decode(image, classifier.shape), weights, path, title)
