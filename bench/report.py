"""What was measured: a table on the terminal and rows in a CSV file, each naming the machine it came from."""

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
    """What a result depends on besides the code measured."""
    return {
        "threads": str(torch.get_num_threads()),
        "cpu": f"{cpu_model()} ({torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "regard": _regard_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def report(results: Sequence[Result], name: str, out: Path, console: Console | None = None) -> Path:
    """Prints the table, adds the rows to `out/NAME.csv` and returns that path."""
    around = environment()
    path = out / f"{name}.csv"
    append(path, [{"benchmark": name, **_cells(result), **around} for result in results])
    console = console or Console(width=None if sys.stdout.isatty() else 180)  # rich takes a file to be 80 wide
    console.print(table(results, f"{name}: {around['threads']} threads, {around['cpu']}, torch {around['torch']}"))
    barred = [result for result in results if result.met is not None]
    if barred:
        console.print(f"bars met: {sum(result.met is True for result in barred)} of {len(barred)}", highlight=False)
    console.print(f"rows: {path}", highlight=False, soft_wrap=True)
    return path


def table(results: Iterable[Result], title: str) -> Table:
    """One line for each result: measured with its quartiles, bar, met or not, and the seconds as side information."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("case", "shape", "dtype", "what"):
        shown.add_column(heading)
    for heading in ("measured", "quartiles", "bar", "met", "ours", "peer", "rate"):
        shown.add_column(heading, justify="right")
    for r in results:
        # "peer/ours" with the names filled in says who is compared and which way up
        what = r.quantity.replace("peer/ours", f"{r.peer}/{r.ours}").replace("ours/peer", f"{r.ours}/{r.peer}")
        spread = f"{r.low:.3g}–{r.high:.3g}" if r.rounds > 1 else ""
        verdict = {None: "", True: "[green]yes[/]", False: "[bold red]NO[/]"}[r.met]
        texts = [escape(text) for text in (r.case, r.shape, r.dtype, what)]
        times = (_time(r.ours_seconds), _time(r.peer_seconds))
        shown.add_row(*texts, f"[bold]{r.median:.3g}[/]", spread, r.bar or "", verdict, *times, _rates(r))
    return shown


def append(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Adds rows to a CSV file. The file is replaced whole, so that a reader or a crash never meets half of it.

    Columns that only the old or only the new rows have stay empty in the others: nothing is dropped.
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
            Path(file.name).chmod(0o644)  # a temporary file is private; a table of results is not
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    return platform.processor() or platform.machine()


def _regard_version() -> str:
    try:
        return str(getattr(import_module("regard"), "__version__", "unversioned"))
    except ImportError:
        return "absent"


def _cells(result: Result) -> dict[str, str]:
    """A result as text: numbers to six digits, nothing where there is none."""
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
    """GFLOP/s or GB/s, ours then the peer's."""
    for ours, peer, unit in ((r.ours_gflops, r.peer_gflops, "GFLOP/s"), (r.ours_gbytes, r.peer_gbytes, "GB/s")):
        if ours is not None:
            return f"{ours:.3g}{'' if peer is None else f' vs {peer:.3g}'} {unit}"
    return ""
