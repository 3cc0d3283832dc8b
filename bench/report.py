"""Report results as a table on the terminal and as CSV rows, each with a description of the machine."""

import csv
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.harness import Result


def environment() -> dict[str, str]:
    """Return the machine and software versions that a result depends on."""
    return {
        "threads": str(torch.get_num_threads()),
        "cpu": f"{cpu_model()} ({torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "regard": _regard_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def report(results: Sequence[Result], name: str, out: Path, console: Console | None = None) -> Path:
    """Print the table, append the rows to `out/NAME.csv` and return that path."""
    machine = environment()
    path = out / f"{name}.csv"
    append(path, [{"benchmark": name, **_cells(result), **machine} for result in results])
    console = console or Console(width=None if sys.stdout.isatty() else 180)  # rich assumes 80 columns for files
    console.print(table(results, f"{name}: {machine['threads']} threads, {machine['cpu']}, torch {machine['torch']}"))
    for text in reasons(results):
        console.print(f"goal, not a bar: {text}", highlight=False, markup=False)
    for what, (reached, total) in (("bars met", count_bars(results)), ("goals reached", count_goals(results))):
        if total:
            console.print(f"{what}: {reached} of {total}", highlight=False)
    console.print(f"rows: {path}", highlight=False, soft_wrap=True)
    return path


def count_bars(results: Iterable[Result]) -> tuple[int, int]:
    """Return how many bars are met, and how many there are."""
    verdicts = [result.met for result in results if result.met is not None]
    return sum(verdicts), len(verdicts)


def count_goals(results: Iterable[Result]) -> tuple[int, int]:
    """Return how many goals are reached, and how many there are."""
    verdicts = [result.reached for result in results if result.reached is not None]
    return sum(verdicts), len(verdicts)


def reasons(results: Iterable[Result]) -> list[str]:
    """Return the reasons of the goals that are not reached, each once."""
    return list(dict.fromkeys(result.reason for result in results if result.reached is False and result.reason))


def table(results: Sequence[Result], title: str) -> Table:
    """Return a table with one line per result: value, quartiles, bar, whether it is met, and the times.

    Goals have a column of their own if there are any, with a check mark if reached.
    """
    goals = any(result.goal for result in results)
    rendered = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("case", "shape", "dtype", "quantity"):
        rendered.add_column(heading)
    for heading in ("median", "quartiles", "bar", "met", *(("goal",) if goals else ()), "ours", "peer", "rate"):
        rendered.add_column(heading, justify="right")
    for r in results:
        # Replace "peer/ours" by the names of the contenders.
        quantity = r.quantity.replace("peer/ours", f"{r.peer}/{r.ours}").replace("ours/peer", f"{r.ours}/{r.peer}")
        spread = f"{r.low:.3g}–{r.high:.3g}" if r.rounds > 1 else ""
        verdict = {None: "", True: "[green]yes[/]", False: "[bold red]NO[/]"}[r.met]
        texts = [escape(text) for text in (r.case, r.shape, r.dtype, quantity)]
        goal = f"{r.goal} [green]✓[/]" if r.reached else r.goal or ""
        times = (_time(r.ours_seconds), _time(r.peer_seconds))
        limits = (r.bar or "", verdict, *((goal,) if goals else ()))
        rendered.add_row(*texts, f"[bold]{r.median:.3g}[/]", spread, *limits, *times, _rates(r))
    return rendered


def append(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Append rows to a CSV file. The file is replaced atomically, so that no reader or crash sees a partial one.

    Columns that exist only in the old or only in the new rows are empty in the others.
    """
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    old: list[dict[str, str]] = []
    columns: dict[str, None] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            old, columns = list(reader), dict.fromkeys(reader.fieldnames or ())
    for row in rows:
        columns |= dict.fromkeys(row)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, newline="", encoding="utf-8"
    ) as file:
        try:
            writer = csv.DictWriter(file, list(columns), restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows([*old, *rows])
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)  # temporary files are private by default
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def cpu_model() -> str:
    """Return the name of the processor as reported by the operating system."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        process = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if process.returncode == 0:
            return process.stdout.strip()
    return platform.processor() or platform.machine()


def _regard_version() -> str:
    try:
        return str(getattr(import_module("regard"), "__version__", "unversioned"))
    except ImportError:
        return "absent"


def _cells(result: Result) -> dict[str, str]:
    """Convert a result to text: floats with six digits, None as an empty string."""
    cells = {}
    for key, value in asdict(result).items():
        if value is None:
            cells[key] = ""
        elif isinstance(value, bool):
            cells[key] = "yes" if value else "no"
        else:
            cells[key] = f"{value:.6g}" if isinstance(value, float) else str(value)
    return cells


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _rates(r: Result) -> str:
    """Format GFLOP/s or GB/s of ours and of the peer."""
    for ours, peer, unit in ((r.ours_gflops, r.peer_gflops, "GFLOP/s"), (r.ours_gbytes, r.peer_gbytes, "GB/s")):
        if ours is not None:
            return f"{ours:.3g}{'' if peer is None else f' vs {peer:.3g}'} {unit}"
    return ""
