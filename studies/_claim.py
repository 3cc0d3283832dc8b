"""Helpers of the studies of claims: command-line options, stored results, means with deviations, figures."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.core.files import replacing

SEEDS = 3
Json = Any
"""Values that `json` supports."""


@dataclass(frozen=True)
class Claim:
    """The command-line options of a study."""

    name: str
    seeds: tuple[int, ...]
    quick: bool
    """Run in seconds with the smallest sizes. This shows that the study runs; its results mean nothing."""
    out: Path
    """Folder of results.json and figure.png."""

    @staticmethod
    def parse(
        name: str, text: str | None, arguments: Sequence[str], parents: Sequence[argparse.ArgumentParser] = ()
    ) -> Claim:
        """Parse the command line of a study with docstring `text`. `parents` define additional options."""
        first = (text or "").partition("\n")[0]
        parser = argparse.ArgumentParser(prog=f"python -m studies {name}", description=first, parents=list(parents))
        parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds (default: %(default)s)")
        parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's own)")
        parser.add_argument("--quick", action="store_true", help="smoke test with tiny sizes; results mean nothing")
        parser.add_argument("--out", type=Path, help=f"output folder (default: out/studies/{name})")
        options = parser.parse_args(arguments)
        if options.seeds < 1:
            parser.error(f"--seeds ({options.seeds}) must be at least 1.")
        if options.threads:
            torch.set_num_threads(options.threads)
        out = options.out or Path("out/studies") / (f"{name}-quick" if options.quick else name)
        return Claim(name, tuple(range(options.seeds)), options.quick, out)


class ResultStore:
    """Measurements stored by name in results.json after each one, so that an interrupted study can continue.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> ResultStore(folder, {"width": 8}).measure("loss", lambda: 0.5)
    0.5
    >>> ResultStore(folder, {"width": 8}).measure("loss", lambda: 1 / 0)  # stored: the function is not called
    0.5
    >>> ResultStore(folder, {"width": 16}).measure("loss", lambda: 0.25)  # other settings: measured again
    0.25
    """

    def __init__(self, folder: Path, settings: dict[str, Json]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.json"
        self.settings = json.loads(json.dumps(settings))
        stored = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.measured: dict[str, Json] = stored.get("measured", {}) if stored.get("settings") == self.settings else {}

    def measure(self, name: str, function: Callable[[], Json]) -> Json:
        """Return the stored measurement of this name, or measure it now and print the time to stderr."""
        if name not in self.measured:
            start = time.monotonic()
            self.measured[name] = json.loads(json.dumps(function()))
            with replacing(self.path) as path:
                content = {"settings": self.settings, "measured": self.measured}
                path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            print(f"  {name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        return self.measured[name]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (0 for a single value).

    >>> spread([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def format_mean(values: Sequence[float], digits: int = 1, times: float = 1.0) -> str:
    """Format mean ± standard deviation.

    >>> format_mean([0.91, 0.93, 0.95], times=100)
    '93.0 ± 2.0'
    """
    mean, deviation = spread([times * value for value in values])
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


@contextmanager
def figure(path: Path, columns: int = 1, size: tuple[float, float] = (4.6, 3.6)) -> Iterator[list[Any]]:
    """Yield axes side by side in the style of the documentation, and save the figure at the end."""
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(
        1, columns, figsize=(size[0] * columns, size[1]), layout="constrained", squeeze=False
    )
    try:
        yield list(axes[0])
        for one in axes[0]:
            one.spines[["top", "right"]].set_visible(False)
        canvas.savefig(path, dpi=160)
    finally:
        pyplot.close(canvas)


def line(axes: Any, x: Sequence[float], values: Sequence[Sequence[float]], label: str) -> None:
    """Plot means over seeds as a line labelled at its right end, with a band of ± one standard deviation."""
    means, deviations = zip(*map(spread, values), strict=True)
    (drawn,) = axes.plot(x, means, marker="o", markersize=4)
    low, high = ([m + s * d for m, d in zip(means, deviations, strict=True)] for s in (-1, 1))
    axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
    axes.annotate(
        label, (x[-1], means[-1]), (6, 0), textcoords="offset points", color=drawn.get_color(), va="center", fontsize=9
    )
