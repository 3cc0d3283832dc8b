"""`regard demo`: train and compare two translators of dates, with and without attention."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = "example:\n  regard demo --out out/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, help="training steps of each model (default: enough for 99 %% with attention)"
    )
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="output folder (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the demo and return an exit status."""
    from .date_contest import STEPS, run

    return run(STEPS if options.steps is None else options.steps, options.out, options.seed)
