"""`regard demo`: train two translators of dates, with and without attention, or a language model."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "example:\n  regard demo --out out/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--language",
        action="store_true",
        help="train a small GPT on a play of Shakespeare instead, and let it write (about a minute)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        help="training steps of each model (default: enough for 99 %% of the dates with attention, or for a minute "
        "with --language)",
    )
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="output folder (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the demo and return an exit status."""
    from . import date_contest, language_demo

    run_demo, steps = (
        (language_demo.run, language_demo.STEPS) if options.language else (date_contest.run, date_contest.STEPS)
    )
    return run_demo(steps if options.steps is None else options.steps, options.out, options.seed)
