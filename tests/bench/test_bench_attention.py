"""The table of the native kernels: its cases run, its bars are held where they are meant."""

import pytest
import torch

from bench import attention
from bench.harness import Options, measure
from regard.attention.native import engine


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler takes longer than all the rest."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler\nand a long story")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)


def test_every_kind_of_case_runs_and_agrees() -> None:
    names = set()
    for case in attention.cases(Options(quick=True)):
        found = measure(case, rounds=1, seconds=1e-6)
        assert all(result.bar is None for result in found)
        names.add(case.name)
    kinds = {"forward", "forward + backward", "forward causal", "forward + backward causal", "one query"}
    assert names == {*kinds, "additive forward", "additive forward + backward"}


def test_a_compiler_that_fails_is_left_out_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert attention.compiled_additive() is None
    said = capsys.readouterr().err
    assert said == "bench: torch.compile does not work here and is left out: no compiler\n"


@pytest.mark.skipif(engine.module is None, reason=f"native: {engine.reason}")
def test_bars_stand_beside_the_peers_they_name() -> None:
    def held(case: attention.Case) -> dict[str, str]:
        return {str(v.peer): v.bar for v in case.versus if v.bar is not None}

    (shape, is_causal), bars = next(iter(attention.DOT.items()))
    assert held(attention.dot_case(shape, is_causal, False, bars)) == {"SDPA": ">= 3.5", "eager": ">= 1.6"}
    small = (2, 3, 5, 8)
    assert held(attention.dot_case(small, True, True, {"SDPA": (">= 1", ">= 2.5")})) == {"SDPA": ">= 2.5"}
    assert held(attention.long_case(small, True)) == {"mm": ">= 0.9"}
    additive = attention.additive_case(small, False, {"eager": (">= 30", ">= 15"), "compile": (">= 12", ">= 12")}, None)
    assert held(additive) == {"eager": ">= 30"}


def test_flops_of_a_causal_mask_are_those_of_its_pairs() -> None:
    assert attention.flops((2, 3, 4, 5), False, False) == 2 * 3 * 16 * 5 * 4
    assert attention.flops((2, 3, 4, 5), True, True) == 2 * 3 * 10 * 5 * 14


@pytest.mark.parametrize("setup", [attention.additive_forward, attention.additive_backward])
def test_what_memory_is_taken_of_runs(setup: object) -> None:
    assert callable(setup)
    assert setup([1, 20, 8])() is not None
