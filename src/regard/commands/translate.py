"""`regard translate RUN [TEXT…]`: sentences in, sentences out, with scores, alignments and pictures where asked for."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .options import chunks, numbered, read_texts

if TYPE_CHECKING:
    from ..attention import AttentionMap
    from ..tasks.translator import SearchOptions, Translation, Translator

STEPS = ("output", "input")
MOST = {"beam": 1024, "longest": 2**16, "longest_source": 2**16}
"""The greatest value of an option."""
CHUNK = 512
"""Lines that are read before the first is written: sentences of like length are translated together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a trained translator")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="sentences (default: lines of the standard input)")
    parser.add_argument("--beam", type=int, default=5, help="hypotheses kept at each step; 1 is greedy (%(default)s)")
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="A", help="score = log p / length^A (%(default)s)"
    )
    parser.add_argument("--n-best", type=int, default=1, metavar="N", help="lines 'number ||| text ||| score'")
    parser.add_argument("--longest", type=int, default=128, help="subwords of a translation (%(default)s)")
    parser.add_argument(
        "--longest-source",
        type=int,
        default=1024,
        metavar="N",
        help="subwords of a text, at most (%(default)s)",
    )
    parser.add_argument(
        "--alignments",
        nargs="?",
        const="output",
        choices=STEPS,
        help="add TAB and word links source-target, by the step that wrote a word (output) or has read it (input)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw what was looked at: alignment.png, .svg or .pdf"
    )


def complete_alignments(arguments: Sequence[str]) -> list[str]:
    """Write out the value of `--alignments` where a text follows it: argparse would take the text for the value.

    >>> complete_alignments(["translate", "RUN", "--alignments", "A man"])
    ['translate', 'RUN', '--alignments=output', 'A man']
    """
    followed = [*arguments[1:], "output"]
    return [
        "--alignments=output" if word == "--alignments" and after not in STEPS else word
        for word, after in zip(arguments, followed, strict=True)
    ]


def run(options: argparse.Namespace) -> int:
    """Translate texts or the standard input; the result is an exit status."""
    from ..tasks.loading import load_translator

    for name in ("beam", "longest", "longest_source"):
        if not 1 <= getattr(options, name) <= MOST[name]:
            shown = name.replace("_", "-")
            raise ValueError(f"{shown} ({getattr(options, name)}) must lie in 1…{MOST[name]:,}.")
    if not 1 <= options.n_best <= options.beam:
        raise ValueError(
            f"n-best ({options.n_best}) must lie in 1…{options.beam}, the beam. Try --beam {options.n_best}."
        )
    if not math.isfinite(options.length_penalty):
        raise ValueError(f"length-penalty ({options.length_penalty}) must be a finite number. Try 1.")
    if options.plot and options.plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot ({options.plot}) must end in .png, .svg or .pdf.")
    translator = load_translator(options.folder)
    if (options.alignments or options.plot) and not translator.attends:
        raise ValueError(
            f"alignments and plot need a model that looks; {options.folder} has a fixed context, the same for every "
            "step. Train with another --context."
        )
    number = 0
    for texts in chunks(read_texts(options), CHUNK):
        _refuse_long(translator, texts, number, options.longest_source)
        for best, links, seen in _translated(translator, texts, options):
            for one, ending in zip(best, links, strict=True):
                print(_line(number, one, ending, options.n_best))
            if options.plot:
                path = numbered(options.plot, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                seen[0].save(path, title=f"{best[0].source} → {best[0].text}")
            number += 1
        sys.stdout.flush()
    return 0


def _translated(
    translator: Translator, texts: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[list[Translation], list[str], list[AttentionMap]]]:
    """Yield the translations of each text, what follows each of them on its line, and their maps if they are drawn."""
    from ..tasks.alignment import pharaoh

    search: SearchOptions = {
        "size": options.beam,
        "length_penalty": options.length_penalty,
        "n_best": options.n_best,
        "longest": options.longest,
    }
    maps: list[list[AttentionMap]] | None = None
    if options.plot:
        found, maps = translator.translate(texts, return_maps=True, **search)
    else:
        found = translator.translate(texts, **search)
    endings = iter([""] * sum(map(len, found)))
    if options.alignments:
        aligned = translator.align(found, step=options.alignments, maps=maps)
        endings = iter([f"\t{pharaoh(one.links)}" for one in aligned])
    for number, best in enumerate(found):
        yield best, [next(endings) for _ in best], maps[number] if maps else []


def _refuse_long(translator: Translator, texts: Sequence[str], done: int, longest: int) -> None:
    """Refuse a text whose translation would take unbounded time and memory."""
    for number, ids in enumerate(translator.source.encode_all(texts), done + 1):
        if len(ids) > longest:
            raise ValueError(
                f"text {number:,} ({len(ids):,} subwords) must have at most {longest:,}. Translate sentence by "
                "sentence, or raise --longest-source."
            )


def _line(number: int, one: Translation, ending: str, n_best: int) -> str:
    text = one.text + ending
    return text if n_best == 1 else f"{number} ||| {text} ||| {one.score:.4f}"
