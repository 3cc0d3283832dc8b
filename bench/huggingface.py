"""Every transformers model class that can be built tiny: the output with regard's attention against "eager".

Each class is built from a reduced config with random weights and run on padded inputs three times: with its own
attention, after `model.set_attn_implementation("regard")`, and constructed with `attn_implementation="regard"`. The
outputs must agree within 1e-5 of their scale in float32, or in float64 if rounding dominates. Otherwise the class must
be rejected with a message that names it. A worker process runs the classes one after another and is replaced if a
class takes too long.

REGARD_CLASSES=Bert,Llama selects classes whose name contains one of these texts. The verdict for each class is written
to OUT/huggingface-classes.csv. `bench/_sweep.py` defines the verdicts.
"""

import collections
import csv
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from bench._skips import installed
from bench.harness import Figure, Options, Result

SECONDS = 120.0
COMMAND = [sys.executable, "-m", "bench._sweep"]
FEW = 25
WAYS = ("set", "built")
VERDICTS = ("equal", "sdpa", "own", "refused", "wrong", "error", "timeout", "skipped")


def figures(options: Options) -> Iterator[Figure]:
    if not installed("huggingface", "transformers"):
        return
    for way in WAYS:
        for verdict in VERDICTS:
            bar = "<= 0" if verdict in ("wrong", "error") else None
            yield Figure(f"{verdict}, {way}", "every class", partial(_count, options, way, verdict), "classes", bar)


def conclude(results: Sequence[Result], options: Options) -> str:
    rows = _sweep(options)
    bad = [row for row in rows if {"wrong", "error", "timeout"} & {row[way] for way in WAYS}]
    lines = [f"{row['name']}: {row['detail']}" for row in bad]
    built = sum(row["set"] != "skipped" for row in rows)
    return "\n".join([*lines, f"{built} of {len(rows)} classes were built and run."])


def _count(options: Options, way: str, verdict: str) -> float:
    return sum(row[way] == verdict for row in _sweep(options))


@cache
def _sweep(options: Options) -> list[dict[str, str]]:
    selected = [text for text in os.environ.get("REGARD_CLASSES", "").split(",") if text]
    names = [name for name in classes() if not selected or any(text in name for text in selected)]
    names = names[:: max(1, len(names) // FEW)] if options.quick else names
    rows = []
    for row in examine_all(names, SECONDS):
        rows.append(row)
        counts = collections.Counter(row["built"] for row in rows)
        print(f"{len(rows)}/{len(names)} {row['name']} {dict(counts)}", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "huggingface-classes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["name", *WAYS, "detail"])
        writer.writeheader()
        writer.writerows(rows)
    return rows


def classes() -> list[str]:
    """Return the names of all classes. A child process imports transformers, so that this one does not."""
    code = "from bench import _sweep; print(*_sweep.classes())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def examine_all(names: Sequence[str], seconds: float) -> Iterator[dict[str, str]]:
    """Yield a verdict for each class. A worker that dies or does not answer within `seconds` is replaced."""
    worker: Worker | None = None
    for name in names:
        worker = worker or Worker()
        row = worker.ask(name, seconds)
        if row is None:
            worker.stop()
            worker = None
            row = {
                "name": name,
                **dict.fromkeys(WAYS, "timeout"),
                "detail": f"no answer within {seconds:g} s, or the worker died",
            }
        yield row
    if worker:
        worker.stop()


class Worker:
    """A process that examines classes with one thread."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=Path(__file__).parent.parent,
        )

    def ask(self, name: str, seconds: float) -> dict[str, str] | None:
        """Return the answer for a class, or None if the process has died or takes longer than `seconds`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(name, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        line = self.process.stdout.readline()
        answer: dict[str, str] | None = json.loads(line) if line else None
        return answer

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
