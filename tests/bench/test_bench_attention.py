"""The benchmark of the native kernels: its cases run, and bars apply to the right peers."""

import pytest
import torch

from bench import attention
from bench.harness import Options, measure
from regard.attention.native import engine


@pytest.fixture(autouse=True)
def disable_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable compilation, which would take longer than everything else."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler\nand more lines")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)


def test_every_kind_of_case_runs_and_agrees() -> None:
    names = set()
    for case in attention.cases(Options(quick=True)):
        results = measure(case, rounds=1, seconds=1e-6)
        assert all(result.bar is None for result in results)
        names.add(case.name)
    kinds = {"forward", "forward + backward", "forward causal", "forward + backward causal", "one query"}
    assert names == {*kinds, "additive forward", "additive forward + backward"}


def test_a_compiler_that_fails_is_skipped_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert attention.compiled_additive() is None
    assert capsys.readouterr().err == "bench: torch.compile does not work here and is skipped: no compiler\n"


@pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
def test_bars_apply_to_the_named_peers() -> None:
    def bars_of(case: attention.Case) -> dict[str, str]:
        return {str(v.peer): v.bar for v in case.versus if v.bar is not None}

    (shape, is_causal), bars = next(iter(attention.DOT.items()))
    assert bars_of(attention.dot_case(shape, is_causal, False, bars)) == {"SDPA": ">= 3.5", "eager": ">= 1.6"}
    small = (2, 3, 5, 8)
    assert bars_of(attention.dot_case(small, True, True, {"SDPA": (">= 1", ">= 2.5")})) == {"SDPA": ">= 2.5"}
    assert bars_of(attention.long_case(small, True)) == {"mm": ">= 0.9"}
    additive = attention.additive_case(small, False, {"eager": (">= 30", ">= 15"), "compile": (">= 12", ">= 12")}, None)
    assert bars_of(additive) == {"eager": ">= 30"}


def test_flops_of_a_causal_mask_count_only_its_pairs() -> None:
    assert attention.flops((2, 3, 4, 5), False, False) == 2 * 3 * 16 * 5 * 4
    assert attention.flops((2, 3, 4, 5), True, True) == 2 * 3 * 10 * 5 * 14


@pytest.mark.parametrize("setup", [attention.additive_forward, attention.additive_backward])
def test_the_functions_measured_for_memory_run(setup: object) -> None:
    assert callable(setup)
    assert setup([1, 20, 8])() is not None
