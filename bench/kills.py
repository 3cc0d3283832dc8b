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
from regard.core.digests import file_digest, json_digest
from regard.core.tensor_files import read_tensors_and_metadata
from regard.training.recipes.preparation import RECORD

STEPS = 24
PAIRS = 6000
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
        inputs, run = Path(place), Path(place, "broken")
        _runs.write_inputs(inputs, pairs)
        unbroken = {recipe: Unbroken(inputs, recipe) for recipe in recipes}
        while sum(phases.values()) < kills:
            recipe = recipes[number % len(recipes)]
            # several lives end during preparation, then some during training; the last one is left to its end
            moments = [RECORD] * drawn.randint(1, 4) + ["config.json"] * drawn.randint(1, 2)
            for file in moments:
                seconds = unbroken[recipe].lasts(file == RECORD) * drawn.random()
                if life(inputs, recipe, run, (file, seconds)) == -signal.SIGKILL:
                    phases[phase(run)] += 1
            assert life(inputs, recipe, run, None) == 0
            wrong += differing(recipe, unbroken[recipe].contents, contents(run))
            shutil.rmtree(run)
            number += 1
    print(f"kills during {dict(phases)}; {number} runs compared")
    return wrong


class Unbroken:
    """A run that nothing killed: what is in its folder, and how long it took."""

    def __init__(self, inputs: Path, recipe: str) -> None:
        run = inputs / f"unbroken-{recipe}"
        assert life(inputs, recipe, run, None) == 0
        self.contents = contents(run)
        began, prepared = (run / "data/.making").stat().st_mtime, (run / "config.json").stat().st_mtime
        self.preparation = prepared - began
        self.training = max(path.stat().st_mtime for path in run.iterdir()) - prepared
        shutil.rmtree(run)

    def lasts(self, preparing: bool) -> float:
        return self.preparation if preparing else self.training


def life(inputs: Path, recipe: str, run: Path, moment: tuple[str, float] | None) -> int:
    """A process that trains; killed so many seconds after a file is there, unless it ends before. Its exit status."""
    context = multiprocessing.get_context("forkserver")  # one process imports torch; those to be killed are its forks
    context.set_forkserver_preload(
        [
            "bench.kills",
            "regard.commands.main",
            "regard.training.recipes.train_translator",
            "regard.training.recipes.train_image_classifier",
        ]
    )
    process = context.Process(target=train, args=(inputs, recipe, run))
    process.start()
    if moment is not None:
        name, seconds = moment
        while process.is_alive() and not (run / name).exists():
            time.sleep(0.002)
        process.join(seconds)
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"{recipe} ended with {process.exitcode}"
    return process.exitcode


def train(inputs: Path, recipe: str, run: Path) -> None:
    """In its own process: the command of a user."""
    import torch

    from regard.commands.main import main
    from regard.training import logbook

    os.chdir(inputs)
    torch.set_num_threads(1)
    logbook.draw = lambda records, goal: b""  # takes longer than all the rest
    with Path("output.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        sys.exit(main(_runs.command(recipe, Path(run.name), STEPS)))


def phase(run: Path) -> str:
    """What a killed process was doing."""
    if not (run / RECORD).exists():
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
