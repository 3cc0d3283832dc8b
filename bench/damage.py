"""Mutate files of training runs and flip bits in them: every change must be rejected with a message or have no effect.

A tiny run of each recipe is trained. For each mutation, one of its files is changed and the run is used as a user
would: either the best model is loaded and queried, or training continues for two steps. The outcome is one of

    refused   an error message (ValueError, OSError or a usage error)
    same      outputs or final state are bitwise equal to those of the undamaged run
    silent    they differ, and no error is raised
    crash     any other exception, which users see as a traceback
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import _runs
from bench.harness import Figure, Options

MORE = _runs.STEPS + 2
IGNORED = {".lock", ".making", "confusion.png", "confusion.json", "curves.png", "samples.txt"}
"""Files that are written but never read."""


def figures(options: Options) -> Iterator[Figure]:
    mutations, flips = (200, 100) if options.quick else (5000, 2000)

    def wrong(name: str, count: int, mutate: Mutate) -> float:
        counts = campaign(count, mutate)
        print(f"{name}: {dict(counts)}")
        return counts["silent"] + counts["crash"]

    for name, count, mutate in (("mutations", mutations, mutate_bytes), ("bit flips", flips, flip_bit)):
        shape = f"{count:,} {name}, runs and states of {len(_runs.RECIPES)} recipes"
        yield Figure(f"{name}: silent or crash", shape, partial(wrong, name, count, mutate), "files", "<= 0")


Mutate = Callable[[bytes, random.Random, list[bytes]], bytes | None]
"""Maps the contents of a file, given those of the run's other files, to new contents; None deletes the file."""


def flip_bit(data: bytes, generator: random.Random, others: list[bytes]) -> bytes:
    """Flip one random bit."""
    changed = bytearray(data)
    bit = generator.randrange(8 * len(data))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def mutate_bytes(data: bytes, generator: random.Random, others: list[bytes]) -> bytes | None:
    """Apply one of many changes, chosen at random: of bytes, digits, lines, JSON values or whole files."""
    start = generator.randrange(len(data))
    end = min(len(data), start + generator.randint(1, 64))
    noise = generator.randbytes(end - start)
    digits = [match.start() for match in re.finditer(rb"\d", data)]
    lines = data.splitlines(keepends=True)
    choices: list[Callable[[], bytes | None]] = [
        lambda: None,
        lambda: b"",
        lambda: data[:start],
        lambda: data[:start] + data[end:],
        lambda: data[:start] + noise + data[end:],
        lambda: data[:start] + noise + data[start:],
        lambda: data[:start] + bytes(end - start) + data[end:],
        lambda: data[:start] + data[start:end] + data[start:],
        lambda: data + noise,
        lambda: generator.choice(others),
        lambda: _swap_digits(data, generator, digits) if len(digits) > 1 else data[::-1],
        lambda: b"".join(generator.sample(lines, len(lines))),
        lambda: _change_json(data, generator),
    ]
    return generator.choice(choices)()


def _swap_digits(data: bytes, generator: random.Random, digits: list[int]) -> bytes:
    """Swap two digits, which can exchange ids in a vocabulary."""
    changed = bytearray(data)
    a, b = generator.sample(digits, 2)
    changed[a], changed[b] = changed[b], changed[a]
    return bytes(changed)


def _change_json(data: bytes, generator: random.Random) -> bytes:
    """Change one value of a JSON file and keep its structure. In other files, change the last byte."""
    try:
        value = json.loads(data)
    except ValueError:
        return data[:-1] + generator.randbytes(1)
    holders: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            holders.append((node, key))
            if isinstance(inner, dict | list):
                collect(inner)

    if isinstance(value, dict | list) and value:
        collect(value)
        node, key = generator.choice(holders)
        old = node[key]
        others: list[Any] = [None, 5, [1, 2], {}, "x", -1, 0, 1e308, [[[[]]]], "\ud800", True]
        if isinstance(old, int | float) and not isinstance(old, bool):
            others += [old + 1, old * 2, -old, old / 2]
        node[key] = generator.choice(others)
    return json.dumps(value, indent=generator.choice((None, 2))).encode()


