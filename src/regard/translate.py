"""`regard translate RUN [TEXT…]`: sentences in, sentences out, with scores, alignments and pictures where asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tasks.alignment import Step
    from .tasks.interpreter import Interpreter, Translation

CHUNK = 512
"""Lines that are read before the first is written: sentences of like length are translated together."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a trained translator")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="sentences (default: lines of the standard input)")
    parser.add_argument("--beam", type=int, default=5, help="hypotheses kept at each step; 1 is greedy (%(default)s)")
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="A", help="score = log p / length^A (%(default)s)"
    )
    parser.add_argument("--n-best", type=int, default=1, metavar="N", help="lines 'number ||| text ||| score'")
    parser.add_argument("--longest", type=int, default=128, help="subwords of a translation (%(default)s)")
    parser.add_argument(
        "--alignments",
        nargs="?",
        const="output",
        choices=("output", "input"),
        help="add TAB and word links source-target, by the step that wrote a word (output) or has read it (input)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw what was looked at: alignment.png, .svg or .pdf"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Translate texts or the standard input; the result is an exit status."""
    from .training.translate import load

    if not 1 <= options.n_best <= options.beam:
        raise ValueError(
            f"n-best ({options.n_best}) must lie in 1…{options.beam}, the beam. Try --beam {options.n_best}."
        )
    if options.plot and options.plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot ({options.plot}) must end in .png, .svg or .pdf.")
    interpreter = load(options.folder)
    if options.alignments or options.plot:
        _check_looks(interpreter, options.folder)
    lines: Iterable[str] = options.texts or (line.rstrip("\n") for line in sys.stdin)
    number = 0
    for texts in _chunks(lines):
        found = interpreter.translate(
            texts,
            size=options.beam,
            length_penalty=options.length_penalty,
            n_best=options.n_best,
            longest=options.longest,
        )
        for best, linked in zip(found, _links(interpreter, found, options.alignments), strict=True):
            for one, ending in zip(best, linked, strict=True):
                print(_line(number, one, ending, options.n_best))
            if options.plot:
                _draw(interpreter, best[0], _place(options.plot, number))
            number += 1
        sys.stdout.flush()
    return 0


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _check_looks(interpreter: Interpreter, folder: Path) -> None:
    [[one]] = interpreter.translate([""], size=1, longest=1)
    if not interpreter.look([one]):
        raise ValueError(
            f"alignments and plot need a model that looks; {folder} has a fixed context, the same for every step. "
            "Train with another --context."
        )


def _links(interpreter: Interpreter, found: list[list[Translation]], step: Step | None) -> list[list[str]]:
    """What comes after the text of each translation: its word links, where they are asked for."""
    from .tasks.alignment import pharaoh

    if step is None:
        return [[""] * len(best) for best in found]
    aligned = iter(interpreter.align([one for best in found for one in best], step=step))
    return [[f"\t{pharaoh(next(aligned).links)}" for _ in best] for best in found]


def _line(number: int, one: Translation, ending: str, n_best: int) -> str:
    text = one.text + ending
    return text if n_best == 1 else f"{number} ||| {text} ||| {one.score:.4f}"


def _draw(interpreter: Interpreter, one: Translation, path: Path) -> None:
    (seen,) = interpreter.look([one])
    path.parent.mkdir(parents=True, exist_ok=True)
    seen.save(path, title=f"{one.source} → {one.text}")


def _place(path: Path, number: int) -> Path:
    """The file of the first picture, and numbered ones beside it for the others."""
    return path if not number else path.with_stem(f"{path.stem}-{number + 1}")
