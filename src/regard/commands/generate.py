"""`regard generate MODEL [PROMPT…]`: continue prompts with a language model, and stream the text."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torch import nn

from ..core.chunks import chunks
from ..core.files import check_output_file
from ..core.settings import refuse
from ..models.sampling import Sampling
from .options import add_file_and_out, add_settings, numbered, output, plot_errors, read_texts, settings_from

if TYPE_CHECKING:
    from ..lens.seen import Seen
    from ..tasks.text_generation import TextChunk, TextGenerator

MOST = {"tokens": 2**20, "batch": 1024, "runners_up": 1024}
"""Maximum value of each option."""


EXAMPLE = """example:
  regard generate runs/plays "To be, or" --tokens 40 --temperature 0.8"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="MODEL",
        type=Path,
        help="the folder of a trained language model, or a Hugging Face directory of a GPT-2 or Llama model",
    )
    parser.add_argument("texts", metavar="PROMPT", nargs="*", help="prompts (default: lines of the standard input)")
    add_file_and_out(parser, "prompts are")
    parser.add_argument(
        "--tokens", type=int, default=128, metavar="N", help="maximum tokens of each text (default: %(default)s)"
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end a text before this string; repeatable"
    )
    add_settings(parser, Sampling)
    parser.add_argument("--chat", action="store_true", help="prompts are messages to a model trained on conversations")
    parser.add_argument(
        "--batch",
        type=int,
        default=1,
        metavar="N",
        help="prompts that are continued together: faster, but not streamed (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    parser.add_argument(
        "--runners-up", type=int, default=0, metavar="N", help="print each token with its probability and the N next"
    )
    parser.add_argument("--watch", type=Path, metavar="FILE", help="save all attention maps to a .safetensors file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the attention of all heads: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    """Continue prompts and return an exit status."""
    sampling: Sampling = settings_from(options, Sampling)
    refuse([*_errors(options), *sampling.errors("generate")])
    for path in filter(None, (options.watch, options.plot)):
        check_output_file(path)
    from ..tasks.open_language_model import open_language_model

    generator = open_language_model(options.folder)
    settings = {"sampling": sampling, "max_new_tokens": options.tokens, "stop": options.stop, "chat": options.chat}
    prompts = read_texts(options)
    with output(options.out) as out:
        if options.batch > 1:
            _continue_batches(generator, prompts, settings, options, out)
        else:
            for number, prompt in enumerate(prompts):
                _continue_one(generator, prompt, number, settings, options, out)
    return 0


def _continue_batches(
    generator: TextGenerator, prompts: Iterable[str], settings: dict[str, Any], options: argparse.Namespace, out: TextIO
) -> None:
    for batch in chunks(prompts, options.batch):
        for one in generator.generate(batch, **settings):
            if options.json:
                _print_json(out, one.prompt, one.text, one.reason, one.tokens, one.log_probabilities)
            else:
                print(one.text, file=out)
        out.flush()


def _continue_one(
    generator: TextGenerator,
    prompt: str,
    number: int,
    settings: dict[str, Any],
    options: argparse.Namespace,
    out: TextIO,
) -> None:
    """Continue one prompt, print each token at once, and save the maps if requested."""
    from ..lens.watch import watch

    watched = options.watch or options.plot
    model = generator.model if isinstance(generator.model, nn.Module) else getattr(generator.model, "model", None)
    assert isinstance(model, nn.Module), "a decoder is a module, or the fast form of one"
    steps = generator.stream(prompt, runners_up=options.runners_up, **settings)
    collected: list[TextChunk] = []
    with watch(model) if watched else nullcontext() as seen:
        for chunk in steps:
            if options.json:
                collected.append(chunk)
            elif options.runners_up:
                print(_table_row(chunk), file=out, flush=True)
            else:
                print(chunk.text, end="", file=out, flush=True)
    if options.json:
        scores, others = [one.log_probability for one in collected], [one.runners_up for one in collected]
        more = {"runners_up": others} if options.runners_up else {}
        text = "".join(one.text for one in collected)
        _print_json(out, prompt, text, collected[-1].reason, [one.token for one in collected], scores, **more)
    elif not options.runners_up:
        print(file=out, flush=True)
    if seen is not None:
        ids = [*steps.steps.prompts[0], *steps.steps.tokens[0][:-1]]  # the last token was not read
        _save_maps(seen.tokens(generator.vocabulary.pieces(ids)), number, options)


def _save_maps(seen: Seen, number: int, options: argparse.Namespace) -> None:
    if options.watch:
        seen.save(numbered(options.watch, number))
    if options.plot:
        seen.grid(numbered(options.plot, number))


def _print_json(
    out: TextIO, prompt: str, text: str, reason: Any, tokens: Any, scores: Iterable[float], **more: Any
) -> None:
    rounded = [round(score, 6) for score in scores]
    result = {"prompt": prompt, "text": text, "reason": reason, "tokens": tokens, "log_probabilities": rounded, **more}
    print(json.dumps(result, ensure_ascii=False), file=out, flush=True)


def _table_row(chunk: TextChunk) -> str:
    """Return the probability of a token and those of the runners-up on one line.

    >>> from regard.tasks.text_generation import TextChunk
    >>> _table_row(TextChunk(" a", " a", 7, -0.7, ((" the", 0.25), ("\\n", 0.125)), None))
    "0.497 ' a'          0.250 ' the'        0.125 '\\\\n'"
    """
    cells = [(chunk.token, math.exp(chunk.log_probability)), *chunk.runners_up]
    return "  ".join(f"{probability:.3f} {token!r:12}" for token, probability in cells).rstrip()


def _errors(options: argparse.Namespace) -> list[str]:
    problems = []
    for name, most in MOST.items():
        least = 0 if name == "runners_up" else 1
        if not least <= getattr(options, name) <= most:
            problems.append(
                f"generate: {name.replace('_', '-')} ({getattr(options, name)}) must lie in {least}…{most:,}."
            )
    if options.texts and options.file:
        problems.append(
            f"generate: prompts ({len(options.texts)}) and files ({len(options.file)}) must not both be given."
        )
    for path in options.file:
        if not path.is_file():
            problems.append(f"generate: file ({path}) must {'be a file; got a folder' if path.is_dir() else 'exist'}.")
    if not all(options.stop):
        problems.append("generate: stop ('') must not be empty.")
    problems += [f"generate: {error}" for error in plot_errors(options.plot)]
    if options.watch and options.watch.suffix != ".safetensors":
        problems.append(f"generate: watch ({options.watch}) must end in .safetensors.")
    single = [name for name in ("runners_up", "watch", "plot") if getattr(options, name)]
    if options.batch > 1 and single:
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in single)
        problems.append(f"generate: batch ({options.batch}) must be 1 with {shown}.")
    return problems