def campaign(
    count: int, mutate: Mutate, seed: int = 0, recipes: tuple[str, ...] = tuple(_runs.RECIPES)
) -> Counter[str]:
    """Apply `count` mutations to the files of all recipes and count the outcomes."""
    counts: Counter[str] = Counter()
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, _inside(Path(folder)), _quiet():
        _runs.write_inputs(Path())
        runs = {recipe: MutatedRun(recipe) for recipe in recipes}
        for number in range(count):
            outcome, what = runs[recipes[number % len(recipes)]].outcome(mutate, generator)
            counts[outcome] += 1
            if outcome in ("silent", "crash"):
                print(f"{outcome}: mutation {number} of {what}", file=sys.__stderr__, flush=True)
    return counts


class MutatedRun:
    """A run that is repeatedly copied, damaged and used, with the outputs of the undamaged run."""

    def __init__(self, recipe: str) -> None:
        self.recipe, self.run, self.copy = recipe, Path(recipe), Path(f"{recipe}-damaged")
        from regard.commands.main import main

        assert main(_runs.command(recipe, self.run)) == 0
        files = sorted(path for path in self.run.rglob("*") if path.is_file() and path.name not in IGNORED)
        self.files = [path.relative_to(self.run) for path in files if path.stat().st_size]
        self.contents = {name: (self.run / name).read_bytes() for name in self.files}
        self.answers = answers(recipe, self.run)
        shutil.copytree(self.run, self.copy)
        assert self._resumed() == 0
        self.final = _runs.tensors(self.copy, MORE)

    def outcome(self, mutate: Mutate, generator: random.Random) -> tuple[str, str]:
        """Damage a copy of the run, use it, and return the outcome with a description of the damaged file."""
        name = generator.choice(self.files)
        # Best weights are only loaded; data and states are only used for training; other files are used by both.
        resume = name.parts[0] != "model.safetensors" and (len(name.parts) > 1 or generator.random() < 0.5)
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.run, self.copy)
        changed = mutate(self.contents[name], generator, list(self.contents.values()))
        if changed is None:
            (self.copy / name).unlink()
        else:
            (self.copy / name).write_bytes(changed)
        what = f"{self.copy / name} ({'training' if resume else 'loading'})"
        try:
            same = self._resume() if resume else answers(self.recipe, self.copy) == self.answers
        except (ValueError, OSError, SystemExit):
            return "refused", what
        except BaseException as error:  # a Rust panic is not an Exception
            return "crash", f"{what}: {type(error).__name__}: {error}"
        return ("same" if same else "silent"), what

    def _resumed(self) -> int:
        from regard.commands.main import main

        recipe = "classify" if self.recipe == "images" else self.recipe
        return main(["train", recipe, str(self.copy), "--steps", str(MORE)])

    def _resume(self) -> bool:
        if self._resumed() != 0:
            raise ValueError("refused by the command line")
        return _runs.differing(_runs.tensors(self.copy, MORE), self.final) == 0


def answers(recipe: str, run: Path) -> Any:
    """Return the exact outputs of the run's best model for a few inputs."""
    from regard.tasks.loading import (
        best,
        load_image_classifier,
        load_language_model,
        load_text_classifier,
        load_translator,
    )

    if recipe == "translate":
        hypotheses = load_translator(run).translate(["the cat sees a bird", "a dog"], size=2, longest=8)
        return [(one.text, one.score) for best in hypotheses for one in best]
    if recipe == "classify":
        return load_text_classifier(run).probabilities(["the cat good", "a dog sees bad"]).tolist()
    if recipe == "language":
        return load_language_model(run).logits("the cat\n").tolist()
    if recipe == "images":
        import numpy as np

        return [
            (one.name, one.probability)
            for one in load_image_classifier(run).classify([np.eye(8, dtype=np.uint8) * 200])
        ]
    from regard.data import WordPiece

    model = best(run)
    ids = WordPiece.load(run).encode("the cat sees a bird").ids
    with torch.no_grad():
        return model(torch.tensor([ids]), torch.tensor([len(ids)])).tolist()


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress output, warnings and the drawing of curves, which takes longer than a tiny run."""
    from regard.training import logbook

    draw = logbook.draw
    logbook.draw = lambda records, goal: b""
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logbook.draw = draw
