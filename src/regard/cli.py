"""The command line: `regard demo`, `regard info`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the result is the process's exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("\nregard: stopped.", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"regard {options.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    from . import __version__

    parser = argparse.ArgumentParser(prog="regard", description="Attention at fused-kernel speed, and visible.")
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train a small attention model in seconds and show what it looks at")
    demo.add_argument("words", nargs="*", metavar="WORD", help="words to spell backwards (default: attention, regard)")
    demo.add_argument("--steps", type=int, default=500, help="training steps (default: %(default)s)")
    demo.add_argument(
        "--out", type=Path, default=Path("out/demo"), help="folder of the pictures (default: %(default)s)"
    )
    demo.set_defaults(run=_demo)
    info = commands.add_parser("info", help="what is built and in use, and which backend serves a call and why")
    info.add_argument("--shape", metavar="B,H,T,D", help="leading sizes, queries and width of a call, as 1,8,8192,64")
    info.add_argument("--keys", metavar="N", help="number of keys (default: that of queries)")
    info.add_argument("--causal", action="store_true", help="under a causal mask")
    info.add_argument("--similarity", default="scaled_dot", help="such as additive (default: %(default)s)")
    info.add_argument("--dtype", default="float32", help="such as bfloat16 (default: %(default)s)")
    info.add_argument("--grad", action="store_true", help="with gradients")
    info.set_defaults(run=_info)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from .demo import run

    return run(options.words or ["attention", "regard"], options.steps, options.out)


def _info(options: argparse.Namespace) -> int:
    from .info import Call, show

    if options.shape is None and options.keys is not None:
        raise ValueError(f"keys ({options.keys}) must come with the shape of a call. Try --shape 1,8,8192,64.")
    show(call=None if options.shape is None else Call.of(options))
    return 0
