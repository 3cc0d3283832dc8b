"""The benchmark of the native kernels: its cases run, and bars apply to the right peers."""

import pytest
import torch

from bench import _skips, attention
from bench._attention_limits import LONG_LIMITS, Limit
from bench.harness import Options, measure
from regard.attention.native import engine


@pytest.fixture(autouse=True)
def disable_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable compilation, which would take longer than everything else."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler\nand more lines")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    _skips.skipped.clear()


@pytest.mark.slow
def test_every_kind_of_case_runs_and_agrees() -> None:
    names = set()
    for case in attention.cases(Options(quick=True)):
        results = measure(case, rounds=1, seconds=1e-6)
        assert all(result.bar is None and result.goal is None for result in results)
        names.add(case.name)
    kinds = {"forward", "forward + backward", "forward causal", "forward + backward causal", "one query"}
    assert names == {*kinds, "additive forward", "additive forward + backward"}


def test_a_compiler_that_fails_is_skipped_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert attention.compiled_additive() is None
    assert capsys.readouterr().err == "attention: torch.compile is skipped: no compiler\n"


@pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
def test_bars_and_goals_apply_to_the_named_peers() -> None:
    def limits(case: attention.Case) -> dict[str, tuple[str | None, ...]]:
        return {str(v.peer): (v.bar, v.goal, v.reason) for v in case.versus if v.bar or v.goal}

    small, pair = (2, 3, 5, 8), (Limit(">= 1"), Limit(">= 2.5", ">= 3", "hard"))
    assert limits(attention.dot_case(small, True, True, {"SDPA": pair})) == {"SDPA": (">= 2.5", ">= 3", "hard")}
    assert limits(attention.dot_case(small, True, False, {"eager": pair})) == {"eager": (">= 1", None, None)}
    assert limits(attention.long_case(small, True)) == {"mm": tuple(LONG_LIMITS[True])}
    additive = attention.additive_case(small, False, {"eager": pair, "compile": pair}, None)
    assert limits(additive) == {"eager": (">= 1", None, None)}


def test_flops_of_a_causal_mask_count_only_its_pairs() -> None:
    assert attention.flops((2, 3, 4, 5), False, False) == 2 * 3 * 16 * 5 * 4
    assert attention.flops((2, 3, 4, 5), True, True) == 2 * 3 * 10 * 5 * 14


@pytest.mark.parametrize("setup", [attention.additive_forward, attention.additive_backward])
def test_the_functions_measured_for_memory_run(setup: object) -> None:
    assert callable(setup)
    assert setup([1, 20, 8])() is not None
