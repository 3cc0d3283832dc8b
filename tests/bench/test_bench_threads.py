"""Both thread pools compute the same result, and torch's pool is restored afterwards."""

import pytest

from bench import _skips, threads
from bench.harness import Options, measure
from regard.attention.native import engine


@pytest.mark.skipif(engine.module is None, reason=engine.reason)
def test_every_contender_runs_and_the_pool_of_torch_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    real = engine.module.use_pool
    monkeypatch.setattr(engine.module, "use_pool", lambda pool: (used.append(pool), real(pool)))
    (case,) = threads.cases(Options(quick=True))
    results = measure(case, rounds=1, seconds=1e-4)
    assert [r.peer for r in results] == ["own threads", "each part alone"]
    assert 0 in used and used[-1] == engine.pool()


def test_missing_kernels_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "module", None)
    monkeypatch.setattr(_skips, "skipped", [])
    assert list(threads.cases(Options())) == []
    assert _skips.skipped[0].startswith("threads: everything is skipped: the native kernels are missing")
