"""`regard embed DIRECTORY [TEXT…]`: embed texts, or the lines of files or of the standard input."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.chunks import chunks
from ..core.files import check_output_file
from .options import add_file_and_out, output, read_texts, text_counter

if TYPE_CHECKING:
    import numpy as np

    from ..tasks.embedder import Embedder

CHUNK = 8192
"""Number of lines read before results are written, so that texts of similar length can be batched."""


EXAMPLE = "example:\n  regard embed all-MiniLM-L6-v2 --file corpus.txt.gz --out corpus.npy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIRECTORY",
        type=Path,
        help="a Hugging Face directory of a BERT, or a run of pretrain or classify",
    )
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="texts (default: lines of the standard input)")
    add_file_and_out(parser, "embed", "write to an .npy file, or JSON lines to another")
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help="tokens per batch: more use more memory and may be faster"
    )


def run(options: argparse.Namespace) -> int:
    """Embed texts and return an exit status."""
    from ..tasks.embedder import TOKENS, Embedder

    if options.out and options.out.suffix not in (".npy", ".jsonl"):
        raise ValueError(f"out ({options.out}) must end in .npy, or in .jsonl for JSON lines.")
    tokens = TOKENS if options.batch_tokens is None else options.batch_tokens
    if tokens < 1:
        raise ValueError(f"batch-tokens ({tokens}) must be at least 1; a few thousand are typical.")
    if options.out:
        check_output_file(options.out)
    lines = read_texts(options)
    embedder = Embedder.load(options.folder)
    embeddings = _embedded(embedder, lines, tokens)
    if options.out is None or options.out.suffix == ".jsonl":
        with output(options.out) as out:
            for texts, vectors in embeddings:
                for text, vector in zip(texts, vectors, strict=True):
                    numbers = ", ".join(map(str, vector))  # NumPy prints the shortest decimal that round-trips
                    embedding = f"[{numbers}]" if text.strip() else "null"
                    print(f'{{"text": {json.dumps(text, ensure_ascii=False)}, "embedding": {embedding}}}', file=out)
                out.flush()
        return 0
    count, width = _write(options.out, (vectors for _, vectors in embeddings), embedder.model.bert.config.width)
    print(f"{options.out} ({count:,} × {width}, float32)")
    return 0


def _embedded(embedder: Embedder, lines: Iterable[str], tokens: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield chunks of texts with their vectors (n, W), zero for empty lines, and show a counter on the terminal."""
    import numpy as np

    with text_counter() as done:
        for chunk in chunks(lines, CHUNK):
            rows = [index for index, text in enumerate(chunk) if text.strip()]
            vectors = np.zeros((len(chunk), embedder.model.bert.config.width), np.float32)  # (n, W)
            if rows:
                vectors[rows] = (
                    embedder.embed([chunk[index] for index in rows], tokens=tokens, done=done).float().numpy()
                )
            yield chunk, vectors


def _write(path: Path, parts: Iterable[np.ndarray], width: int) -> tuple[int, int]:
    """Write rows to an .npy file incrementally. The header is rewritten once the number of rows is known."""
    from numpy.lib import format as npy

    from ..core.files import replacing

    count = 0

    def header() -> dict[str, Any]:
        return {"descr": "<f4", "fortran_order": False, "shape": (count, width)}

    with replacing(path) as temporary, temporary.open("wb") as file:
        npy.write_array_header_1_0(file, header())
        start = file.tell()
        for part in parts:
            file.write(part.astype("<f4").tobytes())
            count += len(part)
        file.seek(0)
        npy.write_array_header_1_0(file, header())
        assert file.tell() == start, "NumPy reserves space for 21 digits"
    return count, width
