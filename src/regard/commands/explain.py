"""`regard explain MECHANISM`: write a flowchart of an actual computation, with its values, as a page or drawing."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.settings import suggestion

if TYPE_CHECKING:
    from ..explain import Chart

NAMES = (
    *("encoder-decoder", "bahdanau", "dot", "scaled-dot", "cosine", "bilinear", "additive", "mlp", "soft", "hard"),
    *("self-attention", "masked", "multi-head", "encoder-block", "transformer", "bert", "gpt", "vit"),
)
"""Listed here so that the command line does not have to import PyTorch."""


EXAMPLE = "example:\n  regard explain bahdanau --out chart.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "mechanism", metavar="MECHANISM", type=_mechanism, choices=NAMES, help=f"one of {', '.join(NAMES)}"
    )
    parser.add_argument("--text", help="input text, a few words (default: the cat sat on it)")
    parser.add_argument(
        "--run", dest="folder", type=Path, metavar="RUN", help="use the trained model of a run instead of a random one"
    )
    parser.add_argument("--image", type=Path, metavar="FILE", help="input image of a trained Vision Transformer")
    parser.add_argument(
        "--step", type=int, default=1, metavar="I", help="decoder step to show first (default: %(default)s)"
    )
    parser.add_argument(
        "--open",
        action="append",
        metavar="PART",
        help="part to expand instead of the default ones: GRU, 'forward > place 2', all, none; repeatable",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a page (.html) or a drawing (.svg)")
    parser.add_argument(
        "--theme", choices=("light", "dark"), default="light", help="theme of a drawing (default: %(default)s)"
    )
    parser.add_argument(
        "--language", choices=("en", "zh"), default="en", help="language of the names of boxes (default: %(default)s)"
    )


def _mechanism(word: str) -> str:
    if word not in NAMES:
        remedy = suggestion(word, NAMES, f"It is one of {', '.join(NAMES)}; a trained model is passed with --run.")
        raise argparse.ArgumentTypeError(f"unknown mechanism {word}. {remedy}")
    return word


def run(options: argparse.Namespace) -> int:
    """Write the chart to a file, or print its boxes if no file is given."""
    from ..explain import chart_files

    if options.out is not None:
        chart_files.check(options.out)
    chart = _chart(options)
    last = max(1, chart.steps)
    if not 1 <= options.step <= last:
        raise ValueError(f"explain: step ({options.step}) must lie in 1…{last}, the steps of {options.mechanism}.")
    if options.open is not None:
        chart.unfold(options.open)
    if options.out is None:
        print(outline(chart, options.step, options.language))
        print(f"to view it: {_page_command(options)}")
        return 0
    content = {**chart.to_dict(), "step": options.step}
    print(chart_files.write(content, options.out, theme=options.theme, language=options.language))
    return 0


def _page_command(options: argparse.Namespace) -> str:
    """Return the same command with a page as its output."""
    values = {"--text": options.text, "--run": options.folder, "--image": options.image}
    values |= {"--step": options.step if options.step > 1 else None}
    values |= {"--language": options.language if options.language != "en" else None}
    values |= {"--out": f"{options.mechanism}.html"}
    opened = [word for part in options.open or [] for word in ("--open", part)]
    others = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    return shlex.join(["regard", "explain", options.mechanism, *opened, *others])


def _chart(options: argparse.Namespace) -> Chart:
    from ..explain import draw, explain

    if options.folder is None:
        if options.image is not None:
            raise ValueError(f"explain: image ({options.image}) must come with --run, a trained Vision Transformer.")
        return explain(options.mechanism, options.text)
    from ..explain.trained_models import explain_run, load, mechanism_of

    loaded = load(options.folder)
    kind = mechanism_of(loaded)
    if kind != options.mechanism:
        raise ValueError(
            f"explain: mechanism ({options.mechanism}) must be that of the run; {options.folder} holds {kind}. Try "
            f"regard explain {kind} --run {options.folder}."
        )
    return draw(explain_run(loaded, options.text, options.image, options.folder.resolve().name))


def outline(chart: Chart, step: int = 1, language: str = "en") -> str:
    """Return one line per box: name, equation, and shape in letters and in numbers.

    >>> from regard.explain import explain
    >>> print(outline(explain("dot")))  # doctest: +NORMALIZE_WHITESPACE
    query                                                   Tq D = 3×4
    key                                                     Tk D = 5×4
    value                                                   Tk Dv = 5×6
    attention       weighting(similarity(q, k)) · v   Tq Dv = 3×6
      similarity    score = q·k                             Tq Tk = 3×5
      weighting     weights = softmax(scores)               Tq Tk = 3×5
      weighted sum  context = weights · v                   Tq Dv = 3×6
    output                                                  Tq Dv = 3×6
    """
    from rich.cells import cell_len, set_cell_size

    depths: dict[int, int] = {}
    rows = []
    for node in chart.nodes:
        depths[node.number] = 0 if node.parent is None else depths[node.parent] + 1
        if node.time is not None and node.time != step:
            continue
        shape = ""
        if node.value is not None:
            value = chart.values[node.value]
            shape = f"{' '.join(value.letters)} = {'×'.join(map(str, value.shape))}" if value.shape else "a number"
        rows.append(("  " * depths[node.number] + node.name[language], node.equation, shape))
    wide = [max(cell_len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(
        f"{set_cell_size(name, wide[0])}  {set_cell_size(equation, wide[1])}  {shape}".rstrip()
        for name, equation, shape in rows
    )
