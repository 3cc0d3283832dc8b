"""The benchmark of `auto`: its grid, its contenders and its summary."""

import pytest

from bench import auto
from bench.harness import Options, Result, measure


def result(ours: str, peer: str, ratio: float, case: str = "forward", bar: str | None = ">= 0.9") -> Result:
    met = None if bar is None else ratio >= 0.9
    return Result(case, "(2, 4, 8, 16, 32)", "float32", ours, peer, "peer/ours", ratio, ratio, ratio, bar, met, 3)


def test_the_summary_counts_good_calls_and_names_the_worst() -> None:
    results = [
        result("auto", "SDPA", 0.99),
        result("auto", "native", 0.96, "forward causal"),
        result("auto", "SDPA", 0.1, bar=None),
    ]
    summary = auto.conclude(results, Options())
    assert summary.startswith("2 calls with a bar: 1 (50%) reach 0.97 of the best peer")
    assert summary.endswith("Worst: 0.96 of native, forward causal (2, 4, 8, 16, 32) float32.")


def test_the_grid_has_60_distinct_calls() -> None:
    shapes = auto.SQUARE + auto.CROSS
    assert sum(2 if s[2] == s[3] else 1 for s in shapes) >= 60 and len({*shapes, *auto.TINY}) == len(shapes + auto.TINY)


@pytest.mark.parametrize("case", list(auto.cases(Options(quick=True))), ids=lambda case: f"{case.name} {case.shape}")
def test_the_contenders_agree(case: auto.Case) -> None:
    assert measure(case, rounds=1, seconds=1e-5)
