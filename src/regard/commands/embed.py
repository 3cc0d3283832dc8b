"""`regard embed DIRECTORY [TEXT…]`: embed texts, or the lines of files or of the standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import chunks, read_file, read_lines

if TYPE_CHECKING:
    import numpy as np

    from ..tasks.embedder import Embedder

CHUNK = 8192
"""Number of lines read before results are written, so that texts of similar length can be batched."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIRECTORY", type=Path, help="a Hugging Face model directory of a BERT")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="texts (default: lines of the standard input)")
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="embed the lines of a file, plain or .gz; repeatable",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write to an .npy file (default: JSON lines on the standard output)"
    )
    parser.add_argument(
        "--batch-tokens", type=int, metavar="N", help="tokens per batch: more use more memory and may be faster"
    )


def run(options: argparse.Namespace) -> int:
    """Embed texts and return an exit status."""
    from ..tasks.embedder import TOKENS, Embedder

    if options.out and options.out.suffix != ".npy":
        raise ValueError(f"out ({options.out}) must end in .npy. Without --out, JSON lines go to the standard output.")
    if options.texts and options.file:
        raise ValueError(f"texts ({len(options.texts)}) and files ({len(options.file)}) must not both be given.")
    tokens = TOKENS if options.batch_tokens is None else options.batch_tokens
    if tokens < 1:
        raise ValueError(f"batch-tokens ({tokens}) must be at least 1; a few thousand are typical.")
    for path in options.file:
        if not path.is_file():
            raise ValueError(f"file ({path}) must exist.")
    embedder = Embedder.load(options.folder)
    lines = _lines(options.texts, options.file)
    embeddings = _embedded(embedder, lines, tokens)
    if options.out is None:
        for texts, vectors in embeddings:
            for text, vector in zip(texts, vectors, strict=True):
                numbers = ", ".join(map(str, vector))  # NumPy prints the shortest decimal that round-trips
                print(f'{{"text": {json.dumps(text, ensure_ascii=False)}, "embedding": [{numbers}]}}')
            sys.stdout.flush()
        return 0
    count, width = _write(options.out, (vectors for _, vectors in embeddings), embedder.model.bert.config.width)
    print(f"{options.out} ({count:,} × {width}, float32)")
    return 0


def _lines(texts: list[str], files: list[Path]) -> Iterator[str]:
    """Yield the texts of the arguments, files or standard input. Raise ValueError if one is empty."""
    sources: list[tuple[str, Iterable[str]]] = [(f"line {{}} of {path}", read_file(path, "embed")) for path in files]
    if not files:
        sources = [("TEXT {}", texts)] if texts else [("line {} of the standard input", read_lines(sys.stdin))]
    for name, source in sources:
        for number, text in enumerate(source, 1):
            if not text.strip():
                raise ValueError(f"{name.format(number)} ({text!r}) must not be empty. Leave it out.")
            yield text


def _embedded(embedder: Embedder, lines: Iterator[str], tokens: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield chunks of texts with their vectors (n, W), and show a counter on the terminal."""
    with _progress() as done:
        for chunk in chunks(lines, CHUNK):
            yield chunk, embedder.embed(chunk, tokens=tokens, done=done).float().numpy()


@contextmanager
def _progress() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("texts"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("texts", total=None)
        yield lambda count: progress.advance(task, count)


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
