"""`python -m bench NAME`: run one benchmark, print its table and append its rows to a CSV file.

`python -m bench all` runs every benchmark and prints a summary (`bench._all`).

Exit status: 0 if every bar is met, 1 if a bar is missed, 2 for a usage error or contenders whose outputs disagree, 3 if
nothing could be measured because packages or data are missing, 130 after Ctrl-C. Goals do not change it.
"""

import argparse
import ast
import importlib
import importlib.util
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

import bench
from bench import _all, _skips
from bench.harness import Case, Figure, Options, Result, measure, measure_figure, threads
from bench.parity import ParityError
from bench.report import count_bars, count_goals, report

HELPERS = ("__main__", "harness", "memory", "parity", "peers", "report")
QUICK_ROUNDS = 3


def benchmark_names() -> list[str]:
    """Return the names of all benchmarks: every module of the package that is not a helper."""
    names = (module.name for module in pkgutil.iter_modules(bench.__path__))
    return sorted(name for name in names if name not in HELPERS and not name.startswith("_"))


def describe(name: str) -> str:
    """Return the first line of a benchmark's docstring without importing the module."""
    spec = importlib.util.find_spec(f"bench.{name}")
    assert spec is not None and spec.origin is not None
    documentation = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (documentation or "").partition("\n")[0]


def run(name: str, options: Options, only: str, results: list[Result]) -> None:
    """Measure the cases and figures whose name or shape contains `only`, and append each result to `results`."""
    module = importlib.import_module(f"bench.{name}")
    generators = [getattr(module, kind, None) for kind in ("cases", "figures")]
    if not any(generators):
        raise ValueError(
            f"bench: benchmark ({name}) must define cases(options) or figures(options); got neither. "
            "bench/__init__.py shows both."
        )
    status = Console(stderr=True)
    for generator in filter(None, generators):
        for item in _matching(generator(options), only):
            with status.status(f"{item.name} {item.shape}"):
                results += _measure(item, options)


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not arguments.name and not arguments.list:
        parser.error(f"NAME must be given; all, or one of {', '.join(benchmark_names())}")
    if arguments.list:
        for name in benchmark_names():
            print(f"{name:<12} {describe(name)}")
        return 0
    if arguments.name == "all":
        if arguments.only:
            parser.error("--only selects cases of one benchmark; it must not be used with all")
        return _all.run_all(benchmark_names(), _all_options(arguments), bars=arguments.bars)
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else Options.rounds)
    options = Options(
        rounds, threads=arguments.threads, quick=arguments.quick, out=arguments.out, write=arguments.write
    )
    results: list[Result] = []
    _skips.skipped.clear()
    with threads(options.threads):
        try:
            status = _attempt(lambda: run(arguments.name, options, arguments.only, results))
        finally:  # keep the results measured before an error
            if results:
                report(results, arguments.name, options.out)
        if results:
            _conclude(arguments.name, results, options, complete=not status)
        elif not status:
            status = _nothing_measured(arguments.name, arguments.only)
    if arguments.summary:
        counts = {"bars": count_bars(results), "goals": count_goals(results), "skipped": _skips.skipped}
        arguments.summary.write_text(json.dumps(counts), encoding="utf-8")
    missed = any(result.met is False for result in results)
    return status or int(missed and arguments.bars)


def _all_options(arguments: argparse.Namespace) -> list[str]:
    """Return the command line options that `all` passes to each benchmark."""
    options = ["--out", str(arguments.out)]
    rounds = arguments.rounds or (None if arguments.quick else _all.ROUNDS)
    for name, value in (("--rounds", rounds), ("--threads", arguments.threads)):
        options += [name, str(value)] if value else []
    for name in ("quick", "write"):
        options += [f"--{name}"] if getattr(arguments, name) else []
    return options


def _nothing_measured(name: str, only: str) -> int:
    if _skips.skipped:
        print(f"bench: {name} measured nothing, because what it needs is missing", file=sys.stderr)
        return _all.NOTHING_MEASURED
    print(f"bench: no case of {name} matches --only {only!r}", file=sys.stderr)
    return 2


def _measure(item: Case | Figure, options: Options) -> list[Result]:
    return measure(item, options.rounds, options.seconds) if isinstance(item, Case) else [measure_figure(item)]


def _conclude(name: str, results: Sequence[Result], options: Options, complete: bool) -> None:
    """Print the benchmark's own summary, such as a fit. Print nothing if the run was interrupted."""
    conclude = getattr(importlib.import_module(f"bench.{name}"), "conclude", None)
    if conclude and complete:
        print(conclude(results, options))


def _matching(items: Iterable[Case | Figure], only: str) -> Iterator[Case | Figure]:
    return (item for item in items if only in f"{item.name} {item.shape}")


def _attempt(work: Callable[[], None]) -> int:
    """Run `work` and return an exit status. Results measured before an interruption are kept."""
    try:
        work()
    except KeyboardInterrupt:
        print("bench: interrupted; the table shows the results so far", file=sys.stderr)
        return 130
    except ParityError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except _skips.Missing as error:
        _skips.skipped.append(str(error))
        print(error, file=sys.stderr)
    return 0


def _name(text: str) -> str:
    if text != "all" and text not in benchmark_names():
        raise argparse.ArgumentTypeError(
            f"bench: NAME ({text}) must be all or one of {', '.join(benchmark_names())}; got {text}. Try --list."
        )
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"bench: number ({text}) must be a positive integer; got {text}. Try 2.")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Run one benchmark, or all. Contenders are checked for equal outputs, then timed in interleaved "
        "rounds. The median ratio and its quartiles are printed as a table and appended to OUT/NAME.csv.",
        epilog="Exit status: 0 all bars met, 1 a bar missed, 2 usage error or outputs that disagree, "
        "3 nothing measured because packages or data are missing, 130 Ctrl-C. "
        "Example: python -m bench attention --threads 2 --only causal",
    )
    names = ", ".join(benchmark_names())
    parser.add_argument("name", nargs="?", type=_name, metavar="NAME", help=f"all, or one of: {names}")
    parser.add_argument("--list", action="store_true", help="list all benchmarks with their descriptions and exit")
    parser.add_argument(
        "--rounds",
        type=_positive,
        metavar="N",
        help=f"default: {Options.rounds}, {_all.ROUNDS} for all, {QUICK_ROUNDS} with --quick",
    )
    parser.add_argument("--threads", type=_positive, metavar="N", help="number of torch threads (default: torch's own)")
    parser.add_argument(
        "--out", type=Path, default=Options.out, metavar="DIR", help="folder of CSV files (%(default)s)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="run only cases whose name or shape contains TEXT")
    parser.add_argument("--quick", action="store_true", help="smoke test: small shapes and few rounds")
    parser.add_argument("--write", action="store_true", help="save the result in the repository (scaling)")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write counts of bars, goals and skips as JSON")
    parser.add_argument("--no-bars", dest="bars", action="store_false", help="exit with 0 even if a bar is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
