"""`regard demo`: two translators of dates are trained and compared; one has attention."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="of training for each (default: enough for 99 %% with attention)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder of the page and the picture (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Train both, compare, draw; the result is an exit status."""
    from .date_contest import STEPS, run

    return run(STEPS if options.steps is None else options.steps, options.out, options.seed)
