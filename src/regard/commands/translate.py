"""`regard translate RUN [TEXT…]`: translate sentences, with scores, alignments and pictures if requested."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..core.chunks import chunks
from ..core.files import check_output_file
from ..core.settings import refuse
from .options import add_file_and_out, numbered, output, plot_errors, read_texts, text_counter

if TYPE_CHECKING:
    from ..attention import AttentionMap
    from ..tasks.translator import SearchOptions, Translation, Translator

STEPS = ("output", "input")
MOST = {"beam": 1024, "longest": 2**16, "longest_source": 2**16}
"""Maximum value of each option."""
CHUNK = 512
"""Number of lines read before results are written, so that sentences of similar length can be batched."""


EXAMPLE = """example:
  regard translate runs/de-en "Ein Hund läuft über das Gras."
  regard translate runs/de-en --file test.de --out test.out"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=Path, help="the folder of a trained translator")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="sentences (default: lines of the standard input)")
    add_file_and_out(parser, "translate")
    parser.add_argument("--beam", type=int, default=5, help="beam size; 1 is greedy (default: %(default)s)")
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="A", help="score = log p / length^A (default: %(default)s)"
    )
    parser.add_argument(
        "--n-best", type=int, default=1, metavar="N", help="print N lines 'number ||| text ||| score' per text"
    )
    parser.add_argument(
        "--longest", type=int, default=128, help="maximum tokens of a translation (default: %(default)s)"
    )
    parser.add_argument(
        "--longest-source",
        type=int,
        default=1024,
        metavar="N",
        help="maximum tokens of a text (default: %(default)s)",
    )
    parser.add_argument(
        "--alignments",
        nargs="?",
        const="output",
        choices=STEPS,
        help="append TAB and word links source-target, from the step that wrote a word (output) or read it (input)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the attention map: .png, .svg or .pdf")


def complete_alignments(arguments: Sequence[str]) -> list[str]:
    """Add the default value to `--alignments` if a text follows it, which argparse would take for the value.

    >>> complete_alignments(["translate", "RUN", "--alignments", "A man"])
    ['translate', 'RUN', '--alignments=output', 'A man']
    """
    return [
        "--alignments=output" if word == "--alignments" and after not in STEPS else word
        for word, after in zip_longest(arguments, arguments[1:], fillvalue="output")
    ]


def run(options: argparse.Namespace) -> int:
    """Translate texts or the standard input and return an exit status."""
    from ..models.beam_search import MAX_PENALTY
    from ..tasks.loading import load_translator

    for name in ("beam", "longest", "longest_source"):
        if not 1 <= getattr(options, name) <= MOST[name]:
            shown = name.replace("_", "-")
            raise ValueError(f"{shown} ({getattr(options, name)}) must lie in 1…{MOST[name]:,}.")
    if not 1 <= options.n_best <= options.beam:
        raise ValueError(
            f"n-best ({options.n_best}) must lie in 1…{options.beam}, the beam size. Try --beam {options.n_best}."
        )
    if not abs(options.length_penalty) <= MAX_PENALTY:  # also refuses NaN
        raise ValueError(
            f"length-penalty ({options.length_penalty}) must lie in −{MAX_PENALTY:g}…{MAX_PENALTY:g}. Try 1."
        )
    refuse(plot_errors(options.plot))
    if options.plot:
        check_output_file(options.plot)
    translator = load_translator(options.folder)
    if (options.alignments or options.plot) and not translator.attends:
        raise ValueError(
            f"alignments and plot need a model with attention; {options.folder} has a fixed context. Train with "
            "another --context."
        )
    sentences = read_texts(options)
    with output(options.out) as out, text_counter(shown=options.out is not None) as done:
        _translate(translator, sentences, options, out, done)
    return 0


def _translate(
    translator: Translator,
    sentences: Iterable[str],
    options: argparse.Namespace,
    out: TextIO,
    done: Callable[[int], None],
) -> None:
    number = 0
    for texts in chunks(sentences, CHUNK):
        _refuse_long(translator, texts, number, options.longest_source)
        for best, links, maps in _translated(translator, texts, options):
            for one, ending in zip(best, links, strict=True):
                print(_line(number, one, ending, options.n_best), file=out)
            if options.plot and best[0].written:
                maps[0].save(numbered(options.plot, number), title=f"{best[0].source} → {best[0].text}")
            number += 1
        out.flush()
        done(len(texts))


def _translated(
    translator: Translator, texts: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[list[Translation], list[str], list[AttentionMap]]]:
    """Yield the translations of each text, the alignments to append to their lines, and their maps if `--plot`."""
    from ..tasks.alignment import pharaoh

    search: SearchOptions = {
        "size": options.beam,
        "length_penalty": options.length_penalty,
        "n_best": options.n_best,
        "longest": options.longest,
    }
    maps: list[list[AttentionMap]] | None = None
    if options.plot:
        translations, maps = translator.translate(texts, return_maps=True, **search)
    else:
        translations = translator.translate(texts, **search)
    endings = iter([""] * sum(map(len, translations)))
    if options.alignments:
        aligned = translator.align(translations, step=options.alignments, maps=maps)
        endings = iter([f"\t{pharaoh(one.links)}" for one in aligned])
    for number, best in enumerate(translations):
        yield best, [next(endings) for _ in best], maps[number] if maps else []


def _refuse_long(translator: Translator, texts: Sequence[str], done: int, longest: int) -> None:
    """Raise ValueError for a text whose translation would take too much time and memory."""
    for number, ids in enumerate(translator.source.encode_all(texts), done + 1):
        if len(ids) > longest:
            raise ValueError(
                f"text {number:,} ({len(ids):,} tokens) must have at most {longest:,}. Translate sentence by "
                "sentence, or raise --longest-source."
            )


def _line(number: int, one: Translation, ending: str, n_best: int) -> str:
    text = one.text + ending
    return text if n_best == 1 else f"{number} ||| {text} ||| {one.score:.4f}"
