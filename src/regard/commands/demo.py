"""`regard demo`: train two translators of dates, with and without attention, or a language model."""

from __future__ import annotations

import argparse
import time
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
    from rich.console import Console

    from . import date_contest, language_demo

    demo = language_demo if options.language else date_contest
    steps = demo.STEPS if options.steps is None else options.steps
    if steps < 1:
        raise ValueError(f"steps ({steps}) must be at least 1; {demo.STEPS} are enough.")
    began = time.monotonic()
    console = Console(highlight=False)
    demo.run(console, steps, options.out, options.seed)
    console.print(f"\nIn {time.monotonic() - began:.0f} s.")
    return 0
