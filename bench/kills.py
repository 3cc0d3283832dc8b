"""Kill `regard train` with SIGKILL at random moments, resume it, and compare the result with an uninterrupted run.

Runs of every recipe are started, killed and restarted until they end. Each must then be bitwise equal to an
uninterrupted run: vocabularies, corpora, weights, and the last state with its moments and random generators. No other
files may remain in its folder. `bench resume` does the same for the training loop only.
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
"""Enough pairs for preparation to take about as long as training."""
CLOCKED = {"metrics.jsonl", "curves.png", "progress.json"}
"""Files that contain timestamps or durations."""


def figures(options: Options) -> Iterator[Figure]:
    kills = 4 if options.quick else 40
    shape = f"{kills} kills, {len(_runs.RECIPES)} recipes"
    yield Figure("files that differ or remain after SIGKILL", shape, lambda: float(campaign(kills)), "files", "<= 0")


def campaign(kills: int, seed: int = 0, recipes: tuple[str, ...] = tuple(_runs.RECIPES), pairs: int = PAIRS) -> int:
    """Kill `kills` processes and return the number of files that differ from those of uninterrupted runs."""
    generator, phases, wrong, number = random.Random(seed), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        inputs, run = Path(folder), Path(folder, "broken")
        _runs.write_inputs(inputs, pairs)
        uninterrupted = {recipe: UninterruptedRun(inputs, recipe) for recipe in recipes}
        while sum(phases.values()) < kills:
            recipe = recipes[number % len(recipes)]
            # Kill several processes during preparation and some during training. The last process runs to its end.
            moments = [RECORD] * generator.randint(1, 4) + ["config.json"] * generator.randint(1, 2)
            for file in moments:
                seconds = uninterrupted[recipe].duration(file == RECORD) * generator.random()
                if run_process(inputs, recipe, run, (file, seconds)) == -signal.SIGKILL:
                    phases[phase(run)] += 1
            assert run_process(inputs, recipe, run, None) == 0
            wrong += differing(recipe, uninterrupted[recipe].contents, contents(run))
            shutil.rmtree(run)
            number += 1
    print(f"kills during {dict(phases)}; {number} runs compared")
    return wrong


class UninterruptedRun:
    """Contents and duration of an uninterrupted run."""

    def __init__(self, inputs: Path, recipe: str) -> None:
        run = inputs / f"unbroken-{recipe}"
        assert run_process(inputs, recipe, run, None) == 0
        self.contents = contents(run)
        began, prepared = (run / "data/.making").stat().st_mtime, (run / "config.json").stat().st_mtime
        self.preparation = prepared - began
        self.training = max(path.stat().st_mtime for path in run.iterdir()) - prepared
        shutil.rmtree(run)

    def duration(self, preparing: bool) -> float:
        return self.preparation if preparing else self.training


def run_process(inputs: Path, recipe: str, run: Path, moment: tuple[str, float] | None) -> int:
    """Train in a process and return its exit status.

    If `moment` is given, kill the process that many seconds after the file appears, unless it ends before.
    """
    context = multiprocessing.get_context("forkserver")  # one process imports torch and forks those to be killed
    context.set_forkserver_preload(
        [
            "bench.kills",
            "regard.commands.main",
            "regard.training.recipes.train_translator",
            "regard.training.recipes.train_image_classifier",
            "regard.training.recipes.train_language_model",
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
    """Run the command of a user, in its own process."""
    import torch

    from regard.commands.main import main
    from regard.training import logbook

    os.chdir(inputs)
    torch.set_num_threads(1)
    logbook.draw = lambda records, goal: b""  # drawing takes longer than everything else
    with Path("output.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        sys.exit(main(_runs.command(recipe, Path(run.name), STEPS)))


def phase(run: Path) -> str:
    """Return the phase in which a process was killed."""
    if not (run / RECORD).exists():
        return "start"
    if (run / "config.json").exists():
        return "training"
    return (
        "corpora"
        if any((run / name).exists() for name in ("target.json", "tokenizer.json", "vocabulary.json"))
        else "vocabulary"
    )


def contents(run: Path) -> dict[str, str]:
    """Return digests of all files of a run. Tensor files are compared by tensors and metadata, which are unordered."""
    digests = {}
    for path in run.rglob("*"):
        name = str(path.relative_to(run))
        if path.suffix == ".safetensors":
            digests[name] = json_digest(read_tensors_and_metadata(path)[1])  # includes a digest of the tensors
        else:
            digests[name] = file_digest(path) if path.is_file() else ""
    return digests


def differing(recipe: str, expected: dict[str, str], digests: dict[str, str]) -> int:
    """Print and count the files that differ, are missing or should have been deleted."""
    names = [
        name
        for name in sorted(expected.keys() | digests.keys())
        if name not in expected
        or name not in digests
        or (expected[name] != digests[name] and Path(name).name not in CLOCKED)
    ]
    for name in names:
        what = "remains" if name not in expected else "is missing" if name not in digests else "differs"
        print(f"{recipe}: {name} {what}", file=sys.stderr)
    return len(names)
