"""Memory of training on 20 million pairs: the plan of an epoch and its first 300 batches, from a memory-mapped corpus.

A synthetic corpus with 10 + 10 token ids per pair on average is written to a temporary folder (1.3 GB; set TMPDIR to
change it). The bar applies to anonymous memory above the start. Total resident memory is reported as well. It includes
the interpreter, torch, and pages of the mapped files that the kernel maps around each access (2 MiB at a time if it
uses large folios). These pages belong to the page cache, and the kernel can reclaim them.
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
        yield Figure("write", shape, partial(write_seconds, folder, pairs), "s", dtype="uint16")
        yield Figure("plan of an epoch", shape, partial(plan_seconds, folder), "s", dtype="uint16")
        yield Figure(
            f"plan and {BATCHES} batches, anonymous memory above the start",
            shape,
            lambda: profile(anonymous=True).above / memory.MIB,
            "MiB",
            BAR,
            dtype="uint16",
        )
        yield Figure(
            f"plan and {BATCHES} batches, total resident memory with mapped pages",
            shape,
            lambda: profile().peak / memory.MIB,
            "MiB",
            dtype="uint16",
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_seconds(folder: Path, pairs: int) -> float:
    """Return the seconds to write a corpus of random ids."""
    start = time.perf_counter()
    Corpus.write_flat(folder / "corpus", chunks(pairs))
    return time.perf_counter() - start


def chunks(pairs: int) -> Iterator[tuple[Flat, Flat]]:
    random = np.random.default_rng(0)
    for first in range(0, pairs, CHUNK):
        count = min(CHUNK, pairs - first)
        yield random_ids(random, count), random_ids(random, count)


def random_ids(random: np.random.Generator, count: int) -> Flat:
    lengths = random.integers(SHORTEST, LONGEST, count, np.int32, endpoint=True)
    return random.integers(4, VOCABULARY, int(lengths.sum()), np.uint16), lengths


def plan_seconds(folder: Path) -> float:
    """Return the seconds until the first batch of an epoch."""
    start = time.perf_counter()
    next(Batches(Corpus.open(folder / "corpus"), TOKENS).epoch(0))
    return time.perf_counter() - start


def setup(folder: str) -> Callable[[], None]:
    """Return the measured function, which reads an epoch's first batches, after the same on a small corpus."""

    def run(name: str) -> None:
        for _ in islice(Batches(Corpus.open(Path(folder) / name), TOKENS).epoch(0), BATCHES):
            pass

    Corpus.write_flat(Path(folder) / "few", chunks(1000))
    run("few")
    return partial(run, "corpus")
