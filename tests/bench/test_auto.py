"""The benchmark of `auto`: its grid, its contenders and its summary."""

import pytest
import torch

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
    assert summary.startswith("2 comparisons: 1 (50%) reach 0.97 of the best peer")
    assert summary.endswith("Worst: 0.96 of native, forward causal (2, 4, 8, 16, 32) float32.")


def test_calls_that_cannot_reach_the_bar_have_a_goal_with_a_reason() -> None:
    peers = ("native", "SDPA", "eager")

    def limits(shape: auto.Shape, backward: bool, dtype: torch.dtype = torch.float32) -> list[tuple[object, ...]]:
        return [(v.peer, v.bar, v.goal, v.reason) for v in auto.comparisons(shape, peers, backward, dtype)]

    assert limits((1, 8, 16, 16, 64), True) == [(peers, None, None, None)]  # too short: no bar
    assert limits((8, 12, 512, 512, 64), False) == [(peers, ">= 0.9", None, None)]
    assert limits((64, 8, 1, 64, 64), False) == [(peers, ">= 0.75", ">= 0.9", auto.BANDWIDTH)]
    assert limits((200, 8, 12, 12, 64), True) == [(peers, ">= 0.75", ">= 0.9", auto.OVERHEAD)]
    assert limits((8, 12, 512, 512, 64), True, torch.bfloat16) == [
        (("native", "SDPA"), ">= 0.9", None, None),
        ("eager", None, ">= 0.9", auto.ROUNDED),
    ]


def test_the_grid_has_60_distinct_calls() -> None:
    shapes = auto.SQUARE + auto.CROSS
    assert sum(2 if s[2] == s[3] else 1 for s in shapes) >= 60 and len({*shapes, *auto.TINY}) == len(shapes + auto.TINY)


@pytest.mark.parametrize("case", list(auto.cases(Options(quick=True))), ids=lambda case: f"{case.name} {case.shape}")
def test_the_contenders_agree(case: auto.Case) -> None:
    assert measure(case, rounds=1, seconds=1e-5)
