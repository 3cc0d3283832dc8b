"""Kill −9 during `regard train`, at random moments from the first vocabulary to the last state; what is left of it.

Runs of every recipe are started, killed and started again until they end. Each must then equal an unbroken run to the
bit: vocabularies, corpora, weights, the last state with its moments and random generators; and nothing else may be left
in its folder. `bench resume` does the same for the training loop alone.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench import _runs
from bench.harness import Figure, Options
from regard.data.digests import file_digest, json_digest
from regard.training.files import read_tensors_and_metadata

STEPS = 24
PAIRS = 3000
"""Enough for preparation to take about as long as training."""
CLOCKED = {"metrics.jsonl", "curves.png", "progress.json"}
"""Files that hold times of the clock."""


def figures(options: Options) -> Iterator[Figure]:
    kills = 4 if options.quick else 40
    shape = f"{kills} kills, {len(_runs.RECIPES)} recipes"
    yield Figure(
        "files that differ or are left behind after kill −9", shape, lambda: float(campaign(kills)), "files", "<= 0"
    )


def campaign(kills: int, seed: int = 0, recipes: tuple[str, ...] = tuple(_runs.RECIPES), pairs: int = PAIRS) -> int:
    """Kill that many processes; returns how many files of the runs differ from those of unbroken ones."""
    drawn, phases, wrong, number = random.Random(seed), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as place:
        inputs = Path(place)
        _runs.write_inputs(inputs, pairs)
        unbroken: dict[str, dict[str, str]] = {}
        lasted: dict[str, tuple[float, float]] = {}
        for recipe in recipes:
            lasted[recipe] = timed(inputs, recipe)
            unbroken[recipe] = contents(inputs / "unbroken")
            shutil.rmtree(inputs / "unbroken")
        while sum(phases.values()) < kills or (inputs / "broken").exists():
            recipe = recipes[number % len(recipes)]
            preparing = drawn.random() < 0.5 and not (inputs / "broken/config.json").exists()
            longest = lasted[recipe][0 if preparing else 1]
            after = drawn.uniform(0.0, longest) if sum(phases.values()) < kills else None
            if life(inputs, recipe, "broken", after) == -signal.SIGKILL:
                phases[phase(inputs / "broken")] += 1
                continue
            wrong += differing(recipe, unbroken[recipe], contents(inputs / "broken"))
            shutil.rmtree(inputs / "broken")
            number += 1
    print(f"kills during {dict(phases)}; {number} runs compared")
    return wrong


def timed(inputs: Path, recipe: str) -> tuple[float, float]:
    """Train an unbroken run; returns the seconds of its preparation and of all of it."""
    began = time.monotonic()
    assert life(inputs, recipe, "unbroken", None) == 0
    ended = time.monotonic()
    written = (inputs / "unbroken/config.json").stat().st_mtime
    return ended - began - (time.time() - written), ended - began


def life(inputs: Path, recipe: str, run: str, after: float | None) -> int:
    """A process that trains; killed after so many seconds, if it has not ended before. Returns its exit status."""
    context = multiprocessing.get_context("forkserver")  # one process imports torch; those to be killed are its forks
    context.set_forkserver_preload(["bench.kills", "regard.cli", "regard.training.translate", "regard.training.images"])
    process = context.Process(target=train, args=(inputs, recipe, run))
    process.start()
    process.join(after)
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"{recipe} ended with {process.exitcode}"
    return process.exitcode


def train(inputs: Path, recipe: str, run: str) -> None:
    """In its own process: the command of a user."""
    import torch

    from regard.cli import main
    from regard.training import logbook

    os.chdir(inputs)
    torch.set_num_threads(1)
    logbook.draw = lambda records, goal: b""  # takes longer than all the rest
    with Path(f"{run}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        sys.exit(main(_runs.command(recipe, Path(run), STEPS)))


def phase(run: Path) -> str:
    """What a killed process was doing."""
    if not (run / "data/prepared.json").exists():
        return "start"
    if (run / "config.json").exists():
        return "training"
    return "corpora" if any((run / name).exists() for name in ("target.json", "tokenizer.json")) else "vocabulary"


def contents(run: Path) -> dict[str, str]:
    """Digests of everything in a run; of tensor files, those of tensors and metadata, whose order is not fixed."""
    found = {}
    for path in run.rglob("*"):
        name = str(path.relative_to(run))
        if path.suffix == ".safetensors":
            found[name] = json_digest(read_tensors_and_metadata(path)[1])  # a digest of the tensors is among them
        else:
            found[name] = file_digest(path) if path.is_file() else ""
    return found


def differing(recipe: str, wanted: dict[str, str], found: dict[str, str]) -> int:
    """How many files differ, are missing or are left behind; each is named."""
    names = [
        name
        for name in sorted(wanted.keys() | found.keys())
        if name not in wanted or name not in found or (wanted[name] != found[name] and Path(name).name not in CLOCKED)
    ]
    for name in names:
        what = "is left behind" if name not in wanted else "is missing" if name not in found else "differs"
        print(f"{recipe}: {name} {what}", file=sys.stderr)
    return len(names)
