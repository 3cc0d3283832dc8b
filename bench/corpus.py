"""Memory of training on 20 million pairs: the plan of an epoch and some hundred of its batches, from a mapped corpus.

A synthetic corpus of 10 + 10 ids a pair on average is written to a temporary folder (1.3 GB; TMPDIR names another).
What counts is anonymous memory above the start. Resident memory in all is told beside it: it has the interpreter, torch
and the pages of the mapped files that the kernel chose to map around each access (2 MiB at a time where it keeps large
folios), which are its cache and its to take back.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from bench import memory
from bench.harness import Figure, Options
from regard.data import Batches, Corpus
from regard.data.corpus import Flat

PAIRS = 20_000_000
QUICK = 200_000
CHUNK = 500_000
SHORTEST, LONGEST = 5, 15
VOCABULARY = 8_000
TOKENS = 4096
BATCHES = 300
BAR = "<= 1024"


def figures(options: Options) -> Iterator[Figure]:
    pairs = QUICK if options.quick else PAIRS
    folder = Path(tempfile.mkdtemp(prefix="regard-corpus-"))
    shape = f"{pairs:,} pairs"
    profile = partial(memory.profile, "bench.corpus:setup", str(folder), threads=options.threads)
    try:
        yield Figure("write", shape, partial(written, folder, pairs), "s", dtype="uint16")
        yield Figure("plan of an epoch", shape, partial(planned, folder), "s", dtype="uint16")
        yield Figure(
            f"plan and {BATCHES} batches, anonymous memory above the start",
            shape,
            lambda: profile(anonymous=True).above / memory.MIB,
            "MiB",
            BAR,
            dtype="uint16",
        )
        yield Figure(
            f"plan and {BATCHES} batches, resident in all with mapped pages",
            shape,
            lambda: profile().peak / memory.MIB,
            "MiB",
            dtype="uint16",
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def written(folder: Path, pairs: int) -> float:
    """Seconds to write a corpus of random ids."""
    start = time.perf_counter()
    Corpus.write_flat(folder / "corpus", chunks(pairs))
    return time.perf_counter() - start


def chunks(pairs: int) -> Iterator[tuple[Flat, Flat]]:
    random = np.random.default_rng(0)
    for first in range(0, pairs, CHUNK):
        count = min(CHUNK, pairs - first)
        yield drawn(random, count), drawn(random, count)


def drawn(random: np.random.Generator, count: int) -> Flat:
    lengths = random.integers(SHORTEST, LONGEST, count, np.int32, endpoint=True)
    return random.integers(4, VOCABULARY, int(lengths.sum()), np.uint16), lengths


def planned(folder: Path) -> float:
    """Seconds before the first batch of an epoch."""
    start = time.perf_counter()
    next(Batches(Corpus.open(folder / "corpus"), TOKENS).epoch(0))
    return time.perf_counter() - start


def setup(folder: str) -> Callable[[], None]:
    """What is measured: an epoch's first batches; before it, the same on few pairs."""

    def run(name: str) -> None:
        for _ in islice(Batches(Corpus.open(Path(folder) / name), TOKENS).epoch(0), BATCHES):
            pass

    Corpus.write_flat(Path(folder) / "few", chunks(1000))
    run("few")
    return partial(run, "corpus")
