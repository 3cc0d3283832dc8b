"""The benchmark of corpus memory, on a small corpus."""

import tracemalloc
from pathlib import Path

import pytest

from bench import corpus, memory
from bench.harness import Options, measure_figure
from regard.data import Batches, Corpus


def test_every_figure_is_measured_and_no_file_remains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus.tempfile, "tempdir", str(tmp_path))
    results = [measure_figure(figure) for figure in corpus.figures(Options(quick=True))]
    assert [result.quantity for result in results] == ["s", "s", "MiB", "MiB"]
    assert results[2].met and results[3].median > 0
    assert list(tmp_path.iterdir()) == []


def test_a_pair_takes_few_bytes(tmp_path: Path) -> None:
    corpus.write_seconds(tmp_path, corpus.QUICK)
    run = corpus.setup(str(tmp_path))
    tracemalloc.start()
    try:
        run()
        assert tracemalloc.get_traced_memory()[1] / corpus.QUICK < 50  # 20 million pairs would fit
    finally:
        tracemalloc.stop()


def test_the_corpus_has_the_requested_size(tmp_path: Path) -> None:
    corpus.write_seconds(tmp_path, 1100)
    opened = Corpus.open(tmp_path / "corpus")
    assert len(opened) == 1100 and opened.ids[0].dtype == "<u2"
    assert opened.lengths.min() == corpus.SHORTEST and opened.lengths.max() == corpus.LONGEST
    assert abs(opened.lengths.mean() - 10) < 0.5
    assert len(Batches(opened, corpus.TOKENS).plan(0)) > 1
    assert corpus.plan_seconds(tmp_path) > 0


def test_mapped_pages_are_not_anonymous_memory(tmp_path: Path, sample_mark: str) -> None:
    (tmp_path / "large").write_bytes(b"x" * (32 << 20))
    code = f"""
import numpy as np
from tests.bench.sampling import wait_for_samples
def setup():
    def run():
        mapped = np.memmap({str(tmp_path / "large")!r}, np.uint8, "r")
        mapped.sum()
        scratch = b"x" * (8 << 20)
        sum(scratch[::4096])
        WAIT
    return run
"""
    anonymous = memory.profile(code.replace("WAIT", f"wait_for_samples({sample_mark!r})"), anonymous=True)
    assert 7 < anonymous.above / memory.MIB < 14 and anonymous.method == "sampled"
    assert memory.profile(code.replace("WAIT", "pass")).above / memory.MIB > 38
